#!/usr/bin/env bash
# Fails, and shows the difference, when openapi/openapi.json is not what the code generates, or when the files for Docker do
# not fit the code, or when a page links to a test that is not there.
source "$(dirname "$0")/lib.sh"

ensure_packages cc
generated=$SCRATCH/openapi.json
cargo run --locked --quiet -p latchgate -- openapi >"$generated"
if ! diff -u openapi/openapi.json "$generated"; then
    die "openapi/openapi.json has drifted from the code: run \`make openapi\` and commit it"
fi
say "openapi/openapi.json is what the code generates"
# Links of the form [name_of_the_test](path/to/file.rs), relative to the page.
for page in README.md docs/*.md; do
    while IFS=$'\t' read -r test file; do
        grep -q "\b$test\b" "$(dirname "$page")/$file" || die "$page names the test $test, which is not in $file"
    done < <(grep -oE '\[[a-z0-9_]+\]\([^)]+\.rs\)' "$page" | sed -E 's/^\[(.*)\]\((.*)\)$/\1\t\2/')
done
say "the tests that the pages name are there"
scripts/check-deploy.sh "${CARGO_TARGET_DIR:-target}/debug/latchgate"
