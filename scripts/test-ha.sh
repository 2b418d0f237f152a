#!/usr/bin/env bash
# Fail-overs in the cluster of `make cluster-ha`, while clients take and release locks through nginx.
#
# With synchronous replication: no lease is lost, no lock has two holders, no durable operation is forgotten, and locks are granted
# again soon after Patroni has a primary. With asynchronous replication: nothing is granted until the hold-off ends, and an operator
# can end it.
#
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   TESTKIT_BINARY   a `latchgate-testkit`, likewise
source "$(dirname "$0")/lib.sh"
source scripts/chaos/clients.sh

export CLUSTER_DIR=$SCRATCH/cluster TMPDIR=$SCRATCH
# Longest recovery in s: Patroni replaces a primary that does not answer after 20 s.
RECOVERY_MAX=120
# Longest time in ms from the first commit on the new primary to a grant. It is about a second; the bound is for a busy machine.
GRANT_MAX=20000
LEASES=20
SAMPLES=$SCRATCH/samples
COMMITS=$SCRATCH/commits
PROBES=$SCRATCH/probes
# The faults, and which of them were followed by a new primary.
FAULTS=() BEGAN=() PROMOTIONS=()

leave() {
    local code=$?
    if ((code != 0)) && [[ -n ${KEEP_LOGS-} ]]; then
        mkdir -p "$KEEP_LOGS"
        cp "$SCRATCH"/*.log "$ROOM"/*.log "$KEEP_LOGS" || true
    fi
    touch "$SCRATCH/over"
    resume_all
    scripts/cluster.sh down 2>/dev/null || true
    stop_all
}
trap leave EXIT

# cluster up ARGUMENT: starts the parts that are not running, and waits until all standbys follow; cluster down.
cluster() {
    scripts/cluster.sh "$@" >"$SCRATCH/cluster.log" 2>&1 || die "cluster.sh $*: $(cat "$SCRATCH/cluster.log")"
    [[ $1 == up ]] || return 0
    # shellcheck disable=SC1091 # made by the line above
    source "$CLUSTER_DIR/urls"
    ROOM=$(readlink "$CLUSTER_DIR")
}

in_background() {
    "$@" &
    LOOPS+=($!)
}

# primary: the number of the server that is the primary, and nothing if there is none.
primary() {
    local n url
    for n in 1 2 3; do
        url=PATRONI_$n
        if curl -fs -m 0.5 -o /dev/null "${!url}/primary"; then echo "$n" && return; fi
    done
}

# sample_loop: writes the number of the primary again and again, each time after the time at which it began to ask.
sample_loop() {
    local before
    while again; do
        before=$(now_ms)
        echo "$before $(primary)" >>"$SAMPLES"
    done
}

# commit_loop: commits to Postgres; enters the times. In synchronous mode a new primary commits when a standby follows it.
commit_loop() {
    timeout 10 "$(postgres_bin)/psql" -X -q "$LOCKS" -c 'create table commits (at timestamptz)'
    while again; do
        timeout 3 "$(postgres_bin)/psql" -X -q "$LOCKS" -c 'insert into commits values (now())' >/dev/null 2>&1 && now_ms >>"$COMMITS"
    done
    return 0
}

# probe_loop: takes a free lock and releases it; enters the times of grants.
probe_loop() {
    local lease
    while again; do
        lease=$(curl -sf -m 2 -X POST "$NGINX/v1/locks/probe/acquire" -d '{"ttl_ms":500}' | jq -r .lease_id) || continue
        now_ms >>"$PROBES"
        curl -sf -m 2 -o /dev/null -X POST "$NGINX/v1/locks/probe/release" -d "{\"lease_id\":\"$lease\"}" || true
    done
}

# take_leases: long leases, which must survive every fault.
take_leases() {
    local n
    for ((n = 1; n <= LEASES; n++)); do
        curl -sf -m 5 -X POST "$NGINX/v1/locks/kept-$n/acquire" -d '{"ttl_ms":1800000}' >"$SCRATCH/lease-$n" ||
            die "kept-$n is not granted"
    done
}

# leases_are_kept FAULT: renews all of them; the tokens must be as before.
leases_are_kept() {
    local n answer deadline=$((SECONDS + RECOVERY_MAX))
    for ((n = 1; n <= LEASES; n++)); do
        until answer=$(jq '{lease_id}' "$SCRATCH/lease-$n" | curl -s -m 5 -X POST "$NGINX/v1/locks/kept-$n/renew" -d @-) &&
            [[ $(jq .token <<<"$answer") == $(jq .token "$SCRATCH/lease-$n") ]]; do
            [[ $(jq .status <<<"$answer") =~ ^(|5..)$ ]] || die "after $1, a lease is lost: $answer"
            ((SECONDS < deadline)) || die "after $1, a lease cannot be renewed: $answer"
            sleep 0.2
        done
    done
}

# fault NAME COMMAND...: until all is as before, with every part restarted.
fault() {
    begin_fault "$1"
    FAULTS+=("$1") BEGAN+=("$BEGAN_MS")
    "${@:2}"
    until_as_before "$1"
    leases_are_kept "$1"
    # A stopped process goes on, and a killed one is started again.
    resume_all
    cluster up "$KIND"
    until_as_before "the end of $1"
    end_fault
    say "    ${LONGEST[0]} ms without a grant of a key, ${LONGEST[1]} ms without an operation"
}

# promotion NAME COMMAND...: a fault after which another server must be the primary.
promotion() {
    local before
    before=$(primary)
    [[ -n $before ]] || die "there is no primary before $1"
    PROMOTIONS+=("${#FAULTS[@]}")
    fault "$1" promotes "$before" "${@:2}"
}

promotes() {
    local deadline=$((SECONDS + RECOVERY_MAX)) now
    "${@:2}" "$1"
    until now=$(primary) && [[ -n $now && $now != "$1" ]]; do
        ((SECONDS < deadline)) || die "there is no new primary"
        sleep 0.1
    done
}

postmaster_of() { head -n 1 "$CLUSTER_DIR/servers/patroni-$1/data/postmaster.pid"; }

kill_postgres() { kill -KILL "$(postmaster_of "$1")"; }

kill_patroni() { kill -KILL "$(pid_of "patroni-$1")"; }

kill_server() { kill_patroni "$1" && kill_postgres "$1"; }

# isolate N: neither Patroni nor Postgres answers, but no connection is closed.
isolate() {
    # shellcheck disable=SC2046 # one word for each process
    pause "$(pid_of "patroni-$1")" $(with_children "$(postmaster_of "$1")")
}

# switch_over N: to whichever standby Patroni may promote.
switch_over() {
    local url=PATRONI_$1
    curl -sf -m 60 -o /dev/null -X POST "${!url}/switchover" -d "{\"leader\":\"patroni-$1\"}" || die "Patroni refuses the switchover"
}

lose_etcd_member() { kill -KILL "$(pid_of "etcd-$1")"; }

# The synchronous standby: commits wait until Patroni has chosen the other one.
lose_synchronous_standby() {
    local n url
    for n in 1 2 3; do
        url=PATRONI_$n
        if curl -fs -m 2 -o /dev/null "${!url}/synchronous"; then kill_server "$n" && return; fi
    done
    die "there is no synchronous standby"
}

redis_master() { redis-cli -p "$SENTINEL" sentinel get-master-addr-by-name latchgate | tail -n 1; }

fail_over_redis() {
    local before n deadline=$((SECONDS + RECOVERY_MAX))
    before=$(redis_master)
    for n in 1 2 3; do
        if grep -qx "redis-$n $before" "$CLUSTER_DIR/ports"; then kill -KILL "$(pid_of "redis-$n")"; fi
    done
    until [[ $(redis_master) != "$before" ]]; do
        ((SECONDS < deadline)) || die "the Sentinels choose no new master"
        sleep 0.1
    done
    declare_loss "$BEGAN_MS"
}

# grants_after_promotions: prints for each promotion when there was a new primary, when it committed, and how much later a lock was
# granted.
grants_after_promotions() {
    local index from to ready committed granted row='%-36s  %12s  %12s  %12s\n'
    # shellcheck disable=SC2059 # the format is a variable
    printf "$row" "in ms, from the fault to" "a primary" "a commit" "+ a grant"
    for index in "${PROMOTIONS[@]}"; do
        from=${BEGAN[index]} to=${BEGAN[index + 1]:-$(now_ms)}
        ready=$(awk -v from="$from" -v to="$to" '
            $2 == "" || $1 >= to { next }
            $1 < from { old = $2; next }
            $2 != old { print $1; exit }' "$SAMPLES")
        committed=$(first_from "${ready:-$to}" "$COMMITS")
        granted=$(first_from "${committed:-$to}" "$PROBES")
        [[ -n $granted ]] || die "after ${FAULTS[index]}, nothing was granted"
        # shellcheck disable=SC2059
        printf "$row" "${FAULTS[index]}" $((ready - from)) $((committed - from)) $((granted - committed))
        ((granted - committed <= GRANT_MAX)) || die "after ${FAULTS[index]}, the first grant was late"
    done
}

# first_from MS FILE: the first of the times in the file that is not before MS.
first_from() { awk -v from="$1" '$1 >= from { print $1; exit }' "$2"; }

synchronous() {
    local n
    KIND=--ha
    cluster up "$KIND"
    say "three servers with synchronous replication are up; recording"
    take_leases
    in_background sample_loop
    in_background commit_loop
    in_background probe_loop
    record "$NGINX"
    promotion "kill -9 of the primary" kill_postgres
    promotion "kill -9 of its Patroni" kill_patroni
    promotion "an isolated primary" isolate
    promotion "kill -9 of both" kill_server
    promotion "a planned switchover" switch_over
    fault "loss of the synchronous standby" lose_synchronous_standby
    for n in 1 2 3; do fault "loss of etcd-$n" lose_etcd_member "$n"; done
    fault "fail-over of Redis" fail_over_redis
    fault "kill -9 of a node" kill -KILL "$(pid_of node-3)"
    stop_recording

    check_histories
    for n in 1 2 3; do
        # The gate holds off after the fail-over of its Redis.
        if grep -F HOLD-OFF "$CLUSTER_DIR/node-$n.log" | grep -vF 'engine="redis"'; then die "node-$n held off"; fi
    done
    echo
    grants_after_promotions
    summarise
    cluster down
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

asynchronous() {
    local killed_ms granted_ms answer left
    KIND=--ha-asynchronous
    # A history of its own: leases of the last cluster are gone.
    HISTORY=$SCRATCH/asynchronous
    rm "$SCRATCH"/done*
    cluster up "$KIND"
    say "three servers with asynchronous replication are up; recording"
    record "$NGINX"
    killed_ms=$(now_ms)
    kill_server "$(primary)"
    until_holding_off
    refused_in_hold_off during-the-hold-off
    until_acquired after-the-hold-off >"$SCRATCH/granted"
    granted_ms=$(now_ms)
    # The longest lease in use is shorter, but a hold-off lasts at least a minute.
    ((granted_ms - killed_ms >= 60000)) || die "granted $((granted_ms - killed_ms)) ms after the fault"
    RECOVERY_MAX=120 until_as_before "the hold-off"
    stop_recording
    expect_lost_leases
    check_histories
    summarise

    # Without load, because an operator who ends a hold-off takes the risk of two holders.
    cluster up "$KIND"
    kill_server "$(primary)"
    until_holding_off
    left=$(curl -s -m 10 -X POST "$NGINX/v1/admin/hold-off" -d '{"for_ms":30000}' | jq .hold_off_ms)
    ((left <= 30000)) || die "the hold-off was not shortened: $left"
    refused_in_hold_off refused
    (unset "${!LATCHGATE_@}" && "$CLUSTER_BINARY" engines hold-off --beside-store --locks "$LOCKS" --for 0) || die "latchgate engines hold-off fails"
    answer=$(until_acquired ended-by-an-operator)
    (($(jq .forced_ms <<<"$answer") > 0)) || die "the grant does not say that the hold-off was ended: $answer"
    cluster down
}

synchronous
asynchronous
say "the cluster fails over as promised"
