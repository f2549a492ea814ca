#!/bin/sh
# Runs a set of sandbox probes against `tailstep sandbox run`: as root (every probe must pass), as an
# ordinary user (only the bound on memory may be missing, which needs a control group), and against
# the proxy. Usage: probes.sh TAILSTEP, with TAILSTEP_PROBES naming the probes' directory.
set -eu

: "${TAILSTEP_PROBES:?names the directory with outside.py, inside.py and egress.py}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# An ordinary user has to reach both.
chmod 755 "$scratch"
cp "$1" "$scratch/tailstep"
cp "$TAILSTEP_PROBES"/*.py "$scratch"
chmod 644 "$scratch"/*.py
python=/usr/bin/python3
failed=0

# What did not pass, and how much did. The probes exit with the number of their failures, or with more
# when they broke off; so the two must agree.
judge() { # FILE STATUS: the probes' output, and how they exited
    sed '/^PASS/d' "$1"
    echo "$(sed -n '/^PASS/p' "$1" | wc -l) pass"
    failures=$(sed -n '/^FAIL/p' "$1" | wc -l)
    [ "$2" -eq "$failures" ] || {
        echo "the probes exited with $2 after $failures failures"
        failed=1
    }
}

if [ "$(id -u)" = 0 ]; then
    echo "probes as root"
    status=0
    "$python" "$scratch/outside.py" -- "$scratch/tailstep" sandbox run -- >"$scratch/root.txt" || status=$?
    judge "$scratch/root.txt" "$status"
    [ "$status" -eq 0 ] || failed=1
    as_user="setpriv --reuid 4242 --regid 4242 --clear-groups"
else
    as_user=
fi

echo "probes as an ordinary user"
mkdir -m 777 "$scratch/home"
status=0
(
    cd "$scratch/home"
    HOME="$scratch/home" $as_user "$python" "$scratch/outside.py" -- \
        "$scratch/tailstep" sandbox run -- >"$scratch/user.txt"
) || status=$?
judge "$scratch/user.txt" "$status"
# Memory cannot be bounded for all processes together without a control group of one's own.
others=$(sed -n '/^FAIL/p' "$scratch/user.txt" | sed '/^FAIL R0[34] /d' | wc -l)
[ "$others" -eq 0 ] || failed=1

echo "probes of the proxy"
status=0
"$scratch/tailstep" sandbox run --net proxy --allow allowed.test \
    --env PROBE_PROXY=127.0.0.1:3128 --env PROBE_ALLOWED=allowed.test \
    --mount "$scratch/egress.py:/mnt/egress.py:ro" -- "$python" /mnt/egress.py \
    >"$scratch/egress.txt" 2>"$scratch/egress.log" || status=$?
judge "$scratch/egress.txt" "$status"
# Without a proxy to ask they would skip everything and exit well.
passed=$(sed -n '/^PASS/p' "$scratch/egress.txt" | wc -l)
[ "$status" -eq 0 ] && [ "$passed" -gt 0 ] || failed=1

exit "$failed"
