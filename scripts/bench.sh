#!/usr/bin/env bash
# Measures on a private Postgres (fsync on), as ratios in one run.
#
#   scripts/bench.sh [ARGS]            one node beside an HTTP handler that only parses and answers
#   scripts/bench.sh handoffs [ARGS]   three nodes: a lock that passes from node to node, beside one whose waiters are at one node
#
# Arguments go to `latchgate-bench compare` and `compare-handoffs`: scripts/bench.sh --runs 5 --seconds 20 --json
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl postgres
cargo build --release --locked -p latchgate -p latchgate-bench
bin=${CARGO_TARGET_DIR:-target}/release

# Each waiter is a connection: one descriptor in the client and one in the node.
ulimit -n "$(ulimit -Hn)"

# Linux distributes the processors among sessions before processes (sched_autogroup). Servers in sessions of their own would distort
# the measurement.
ONE_SESSION=yes

start_postgres

# A new server creates and zero-fills each segment of its write-ahead log; a server that has run for a while overwrites old segments.
# This makes the old segments.
age_postgres() {
    local sql=("alter system set min_wal_size = '1GB'" "select pg_reload_conf()") segment
    for ((segment = 0; segment < 60; segment++)); do
        sql+=("select pg_logical_emit_message(false, 'bench', '')" "select pg_switch_wal()")
    done
    printf '%s;\n' "${sql[@]}" "checkpoint" | "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" >/dev/null
}
age_postgres

# start_node NAME: without history; HISTORY=on scripts/bench.sh measures with it.
start_node() {
    start_http "$1" "$bin/latchgate" serve --locks "$POSTGRES_URL" --history "${HISTORY:-off}"
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

start_node latchgate
subject=$HTTP_URL
start_http floor "$bin/latchgate-bench" floor-server
floor=$HTTP_URL

"$bin/latchgate-bench" compare --subject "$subject" --floor "$floor" "$@"
