#!/usr/bin/env bash
# Shows that tests notice defects. Applies one patch of service/testkit/defects after the other to a worktree of the last commit, builds
# there, and runs the tests that the patch names. Each of them must fail.
#
#   scripts/sensitivity.sh [NAME...]    these defects; all of them without a name
#   scripts/sensitivity.sh --crash      builds target/sensitivity/build/debug/latchgate for the faults `crash-point …` of `make chaos`
#
# SECONDS_EACH=100 is how long each kind of simulation runs for one defect at most. Prints a table: the defect, the test that
# noticed it, after how many seconds (with the build), and what it said. Fails if a defect is not noticed, or if a test fails without one.
source "$(dirname "$0")/lib.sh"

top=$PWD
patches=$top/service/testkit/defects
tree=$top/target/sensitivity/tree
each=${SECONDS_EACH:-100}
# Apart from the builds that other scripts use: a defect must not get into them.
export CARGO_TARGET_DIR=$top/target/sensitivity/build

if [[ -e $tree ]]; then git worktree remove --force "$tree"; fi
git worktree add --quiet --detach "$tree" HEAD
cd "$tree"

if [[ ${1-} == --crash ]]; then
    git apply "$patches"/crash/*.patch
    cargo build --locked -p latchgate
    exit
fi

names=("${@/%/.patch}")
((${#names[@]} > 0)) || mapfile -t names < <(cd "$patches" && ls -- *.patch)

ensure_packages cc pgbouncer postgres redis
start_postgres
start_redis
export LATCHGATE_TEST_POSTGRES=$POSTGRES_URL LATCHGATE_TEST_REDIS=$REDIS_URL

# tests_of PATCH...: the commands that the patches name.
tests_of() { sed -n 's/^Noticed by: //p' "$@" | sort -u; }

# run SECONDS COMMAND: fails if the tests fail. They are built before.
run() {
    local command
    read -ra command <<<"$2"
    "${command[@]}" --locked --no-run &>"$SCRATCH/run.log" || { cat "$SCRATCH/run.log" >&2 && die "this does not compile"; }
    SIMULATION_SECONDS=$1 timeout $(($1 + 200)) "${command[@]}" --locked -- --nocapture &>"$SCRATCH/run.log"
}

# said: what the tests of the last run said, in a line.
said() {
    grep -m 1 -aoE '^BROKEN: .*' "$SCRATCH/run.log" | cut -c 9-140 && return
    grep -aoE '^test .*FAILED' "$SCRATCH/run.log" | awk '{ print $2 }' | cut -c 1-130 | sort -u | xargs
}

row() { printf '%-34s %-38s %7s  %s\n' "$@"; }

# Without a defect, nothing fails.
mapfile -t tests < <(tests_of "${names[@]/#/$patches/}")
for test in "${tests[@]}"; do
    run 15 "$test" || { cat "$SCRATCH/run.log" >&2 && die "without a defect, this fails: $test"; }
    grep -qaE '^test result: ok\. [1-9]' "$SCRATCH/run.log" || die "there is no such test: $test"
done

missed=0
row DEFECT "NOTICED BY" SECONDS "WHAT THAT SAYS"
for name in "${names[@]}"; do
    git checkout --quiet .
    git apply "$patches/$name"
    mapfile -t tests < <(tests_of "$patches/$name")
    for test in "${tests[@]}"; do
        began=$SECONDS
        if run "$each" "$test"; then
            row "${name%.patch}" nothing $((SECONDS - began)) "$test"
            ((missed += 1))
        else
            row "${name%.patch}" "${test##* }" $((SECONDS - began)) "$(said)"
        fi
    done
done
((missed == 0)) || die "$missed tests notice nothing"
say "each of ${#names[@]} defects is noticed"
