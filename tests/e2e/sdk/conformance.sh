#!/bin/sh
# Starts `tailstep dev` on a free port and runs the official clients against it, each version in turn.
#
#     sh tests/e2e/sdk/conformance.sh PATH-OF-TAILSTEP
#
# TAILSTEP_CONFORMANCE names a further script that is run with `--stage 1 --worker` by each Python version.
set -eu

tailstep=$1
here=$(cd "$(dirname "$0")/.." && pwd)
root=$(cd "$here/../.." && pwd)
versions="2.14.0 1.17.0 0.121.0"
desk=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    rm -rf "$desk"
}
trap stop EXIT
trap 'exit 130' INT TERM

for version in $versions; do
    [ -x "$root/.venv/anthropic-$version/bin/python" ] || {
        echo "conformance: anthropic $version is not installed; run make setup" >&2
        exit 1
    }
done

# The clients insist on nothing, but the further script asks for a real model's id.
export TAILSTEP_API_KEY=conformance ANTHROPIC_API_KEY=conformance
env -u ANTHROPIC_API_KEY "$tailstep" dev --listen 127.0.0.1:0 --data "$desk/data" \
    --scripted-model claude-haiku-4-5 >"$desk/out" 2>"$desk/log" &
server=$!
for _ in $(seq 200); do
    ANTHROPIC_BASE_URL=$(sed -n 's/^listening on //p' "$desk/out")
    [ -z "$ANTHROPIC_BASE_URL" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
done
[ -n "$ANTHROPIC_BASE_URL" ] || {
    cat "$desk/log" >&2
    exit 1
}
export ANTHROPIC_BASE_URL

# One key for the environments that the clients make below.
ANTHROPIC_ENVIRONMENT_KEY=$(python3 "$here/sdk/environment_key.py")
export ANTHROPIC_ENVIRONMENT_KEY

failed=0
for version in $versions; do
    python="$root/.venv/anthropic-$version/bin/python"
    "$python" "$here/sdk/stage1.py" || failed=1
    "$python" "$here/sdk/worker.py" || failed=1
    "$python" "$here/sdk/files.py" || failed=1
    if [ -n "${TAILSTEP_CONFORMANCE:-}" ]; then
        "$python" "$TAILSTEP_CONFORMANCE" --stage 1 --worker || failed=1
    fi
done
node "$here/node/turn.mjs" || failed=1
node "$here/node/worker.mjs" || failed=1

if [ "$failed" -ne 0 ]; then
    echo "--- the server's last lines" >&2
    tail -n 20 "$desk/log" >&2
fi
exit "$failed"
