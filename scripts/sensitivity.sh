#!/usr/bin/env bash
# Shows that tests notice defects. Builds once with the feature `broken`, and runs the tests with one defect of
# service/core/src/broken.rs after the other until one fails: first the simulations, then the tests against real stores.
#
#   scripts/sensitivity.sh [NAME...]    these defects; all of them without a name
#
# SECONDS_EACH=100 is how long each kind of simulation runs for one defect at most. Prints a table: the defect, the tests that
# noticed it, after how many seconds, and what they said. Fails if a defect is not noticed, or if the build without one fails.
source "$(dirname "$0")/lib.sh"

# Apart from the builds that other scripts use: a defect must not get into them.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sensitivity
each=${SECONDS_EACH:-100}
names=("$@")
((${#names[@]} > 0)) || mapfile -t names < <(sed -n '/^defects! {/,/^}/s/^    \([A-Z][A-Za-z]*\),$/\1/p' service/core/src/broken.rs)

# The defects that a simulation with stores in memory cannot have, or that stores have each for itself, and a test that must fail.
declare -A stores=(
    [VersionCheck]="store_conformance a_stale_change_is_refused"
    [EpochCheck]="store_conformance a_commit_in_another_epoch_writes_nothing"
    [StaleEpoch]="store_conformance a_commit_in_another_epoch_writes_nothing"
    [ClockGuard]="store_conformance a_commit_with_a_wrong_clock_writes_nothing"
    [DecisionWithoutCompare]="store_conformance exactly_one_of_racing_changes_of_the_record_wins"
    [GuardWithoutRowLock]="http until_a_guarded_transaction_ends_no_other_client_gets_the_lock"
)

ensure_packages cc jq pgbouncer postgres redis
start_postgres
start_redis
export LATCHGATE_TEST_POSTGRES=$POSTGRES_URL LATCHGATE_TEST_REDIS=$REDIS_URL

declare -A binaries
while read -r name path; do binaries[$name]=$path; done < <(
    cargo test --locked -p latchgate --features broken --no-run --message-format json --test simulation --test store_conformance --test http |
        jq -r 'select(.executable and .profile.test) | "\(.target.name) \(.executable)"'
)

kinds=(every_seed_keeps_the_promises every_seed_of_a_pair every_seed_of_the_gate)

# run DEFECT SECONDS BINARY FILTER
run() {
    (cd service/server && LATCHGATE_BROKEN=$1 SIMULATION_SECONDS=$2 timeout $(($2 + 60)) "${binaries[$3]}" "$4" --nocapture) >"$SCRATCH/run.log" 2>&1
}

# said: what the tests of the last run said, in a line.
said() {
    grep -m 1 -aoE '^BROKEN: .*' "$SCRATCH/run.log" | cut -c 9-140 && return
    grep -aoE '^test .*FAILED' "$SCRATCH/run.log" | awk '{ print $2 }' | cut -c 1-130 | sort -u | xargs
}

missed=0
row() { printf '%-28s %-28s %7s  %s\n' "$@"; }
row DEFECT "NOTICED BY" SECONDS "WHAT THAT SAYS"

# look DEFECT SECONDS "BINARY FILTER"...: runs these tests until one fails, and prints that.
look() {
    local name=$1 seconds=$2 began=$SECONDS suite filter
    shift 2
    for test in "$@"; do
        read -r suite filter <<<"$test"
        if ! run "$name" "$seconds" "$suite" "$filter"; then
            row "${name:-none}" "${filter:0:28}" $((SECONDS - began)) "$(said)"
            return
        fi
    done
    row "${name:-none}" nothing $((SECONDS - began)) ""
    return 1
}

# Without a defect, nothing fails.
! look "" 15 "${kinds[@]/#/simulation }" "${stores[@]}" || die "a test fails without a defect"

for name in "${names[@]}"; do
    [[ $name == GuardWithoutRowLock ]] || look "$name" "$each" "${kinds[@]/#/simulation }" || ((missed += 1))
    [[ -z ${stores[$name]-} ]] || look "$name" "$each" "${stores[$name]}" || ((missed += 1))
done
((missed == 0)) || die "$missed defects are not noticed"
say "each of ${#names[@]} defects is noticed"
