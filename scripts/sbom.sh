#!/usr/bin/env bash
# Writes what the released binary consists of: one list of parts for each crate that is a part of it, as CycloneDX JSON, to target/sbom.
source "$(dirname "$0")/lib.sh"

ensure_packages cc jq
cargo_tool cargo-cyclonedx 0.5.9
out=${CARGO_TARGET_DIR:-target}/sbom
mkdir -p "$out"
cargo cyclonedx --manifest-path service/server/Cargo.toml --format json --spec-version 1.5 --override-filename bom
mv service/server/bom.json "$out/latchgate.json"
find service -name bom.json -delete
jq -e '.components | length > 100' "$out/latchgate.json" >/dev/null || die "the list of parts is not complete: $out/latchgate.json"
say "$(jq '.components | length' "$out/latchgate.json") parts: $out/latchgate.json"
