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

if [ "$(id -u)" = 0 ]; then
    echo "probes as root"
    "$python" "$scratch/outside.py" -- "$scratch/tailstep" sandbox run -- >"$scratch/root.txt" || failed=1
    grep -v '^PASS' "$scratch/root.txt" || true
    echo "$(grep -c '^PASS' "$scratch/root.txt") pass"
    as_user="setpriv --reuid 4242 --regid 4242 --clear-groups"
else
    as_user=
fi

echo "probes as an ordinary user"
mkdir -m 777 "$scratch/home"
(
    cd "$scratch/home"
    # The exit status is the number of failures, which are judged below.
    HOME="$scratch/home" $as_user "$python" "$scratch/outside.py" -- \
        "$scratch/tailstep" sandbox run -- >"$scratch/user.txt" || true
)
grep -v '^PASS' "$scratch/user.txt" || true
echo "$(grep -c '^PASS' "$scratch/user.txt") pass"
grep -q '^# outside done' "$scratch/user.txt" || failed=1
if grep '^FAIL' "$scratch/user.txt" | grep -qv '^FAIL R0[34] '; then failed=1; fi

echo "probes of the proxy"
"$scratch/tailstep" sandbox run --net proxy --allow allowed.test \
    --env PROBE_PROXY=127.0.0.1:3128 --env PROBE_ALLOWED=allowed.test \
    --mount "$scratch/egress.py:/mnt/egress.py:ro" -- "$python" /mnt/egress.py \
    >"$scratch/egress.txt" 2>"$scratch/egress.log" || failed=1
grep -v '^PASS' "$scratch/egress.txt" || true
echo "$(grep -c '^PASS' "$scratch/egress.txt") pass"
grep -q '^# 38 probes, 0 FAIL' "$scratch/egress.txt" || failed=1

exit "$failed"
