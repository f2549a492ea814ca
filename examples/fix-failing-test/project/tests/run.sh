#!/bin/sh
# Compares what bin/elapsed prints with what it should; exits 1 if anything differs.
set -u
cd "$(dirname "$0")/.."

passed=0
failed=0

check() { # SECONDS EXPECTED
    got=$(sh bin/elapsed "$1" 2>&1)
    if [ "$got" = "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL elapsed $1: expected '$2', got '$got'"
    fi
}

check 0 "0s"
check 59 "59s"
check 60 "1m"
check 3725 "1h 2m 5s"
check 86399 "23h 59m 59s"
check 86400 "1d"
check 90061 "1d 1h 1m 1s"
check 604800 "7d"
check "" "usage: elapsed SECONDS"
check ten "usage: elapsed SECONDS"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
