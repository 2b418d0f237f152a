#!/usr/bin/env bash
# Starts a cluster of its own with scripts/cluster.sh, uses it through nginx, kills parts of it, and takes it down.
# CLUSTER_BINARY is a built `latchgate`; if absent, cargo builds one.
source "$(dirname "$0")/lib.sh"

ensure_packages curl jq
export CLUSTER_DIR=$SCRATCH/cluster TMPDIR=$SCRATCH

leave() {
    scripts/cluster.sh down 2>/dev/null || true
    stop_all
}
trap leave EXIT

cluster() {
    scripts/cluster.sh "$@" >"$SCRATCH/cluster.log" 2>&1 || die "cluster.sh $*: $(cat "$SCRATCH/cluster.log")"
    # shellcheck disable=SC1091 # made by the line above
    [[ $1 != up ]] || source "$CLUSTER_DIR/urls"
}

# ask STATUS METHOD PATH [BODY]: through nginx, on a connection of its own; prints the answer.
ask() {
    local answer status
    answer=$(curl -s -m 60 -w '\n%{http_code}' -X "$2" "$NGINX$3" -d "${4-}")
    status=${answer##*$'\n'}
    answer=${answer%$'\n'*}
    [[ $status == "$1" ]] || die "$2 $3 ${4-}: $status where $1 was expected: $answer"
    printf '%s\n' "$answer"
}

# until_waiting KEY N: until the nodes report N waiters.
until_waiting() {
    local deadline=$((SECONDS + 30)) node waiters
    while ((SECONDS < deadline)); do
        for node in "$NODE_1" "$NODE_2" "$NODE_3"; do
            waiters=$(curl -s "$node/v1/locks/$1" | jq .waiters)
            [[ $waiters != "$2" ]] || return 0
        done
        sleep 0.05
    done
    die "$1 does not get $2 waiters"
}

release() {
    ask 200 POST "/v1/locks/$1/release" "{\"lease_id\":\"$2\"}" >/dev/null
}

kill_part() {
    local pid
    read -r _ pid _ <"$CLUSTER_DIR/$1.pid"
    end_process KILL "$pid"
}

a_waiter_gets_what_another_connection_releases() {
    local key=$1 lease waiter
    lease=$(ask 200 POST "/v1/locks/$key/acquire" | jq -r .lease_id)
    ask 423 POST "/v1/locks/$key/acquire" >/dev/null
    ask 200 POST "/v1/locks/$key/acquire" '{"wait_ms":50000}' >"$SCRATCH/granted" &
    waiter=$!
    until_waiting "$key" 1
    release "$key" "$lease"
    wait "$waiter"
    release "$key" "$(jq -r .lease_id "$SCRATCH/granted")"
}

a_waiter_that_hangs_up_leaves_the_queue() {
    local lease waiter
    lease=$(ask 200 POST /v1/locks/left/acquire | jq -r .lease_id)
    curl -s -o /dev/null -X POST "$NGINX/v1/locks/left/acquire" -d '{"wait_ms":50000}' &
    waiter=$!
    until_waiting left 1
    kill "$waiter"
    wait "$waiter" || true
    until_waiting left 0
    release left "$lease"
}

keys_and_bodies_pass_as_they_are() {
    local key text
    key=$(ask 200 POST '/v1/locks/a%2F%2Fb%20%C3%BC/c/acquire' | jq -r .key)
    [[ $key == 'a//b ü/c' ]] || die "the key has become $key"
    ask 423 POST '/v1/locks/a//b%20%c3%bc%2Fc/acquire' >/dev/null
    ask 200 POST "/v1/locks/$(printf '%%C3%%BC%.0s' {1..256})/acquire" >/dev/null
    # The longest body that a node takes, and one byte more.
    local frame='{"operation":"o","contents":""}' length
    for length in 131072 131073; do
        text=$(printf "%$((length - ${#frame}))s" '')
        echo -n "${frame/\"\"/\"$text\"}" >"$SCRATCH/body.$length"
    done
    ask 200 POST /v1/operations/preview "@$SCRATCH/body.131072" >/dev/null
    code_is body-too-large "$(ask 413 POST /v1/operations/preview "@$SCRATCH/body.131073")"
    for length in 576000 576001; do
        text=$(printf "%$((length - 13))s" '')
        echo -n "{\"leases\":[]$text}" >"$SCRATCH/body.$length"
    done
    code_is invalid-request "$(ask 400 POST /v1/leases/renew "@$SCRATCH/body.576000")"
    code_is body-too-large "$(ask 413 POST /v1/leases/renew "@$SCRATCH/body.576001")"
}

code_is() {
    [[ $(jq -r .code <<<"$2") == "$1" ]] || die "the code is not $1: $2"
}

the_gate_refuses_what_is_running() {
    local claim id
    claim=$(ask 201 POST /v1/operations/pre '{"operation":"charge","contents":{"order":42}}')
    id=$(jq -r .id <<<"$claim")
    code_is operation-in-progress "$(ask 409 POST /v1/operations/pre '{"operation":"charge","contents":{"order":42}}')"
    ask 200 POST "/v1/operations/$id/post" "{\"stamp\":$(jq .stamp <<<"$claim"),\"outcome\":\"success\"}" >/dev/null
    code_is operation-duplicate "$(ask 409 POST /v1/operations/pre '{"operation":"charge","contents":{"order":42}}')"
    ask 200 DELETE "/v1/operations/$id" >/dev/null
}

a_client_does_not_choose_its_address_in_audit_records() {
    curl -s -m 60 -o /dev/null -X DELETE -H 'X-Forwarded-For: 203.0.113.9' "$NGINX/v1/locks/audited"
    grep -h audited "$CLUSTER_DIR"/node-?.log >"$SCRATCH/audited" || die "there is no audit record"
    ! grep -F 203.0.113.9 "$SCRATCH/audited" || die "a client has chosen its address"
}

a_killed_node_is_not_missed() {
    local lease i
    lease=$(ask 200 POST /v1/locks/kept/acquire '{"ttl_ms":300000}' | jq -r .lease_id)
    kill_part node-2
    # If nginx cannot connect to a node, it tries the next one, for any key.
    for i in {1..30}; do ask 200 POST "/v1/locks/after-$i/acquire" >/dev/null; done
    ask 423 POST /v1/locks/kept/acquire >/dev/null
    cluster up
    release kept "$lease"
}

without_nodes_nginx_answers_with_a_problem() {
    local node
    for node in node-1 node-2 node-3; do kill_part "$node"; done
    code_is outcome-unknown "$(ask 503 POST /v1/locks/unserved/acquire)"
    code_is outcome-unknown "$(ask 503 DELETE /v1/operations/unserved)"
    kill_part nginx
    cluster up
    ask 200 POST /v1/locks/unserved/acquire >/dev/null
}

grants_survive_restarts_of_all_servers() {
    local part lease
    lease=$(ask 200 POST /v1/locks/outlives/acquire '{"ttl_ms":300000}' | jq -r .lease_id)
    ask 201 POST /v1/operations/pre '{"operation":"charge","contents":"outlives","ttl_ms":600000}' >/dev/null
    # All but nginx: without any running part, the cluster's data would be removed.
    for part in redis postgres node-1 node-2 node-3; do kill_part "$part"; done
    cluster up
    ask 423 POST /v1/locks/outlives/acquire >/dev/null
    code_is operation-in-progress "$(ask 409 POST /v1/operations/pre '{"operation":"charge","contents":"outlives"}')"
    release outlives "$lease"
}

nothing_is_left() {
    local room
    room=$(readlink -f "$CLUSTER_DIR")
    cluster down
    [[ ! -e $room && ! -L $CLUSTER_DIR ]] || die "there is still something in $room"
    if find /proc/[0-9]*/fd/1 -lname "$room/*" 2>/dev/null | grep .; then die "something still runs"; fi
}

# nginx is on this machine.
export LATCHGATE_TRUSTED_PROXIES=127.0.0.0/8
cluster up
a_waiter_gets_what_another_connection_releases by-key
a_waiter_that_hangs_up_leaves_the_queue
keys_and_bodies_pass_as_they_are
the_gate_refuses_what_is_running
a_client_does_not_choose_its_address_in_audit_records
a_killed_node_is_not_missed
without_nodes_nginx_answers_with_a_problem
grants_survive_restarts_of_all_servers
cluster up --balance round_robin
for i in 1 2 3; do a_waiter_gets_what_another_connection_releases "round-robin-$i"; done
nothing_is_left
say "the cluster passes its tests"
