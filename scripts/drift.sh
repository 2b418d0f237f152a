#!/usr/bin/env bash
# Fails when openapi/openapi.json is not what the code generates, when a page links to a test that does not exist, or when the files
# for Docker do not fit the code.
source "$(dirname "$0")/lib.sh"

ensure_packages cc
generated=$SCRATCH/openapi.json
# With all targets, so that dependencies are compiled once, with the features that the tests use.
cargo build --locked --quiet --workspace --all-targets
"${CARGO_TARGET_DIR:-target}/debug/latchgate" openapi >"$generated"
if ! diff -u openapi/openapi.json "$generated"; then
    die "openapi/openapi.json has drifted from the code: run \`make openapi\` and commit it"
fi
say "openapi/openapi.json is what the code generates"
# Links of the form [name_of_the_test](path/to/file.rs), relative to the page.
for page in README.md docs/*.md; do
    while IFS=$'\t' read -r test file; do
        grep -q "\b$test\b" "$(dirname "$page")/$file" || die "$page names the test $test, which is not in $file"
    done < <(grep -oE '\[[a-z0-9_]+\]\([^):]+\.rs\)' "$page" | sed -E 's/^\[(.*)\]\((.*)\)$/\1\t\2/')
done
say "the tests that the pages name exist"
scripts/check-deploy.sh "${CARGO_TARGET_DIR:-target}/debug/latchgate"
