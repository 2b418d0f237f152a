#!/usr/bin/env bash
# Builds the released binary of the last commit twice, in two directories, and compares the two files byte for byte. About twice the time
# of a first build.
source "$(dirname "$0")/lib.sh"

ensure_packages cc git
sums=()
for place in "$SCRATCH/one" "$SCRATCH/another/place"; do
    mkdir -p "$place"
    git archive HEAD | tar -x -C "$place"
    # No path of this machine gets into the binary.
    remap="--remap-path-prefix=$place=/latchgate --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    (cd "$place" && CARGO_TARGET_DIR=$place/target CFLAGS="-ffile-prefix-map=$place=/latchgate -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        RUSTFLAGS=$remap SOURCE_DATE_EPOCH=$(git -C "$OLDPWD" log -1 --format=%ct) cargo build --quiet --locked --profile "${PROFILE:-dist}" -p latchgate)
    binary=$(find "$place/target" -maxdepth 2 -name latchgate -type f)
    sums+=("$(sha256sum "$binary" | cut -d ' ' -f 1)")
    rm -rf "$place"
done
[[ ${sums[0]} == "${sums[1]}" ]] || die "two builds differ: ${sums[*]}"
say "two builds are the same: sha256 ${sums[0]}"
