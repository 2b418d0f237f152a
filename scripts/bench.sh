#!/usr/bin/env bash
# Measures on a private Postgres (fsync on), as ratios in one run.
#
#   scripts/bench.sh [ARGS]            one node beside an HTTP handler that only parses and answers
#   scripts/bench.sh handoffs [ARGS]   three nodes: a lock that passes from node to node, beside one whose waiters are at one node
#   scripts/bench.sh trouble [ARGS]    other keys while one key is in trouble: its row is locked by another session, then its state is
#                                      unreadable, then it is large
#   scripts/bench.sh cost [ARGS]       the CPU time per request that API keys cost
#   scripts/bench.sh apps [ARGS]       an app beside another one that is at its quotas
#
# Arguments go to `latchgate-bench compare`, `compare-handoffs`, `beside`, `beside-app` and `cost`:
# scripts/bench.sh --runs 5 --seconds 20 --json
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl postgres
cargo build --profile dist --locked -p latchgate -p latchgate-bench
bin=${CARGO_TARGET_DIR:-target}/dist

# Each waiter is a connection: one descriptor in the client and one in the node.
ulimit -n "$(ulimit -Hn)"

# Linux distributes the processors among sessions before processes (sched_autogroup). Servers in sessions of their own would distort
# the measurement.
ONE_SESSION=yes

start_postgres
age_postgres

# start_node NAME [ARGS]: without history; HISTORY_RETENTION=1d scripts/bench.sh measures with it.
start_node() {
    start_http "$1" "$bin/latchgate" serve --locks "$POSTGRES_URL" --history-retention "${HISTORY_RETENTION:-0}" "${@:2}"
}

if [[ ${1-} == handoffs ]]; then
    nodes=()
    for node in node-1 node-2 node-3; do
        start_node "$node"
        nodes+=("$HTTP_URL")
    done
    across=$(IFS=,; echo "${nodes[*]}")
    "$bin/latchgate-bench" compare-handoffs --same "${nodes[0]}" --across "$across" "${@:2}"
    exit
fi

if [[ ${1-} == cost ]]; then
    start_node without
    without=$HTTP_URL without_pid=$STARTED_PID
    LATCHGATE_ADMIN_API_KEY=$("$bin/latchgate" api-key generate)
    export LATCHGATE_ADMIN_API_KEY
    start_node with
    with=http://$LATCHGATE_ADMIN_API_KEY@${HTTP_URL#http://} with_pid=$STARTED_PID
    "$bin/latchgate-bench" cost --with "$with" --with-pid "$with_pid" --without "$without" --without-pid "$without_pid" "${@:2}"
    exit
fi

psql_of_bench() {
    "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" "$@"
}

if [[ ${1-} == trouble ]]; then
    start_node latchgate
    for key in slow bad; do
        curl -fsS -d '{"lease_id":"bench"}' "$HTTP_URL/v1/locks/$key/acquire" >/dev/null
        curl -fsS -d '{"lease_id":"bench"}' "$HTTP_URL/v1/locks/$key/release" >/dev/null
    done
    say "a row that another session has locked"
    start locker "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" -c begin \
        -c "select 1 from latchgate.locks where key = 'slow' for update" -c "select pg_sleep(86400)"
    row_is_locked() {
        [[ -z $(psql_of_bench -tA -c "select 1 from latchgate.locks where key = 'slow' for update skip locked") ]]
    }
    wait_until locker row_is_locked
    "$bin/latchgate-bench" beside --url "$HTTP_URL" --key slow "${@:2}"
    say "a state that cannot be decoded"
    psql_of_bench -c "update latchgate.locks set state = 'nonsense', version = version + 1 where key = 'bad'"
    "$bin/latchgate-bench" beside --url "$HTTP_URL" --key bad "${@:2}"
    say "a state of 150 leases with long metadata, and four callers"
    "$bin/latchgate-bench" beside --url "$HTTP_URL" --key large --large 30 --askers 4 --pause-ms 0 "${@:2}"
    exit
fi

if [[ ${1-} == apps ]]; then
    LATCHGATE_ADMIN_API_KEY=$("$bin/latchgate" api-key generate)
    export LATCHGATE_ADMIN_API_KEY
    start_node latchgate
    LATCHGATE_API_KEY=$LATCHGATE_ADMIN_API_KEY "$bin/latchgate-bench" beside-app --url "$HTTP_URL" "${@:2}"
    exit
fi

start_node latchgate
subject=$HTTP_URL
start_http floor "$bin/latchgate-bench" floor-server
floor=$HTTP_URL

"$bin/latchgate-bench" compare --subject "$subject" --floor "$floor" "$@"
