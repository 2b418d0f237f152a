#!/usr/bin/env bash
# Fail-overs of Postgres with asynchronous replication, in the cluster of `make cluster-ha`: nothing is granted until the hold-off ends, and an
# operator can end it. `scripts/chaos.sh --on ha` has the fail-overs with synchronous replication, and everything else.
#
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   TESTKIT_BINARY   a `latchgate-testkit`, likewise
source "$(dirname "$0")/lib.sh"
source scripts/chaos/clients.sh

export CLUSTER_DIR=$SCRATCH/cluster TMPDIR=$SCRATCH
# Longest recovery in s: Patroni replaces a primary that does not answer after 20 s.
RECOVERY_MAX=120
# Hold-offs last as long.
export LATCHGATE_TTL_MAX=60s

leave() {
    local code=$?
    if ((code != 0)) && [[ -n ${KEEP_LOGS-} ]]; then
        mkdir -p "$KEEP_LOGS"
        cp "$SCRATCH"/*.log "$ROOM"/*.log "$KEEP_LOGS" || true
    fi
    touch "$SCRATCH/over"
    scripts/cluster.sh down 2>/dev/null || true
    stop_all
}
trap leave EXIT

# cluster_up: starts the parts that are not running, and waits until all standbys follow.
cluster_up() {
    scripts/cluster.sh up --ha-asynchronous >"$SCRATCH/cluster.log" 2>&1 || die "cluster.sh: $(cat "$SCRATCH/cluster.log")"
    # shellcheck disable=SC1091 # made by the line above
    source "$CLUSTER_DIR/urls"
    ROOM=$(readlink "$CLUSTER_DIR")
}

# kill_primary: Postgres and its Patroni.
kill_primary() {
    local n url
    for n in 1 2 3; do
        url=PATRONI_$n
        if curl -fs -m 0.5 -o /dev/null "${!url}/primary"; then
            kill -KILL "$(pid_of "patroni-$n")" "$(head -n 1 "$ROOM/servers/patroni-$n/data/postmaster.pid")" && return
        fi
    done
    die "there is no primary"
}

# hold_off_ms: for how long no lock is granted; nothing if the node does not answer.
hold_off_ms() { curl -s -m 5 "$NODE_1/v1/admin/engines" | jq .locks.hold_off_ms; }

until_holding_off() {
    local left deadline=$((SECONDS + RECOVERY_MAX))
    until left=$(hold_off_ms) && [[ -n $left && $left != null ]] && ((left > 0)); do
        ((SECONDS < deadline)) || die "there is no hold-off"
        sleep 0.1
    done
    say "a hold-off of $left ms"
}

until_acquired() {
    local answer deadline=$((SECONDS + RECOVERY_MAX))
    until answer=$(acquire "$1" "{\"lease_id\":\"of-$1\"}") && [[ $(jq .token <<<"$answer") != null ]]; do
        ((SECONDS < deadline)) || die "$1 is not granted: $answer"
        sleep 0.1
    done
    echo "$answer"
}

# refused_in_hold_off KEY: a node that has not reached the new primary yet refuses for that reason. None grants.
refused_in_hold_off() {
    local answer deadline=$((SECONDS + 20))
    until answer=$(acquire "$1" "") && [[ $(jq -r .code <<<"$answer") == lock-delayed ]]; do
        [[ $(jq -r .code <<<"$answer") == store-unavailable ]] && ((SECONDS < deadline)) || die "not refused in a hold-off: $answer"
        sleep 0.1
    done
}

cluster_up
say "three servers with asynchronous replication are up; recording"
record "$NGINX"
killed_ms=$(now_ms)
kill_primary
until_holding_off
refused_in_hold_off during-the-hold-off
until_acquired after-the-hold-off >"$SCRATCH/granted"
granted_ms=$(now_ms)
((granted_ms - killed_ms >= 60000)) || die "granted $((granted_ms - killed_ms)) ms after the fault"
RECOVERY_MAX=120 until_as_before "the hold-off"
stop_recording
declare_loss "$killed_ms"
check_histories
summarise

# Without load, because an operator who ends a hold-off takes the risk of two holders.
cluster_up
kill_primary
until_holding_off
left=$(curl -s -m 10 -X POST "$NGINX/v1/admin/hold-off" -d '{"for_ms":30000}' | jq .hold_off_ms)
((left <= 30000)) || die "the hold-off was not shortened: $left"
refused_in_hold_off refused
(unset "${!LATCHGATE_@}" && "$CLUSTER_BINARY" engines hold-off --beside-store --locks "$LOCKS" --for 0) || die "latchgate engines hold-off fails"
answer=$(until_acquired ended-by-an-operator)
(($(jq .forced_ms <<<"$answer") > 0)) || die "the grant does not say that the hold-off was ended: $answer"
say "nothing is granted while a lost lease may be live"
