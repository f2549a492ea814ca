#!/bin/sh
# An agent finds the bug behind a failing test, mends it, and shows the diff. Ends with 0 only if the
# test failed before and passes after.
#
#     sh examples/fix-failing-test/demo.sh [PATH-OF-TAILSTEP]
#
# With ANTHROPIC_API_KEY, or TAILSTEP_MODEL (and TAILSTEP_OPENAI_BASE_URL for openai/NAME), a model
# does the work. Without them script.json says what a model might say; the tools run all the same.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
tailstep=${1:-tailstep}
desk=$(mktemp -d)
trap 'rm -rf "$desk"' EXIT
cp -R "$here/project" "$desk/project"

say() {
    printf '\n== %s\n' "$*"
}

# What was written by a model is run in a sandbox, here too. `--json` keeps this check from being
# fooled by anything that merely looks like a passing test.
test_in_sandbox() {
    "$tailstep" run --data "$desk/data" --json --model scripted/echo --workspace "$desk/project" \
        "Use the bash tool to run exactly: sh tests/run.sh" 2>"$desk/errors" |
        grep '"type":"agent.tool_result"' >"$desk/result" || {
        cat "$desk/errors" >&2
        echo "demo: the sandbox could not run the test" >&2
        exit 1
    }
    sed -e 's/.*"text":"//' -e 's/"[]}].*//' -e 's/\\n/\n/g' "$desk/result"
    ! grep -q '"is_error":true' "$desk/result"
}

say "before: the project's test, in a sandbox"
if test_in_sandbox; then
    echo "demo: the test should fail before the work" >&2
    exit 1
fi

if [ -n "${TAILSTEP_MODEL:-}${ANTHROPIC_API_KEY:-}" ]; then
    say "the agent, played by ${TAILSTEP_MODEL:-the default Anthropic model}"
    set --
else
    say "the agent, played by a SCRIPT because no model is configured; its tools run for real"
    export TAILSTEP_SCRIPT_ROOT="$here"
    set -- --model scripted/script.json
fi
"$tailstep" run --data "$desk/data" --agent "$here/agent.json" "$@" \
    --workspace "$desk/project" --apply \
    "A test of this project fails. Find out why, mend the program, and check that all tests pass."

say "after: the same test, in a sandbox"
cmp -s "$here/project/tests/run.sh" "$desk/project/tests/run.sh" || {
    echo "demo: the agent changed the test instead of the program" >&2
    exit 1
}
if ! test_in_sandbox; then
    echo "demo: the test still fails" >&2
    exit 1
fi
say "done: it failed before and passes now"
