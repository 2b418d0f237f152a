#!/usr/bin/env bash
# Uses the console in headless Chromium, against a node on a SQLite file of its own. The last line is `N passed, N failed, N skipped`.
# CONSOLE_BINARY is a built `latchgate`; if absent, cargo builds one. CONSOLE_URL and CONSOLE_KEY: a node that runs, and an operator's
# API key of it.
source "$(dirname "$0")/lib.sh"

ensure_packages chromium curl node npm
# Of the tests' packages, only their files are used: no script of them runs.
cp web/test/package.json web/test/console.test.mjs "$SCRATCH"
(cd "$SCRATCH" && npm install --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error) >"$SCRATCH/npm.log" 2>&1 ||
    die "npm: $(cat "$SCRATCH/npm.log")"

if [[ -z ${CONSOLE_URL-} ]]; then
    binary=${CONSOLE_BINARY-}
    if [[ -z $binary ]]; then
        cargo build --locked --workspace --all-targets
        binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
    fi
    # The binary refuses variables that it does not know.
    unset LATCHGATE_TEST_POSTGRES LATCHGATE_TEST_POSTGRES_TEMPLATE LATCHGATE_TEST_REDIS
    CONSOLE_KEY=$("$binary" api-key generate)
    LATCHGATE_ADMIN_API_KEY=$CONSOLE_KEY start_http node "$binary" serve --locks "sqlite:$SCRATCH/console.db"
    CONSOLE_URL=$HTTP_URL
fi
export CONSOLE_URL CONSOLE_KEY CHROMIUM
CHROMIUM=$(command -v chromium)

log=$SCRATCH/test.log
set +e
(cd "$SCRATCH" && HOME=$SCRATCH exec node --test --test-reporter=spec console.test.mjs) 2>&1 | tee "$log"
code=${PIPESTATUS[0]}
set -e

count() { awk -v name="$1" '$2 == name && $3 ~ /^[0-9]+$/ { sum = $3 } END { print sum + 0 }' "$log"; }
passed=$(count pass) failed=$(($(count fail) + $(count cancelled))) skipped=$(($(count skipped) + $(count todo)))
if ((code == 0 && passed == 0)); then
    say "no test ran"
    code=1
fi
stop_all
echo "$passed passed, $failed failed, $skipped skipped"
exit "$code"
