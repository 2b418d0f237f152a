#!/usr/bin/env bash
# Measures one node on a private Postgres (fsync on) beside an HTTP handler that only parses and answers, in one run.
# Arguments go to `latchgate-bench compare`: scripts/bench.sh --runs 5 --seconds 20 --json
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl postgres
cargo build --release --locked -p latchgate -p latchgate-bench
bin=${CARGO_TARGET_DIR:-target}/release

# Each waiter is a connection: one descriptor here and one in the node.
ulimit -n "$(ulimit -Hn)"

# Linux shares the processors out among sessions before it does among processes (sched_autogroup). With three servers in
# sessions of their own, what is measured is that.
ONE_SESSION=yes

start_postgres

# A fresh server makes and zero-fills each segment of its log when it first comes to it, which one that has run for a
# while does not: it writes over old ones. Let it have them.
age_postgres() {
    local sql=("alter system set min_wal_size = '1GB'" "select pg_reload_conf()") segment
    for ((segment = 0; segment < 60; segment++)); do
        sql+=("select pg_logical_emit_message(false, 'bench', '')" "select pg_switch_wal()")
    done
    printf '%s;\n' "${sql[@]}" "checkpoint" | "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" >/dev/null
}
age_postgres

# What a history costs besides: HISTORY=on scripts/bench.sh
start_http latchgate "$bin/latchgate" serve --locks "$POSTGRES_URL" --history "${HISTORY:-off}"
subject=$HTTP_URL
start_http floor "$bin/latchgate-bench" floor-server
floor=$HTTP_URL

"$bin/latchgate-bench" compare --subject "$subject" --floor "$floor" "$@"
