#!/usr/bin/env bash
# Fails, and shows the difference, when openapi/openapi.json is not what the code generates, or when the files for Docker do
# not fit the code.
source "$(dirname "$0")/lib.sh"

ensure_packages cc
generated=$SCRATCH/openapi.json
cargo run --locked --quiet -p latchgate -- openapi >"$generated"
if ! diff -u openapi/openapi.json "$generated"; then
    die "openapi/openapi.json has drifted from the code: run \`make openapi\` and commit it"
fi
say "openapi/openapi.json is what the code generates"
scripts/check-deploy.sh "${CARGO_TARGET_DIR:-target}/debug/latchgate"
