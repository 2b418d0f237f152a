#!/usr/bin/env bash
# Runs every test against private servers. Arguments go to `cargo test`: scripts/test.sh --no-fail-fast -- some_name
# The last line is the sum over all test binaries: `N passed, N failed, N skipped`.
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl jq pgbouncer postgres redis
start_postgres
start_redis
export LATCHGATE_TEST_POSTGRES=$POSTGRES_URL LATCHGATE_TEST_REDIS=$REDIS_URL

log=$SCRATCH/test.log
set +e
cargo test --workspace --locked "$@" 2>&1 | tee "$log"
code=${PIPESTATUS[0]}
set -e

read -r passed failed skipped < <(awk '
    /test result:/ {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") skipped += $(i - 1)
        }
    }
    END { print passed + 0, failed + 0, skipped + 0 }' "$log")

stop_all
if ((code != 0)); then
    say "cargo test ended with code $code"
elif ((passed + failed == 0)); then
    say "no test ran"
    code=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
exit "$code"
