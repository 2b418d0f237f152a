#!/usr/bin/env bash
# Runs the fuzz targets under libFuzzer, each for SECONDS_EACH. Needs no nightly compiler: the code is instrumented by flags that stable
# rustc takes when it is told to, and only for this build. What libFuzzer finds is in fuzz-findings/.
#
#   scripts/fuzz.sh [TARGET...]
source "$(dirname "$0")/lib.sh"

ensure_packages cc c++
SECONDS_EACH=${SECONDS_EACH:-60}
target_dir=${CARGO_TARGET_DIR:-target}
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cargo run --quiet --locked -p latchgate-fuzz --bin seed)
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cdebug-assertions -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing" \
    cargo build --release --locked --target-dir "$target_dir/fuzz" -p latchgate-fuzz --features libfuzzer --bin fuzz --target "$(rustc -vV | sed -n 's/^host: //p')"
binary=$(find "$target_dir/fuzz" -path '*/release/fuzz' -type f)
mkdir -p fuzz-findings
for name in "${targets[@]}"; do
    mkdir -p "$SCRATCH/$name"
    cargo run --quiet --locked -p latchgate-fuzz --bin seed -- "$name" >"$SCRATCH/$name/seed"
    say "$name, $SECONDS_EACH s"
    TARGET=$name "$binary" -max_total_time="$SECONDS_EACH" -max_len=4096 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="fuzz-findings/$name-" "$SCRATCH/$name" >"$SCRATCH/$name.log" 2>&1 ||
        die "$name: $(tail -n 20 "$SCRATCH/$name.log")"
    grep -h executed_units "$SCRATCH/$name.log" || true
done
rmdir fuzz-findings 2>/dev/null || true
