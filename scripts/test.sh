#!/usr/bin/env bash
# Runs every test against private servers, also after a test binary has failed. Arguments go to `cargo test`, and then it is the only
# one that runs: scripts/test.sh -p latchgate -- some_name
# At the end, each failed test is named again. The last line is the sum over all test binaries and suites: `N passed, N failed, N skipped`. A
# test that began and has no result, because its process crashed, counts as failed.

# The servers commit to a RAM disk if it has room, 4 GB: most of the time would be that of a slow disk.
room=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
[[ -n ${TMPDIR-} || $(findmnt -no OPTIONS /dev/shm) == *noexec* ]] || ((${room:-0} < 4000000)) || export TMPDIR=/dev/shm
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl fish jq pgbouncer postgres redis sqlite3 zsh
log=$SCRATCH/test.log
start_postgres
start_redis
servers=${#STARTED[@]}

# The suites in other languages, each against nodes and servers of its own. All at once and beside the tests in Rust, because most of them wait
# most of the time. Their last lines are sums of the same form.
suites=()
if (($# == 0)); then
    suites=(clients console alerts openapi)
    cargo test --workspace --locked --no-run || { say "the tests do not compile" && echo "0 passed, 0 failed, 0 skipped" && exit 1; }
    # Before, so that two suites do not install at once: each of them says so if it goes without something.
    for tool in chromium curl go java javac jdbc jq node npm openssl prometheus python3 python3-venv; do (ensure_packages "$tool") || true; done
fi
binary=$(realpath -m "${CARGO_TARGET_DIR:-target}/debug/latchgate")
declare -A running=()
for suite in "${suites[@]}"; do
    env CLIENT_BINARY="$binary" CONSOLE_BINARY="$binary" ALERTS_BINARY="$binary" OPENAPI_BINARY="$binary" \
        "scripts/test-$suite.sh" &>"$log.$suite" &
    running[$suite]=$!
    STARTED+=("TERM $!")
done

export LATCHGATE_TEST_POSTGRES=$POSTGRES_URL LATCHGATE_TEST_POSTGRES_TEMPLATE=$POSTGRES_TEMPLATE LATCHGATE_TEST_REDIS=$REDIS_URL
# Most tests wait most of the time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((4 * $(nproc)))}
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

# For the end, because they are far up in the output.
failures=$(awk '
    /^ +(Running|Doc-tests) / { sub(/^ +(Running )?/, ""); binary = $0 }
    /^test .* \.\.\. FAILED$/ { print "failed: " substr($0, 6, length($0) - 16) ", in " binary }' "$log")

for suite in "${suites[@]}"; do
    say "scripts/test-$suite.sh"
    wait "${running[$suite]}" || code=1
    cat "$log.$suite"
    read -r ran bad left_out < <(tail -n 1 "$log.$suite" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' | grep . || echo 0 1 0)
    ((passed += ran, failed += bad, skipped += left_out)) || true
    ((bad == 0)) || failures+=$'\n'"failed: $bad in scripts/test-$suite.sh"
done
STARTED=("${STARTED[@]:0:servers}")

if ((code != 0)); then
    say "the tests ended with code $code"
elif ((passed + failed == 0)); then
    say "no test ran"
    code=1
fi
[[ -z $failures ]] || echo "$failures"
echo "$passed passed, $failed failed, $skipped skipped"
exit "$code"
