#!/usr/bin/env bash
# Runs every test against private servers, also after a test binary has failed. Arguments go to `cargo test`:
# scripts/test.sh -p latchgate -- some_name
# The last line is the sum over all test binaries: `N passed, N failed, N skipped`. A test that began and has no result, because
# its process crashed, counts as failed.
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl jq pgbouncer postgres redis
start_postgres
start_redis
export LATCHGATE_TEST_POSTGRES=$POSTGRES_URL LATCHGATE_TEST_REDIS=$REDIS_URL

log=$SCRATCH/test.log
set +e
cargo test --workspace --locked --no-fail-fast "$@" 2>&1 | tee "$log"
code=${PIPESTATUS[0]}
set -e

read -r passed failed skipped < <(awk '
    /^running [0-9]+ tests?$/ { begun += $2 }
    /^test result:/ {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") skipped += $(i - 1)
        }
    }
    END {
        lost = begun - passed - failed - skipped
        print passed + 0, failed + (lost > 0 ? lost : 0), skipped + 0
    }' "$log")

stop_all
if ((code != 0)); then
    say "cargo test ended with code $code"
elif ((passed + failed == 0)); then
    say "no test ran"
    code=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
exit "$code"
