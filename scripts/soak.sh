#!/usr/bin/env bash
# A long run of everything at once, with faults all the time: three nodes on Postgres and Redis behind nginx, and a node on SQLite.
# Nodes, Redis and nginx are killed, nodes and Postgres are paused, connections to Postgres are terminated, and disks are full. At
# the end nothing may be left: no lease of a client that has gone, no waiter, no idle key, no operation that stays, no more memory,
# files and descriptors than after the first minutes. No lock may ever have had holders that exclude each other.
#
#   scripts/soak.sh [--minutes N]   (30)
#
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   TESTKIT_BINARY   a `latchgate-testkit`, likewise
#   SOAK_SEED        repeats the faults of an earlier run
#
# Disks are filled only as root: the data is then on file systems in memory.
source "$(dirname "$0")/recording.sh"

MINUTES=30
case "${1-} ${2-}" in
    " ") ;;
    "--minutes "[1-9]*) MINUTES=$2 ;;
    *) die "usage: scripts/soak.sh [--minutes N]" ;;
esac
SOAK_SEED=${SOAK_SEED:-$RANDOM}
RANDOM=$SOAK_SEED

KEYS=4
CLIENTS=8
# Longest recovery after a fault, in s: a killed Postgres may have much to replay, on a busy machine.
RECOVERY_MAX=60
# Longest time in s until everything is gone at the end. Idle keys and histories are kept for a minute.
GONE_MAX=300
# The least that nodes accept, so that the collection has work.
export LATCHGATE_IDLE_RETENTION=60s LATCHGATE_HISTORY_RETENTION=60s LATCHGATE_RETENTION_DEFAULT=30s
# Longest time in s until the record of an operation goes: a day, rounded up to an hour.
OPERATION_MAX=93600
# How much a node's memory may grow after the first minutes, in KiB.
RSS_GROWTH_MAX=65536
# And a file of SQLite, or the table of the locks with its indexes, in KiB.
FILE_GROWTH_MAX=32768
DISK=$SCRATCH/disk
SQLITE_DISK=$SCRATCH/sqlite-disk
MIXED=()

mount_disks() {
    mkdir "$DISK" "$SQLITE_DISK"
    if [[ $(id -u) != 0 ]] || ! mount -t tmpfs -o size=1536m,mode=711 latchgate "$DISK" 2>/dev/null; then
        say "no file systems can be mounted here: disks will not be full"
        DISKS=
        return
    fi
    DISKS=yes
    mount -t tmpfs -o size=96m latchgate "$SQLITE_DISK"
    # The cluster's data.
    export TMPDIR=$DISK
}

# Called when the script ends.
before_removal() {
    local disk
    for disk in "$DISK" "$SQLITE_DISK"; do
        if mountpoint -q "$disk"; then umount -l "$disk"; fi
    done
}

# start_sqlite: the node on SQLite, again on the same file and port.
start_sqlite() {
    start_http sqlite "$CLUSTER_BINARY" serve --locks "sqlite:$SQLITE_DISK/latchgate.db"
    SQLITE=$HTTP_URL
}

# start_mixed NAME URLS: clients of every kind, and readers of events.
start_mixed() {
    start "mixed-$1" "$TESTKIT_BINARY" record --urls "$2" --keys 6 --clients 16 --seconds 86400 --ttl-ms 2000 --abandon-one-in 20 \
        --mix shared,permits,groups,rates,multilock,tickets,reentrant,revoke,hang-up,gate --readers 2 --out "$HISTORY-$1"
    MIXED+=("$1 $STARTED_PID")
}

query() { PGOPTIONS='-c client_min_messages=error' "$(postgres_bin)/psql" -X -q -t -A "$POSTGRES" -c "$1"; }

node_pid() { if [[ $1 == sqlite ]]; then sqlite_pid; else pid_of "$1"; fi; }

sqlite_pid() {
    local pid
    read -r _ pid _ <"$ROOM/sqlite.pid"
    echo "$pid"
}

## Faults. Each returns when the cause is gone.

kill_a_node() { kill_part "node-$((RANDOM % 3 + 1))"; }

kill_nginx() { kill_part nginx; }

kill_redis() { kill_part redis; }

# `pg_ctl stop -m immediate`: the start is a recovery from a crash.
kill_postgres() { end_process QUIT "$(pid_of postgres)"; }

kill_part() { end_process KILL "$(pid_of "$1")"; }

kill_sqlite() {
    local pid
    pid=$(sqlite_pid)
    end_process KILL "$pid"
    # Without this, bash reports the end of its child.
    wait "$pid" 2>/dev/null || true
    start_sqlite
}

pause_a_node() {
    pause "$(pid_of "node-$((RANDOM % 3 + 1))")"
    some_time 8
    resume_all
}

pause_postgres() {
    # shellcheck disable=SC2046 # one word for each process
    pause $(processes_of "$(pid_of postgres)")
    some_time 4
    resume_all
}

terminate_backends() {
    query "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where application_name = 'latchgate' and random() < 0.7" >/dev/null
}

fill_disk() { fill "$DISK"; }

fill_sqlite_disk() { fill "$SQLITE_DISK"; }

fill() {
    fallocate -l "$(($(df --output=avail -k "$1" | tail -n 1) * 1024))" "$1/full" || true
    # What was freed in between.
    dd if=/dev/zero of="$1/rest" bs=4k status=none 2>/dev/null || true
    some_time 4
    rm -f "$1/full" "$1/rest"
}

some_time() { sleep "$((RANDOM % $1 + 1))"; }

# fault NAME: with the cluster's parts restarted as a supervisor would.
fault() {
    begin_fault "${1//_/ }"
    "$1"
    cluster_up
    until_as_before "${1//_/ }"
    until_sqlite_grants
}

until_sqlite_grants() {
    local deadline=$((SECONDS + RECOVERY_MAX))
    until curl -sf -m 5 -o /dev/null -X POST "$SQLITE/v1/locks/probe/acquire" -d '{"ttl_ms":100}'; do
        ((SECONDS < deadline)) || die "the node on SQLite grants nothing: $(tail -n 5 "$ROOM/sqlite.log")"
        sleep 0.1
    done
}

## What may not be left behind.

# measure FILE: enters memory, descriptors and file sizes.
measure() {
    local node pid
    {
        for node in node-1 node-2 node-3 sqlite; do
            pid=$(node_pid "$node")
            awk -v node="$node" '$1 == "VmRSS:" { print "rss", node, $2 }' "/proc/$pid/status"
            echo "fds $node $(find "/proc/$pid/fd" -mindepth 1 | wc -l)"
        done
        echo "file sqlite $(du -k --apparent-size -c "$SQLITE_DISK"/latchgate.db* | awk 'END { print $1 }')"
        echo "file postgres $(query "select sum(pg_total_relation_size(c.oid)) / 1024 from pg_class c
            join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'latchgate' and c.relkind = 'r'")"
    } >"$1"
}

# is_empty: no lease, no waiter, no key, no event. An operation whose client has gone is known for a day, so that a later
# attempt is told of it: none may stay longer.
is_empty() {
    local url
    LEFT=''
    for url in "$NODE_1" "$NODE_2" "$NODE_3" "$SQLITE"; do
        expect_none "leases at $url" "$(curl -s -m 5 "$url/v1/locks?held=true&limit=5" | jq -c '.locks[]?')"
        expect_none "keys at $url" "$(curl -s -m 5 "$url/v1/locks?limit=5" | jq -c '.locks[]?')"
        expect_none "waiters at $url" "$(curl -s -m 5 "$url/metrics" | awk '$1 == "latchgate_waiters" && $2 != 0')"
        expect_none "$url is not ready" "$(curl -fs -m 5 -o /dev/null "$url/readyz" || echo not ready)"
    done
    expect_none "events" "$(query 'select count(*) from latchgate.lock_events' | grep -vx 0)"
    expect_none "durable operations that stay" "$(query "select count(*) from latchgate.operations where goes_at is null or
        goes_at > (extract(epoch from now()) + $OPERATION_MAX) * 1000" | grep -vx 0)"
    expect_none "fast operations that stay" "$(fast_operations | head -n 5)"
    [[ -z $LEFT ]]
}

# fast_operations: those whose record has no end, or one that is too far away.
fast_operations() {
    local key
    while read -r key; do
        awk -v key="$key" -v max="$OPERATION_MAX" '$1 == -1 || $1 > max { print key, $1 }' <<<"$(redis-cli -p "$REDIS_PORT" ttl "$key")"
    done < <(redis-cli -p "$REDIS_PORT" --scan --pattern 'latchgate:g:*')
}

# expect_none WHAT TEXT
expect_none() {
    [[ -z $2 ]] || LEFT+="$1: $2"$'\n'
}

until_empty() {
    local deadline=$((SECONDS + GONE_MAX))
    until is_empty; do
        ((SECONDS < deadline)) || die "this is left behind: $LEFT"
        sleep 1
    done
}

# compare: prints all, and fails if memory or files have grown since the first measurement.
compare() {
    join -j 1 <(awk '{ print $1 "-" $2, $3 }' "$SCRATCH/first" | sort) <(awk '{ print $1 "-" $2, $3 }' "$SCRATCH/last" | sort) |
        tee "$SCRATCH/compared" | awk '{ printf "%-16s %10d -> %d\n", $1, $2, $3 }'
    awk -v rss="$RSS_GROWTH_MAX" -v file="$FILE_GROWTH_MAX" '
        /^rss/ && $3 > $2 + rss { grown = 1 }
        /^file/ && $3 > 2 * $2 + file { grown = 1 }
        /^fds/ && $3 > $2 + 64 { grown = 1 }
        END { exit grown }' "$SCRATCH/compared" || die "something has grown, see above (KiB, and descriptors)"
}

if [[ -z ${CLUSTER_BINARY-} ]]; then
    cargo build --release --locked -p latchgate
    CLUSTER_BINARY=${CARGO_TARGET_DIR:-target}/release/latchgate
fi
CLUSTER_BINARY=$(realpath "$CLUSTER_BINARY")
export CLUSTER_BINARY

mount_disks
cluster_up
POSTGRES=postgres://postgres@127.0.0.1:$(awk '$1 == "postgres" { print $2 }' "$CLUSTER_DIR/ports")/postgres
REDIS_PORT=$(awk '$1 == "redis" { print $2 }' "$CLUSTER_DIR/ports")
start_sqlite
say "soaking for $MINUTES minutes (SOAK_SEED=$SOAK_SEED)"
record
start_mixed cluster "$NGINX,$NODE_1,$NODE_2,$NODE_3"
start_mixed sqlite "$SQLITE"

faults=(kill_a_node kill_a_node kill_nginx kill_redis kill_postgres kill_sqlite pause_a_node pause_a_node pause_postgres
    terminate_backends terminate_backends)
[[ -z $DISKS ]] || faults+=(fill_disk fill_sqlite_disk)
end=$((SECONDS + 60 * MINUTES))
warm=$((SECONDS + 60 * MINUTES / 5))
while ((SECONDS < end)); do
    fault "${faults[RANDOM % ${#faults[@]}]}"
    if ((SECONDS > warm)) && [[ ! -e $SCRATCH/first ]]; then measure "$SCRATCH/first"; fi
    for mixed in "${MIXED[@]}"; do
        kill -0 "${mixed#* }" 2>/dev/null || die "the clients have ended: $(tail -n 3 "$SCRATCH/mixed-${mixed% *}.log")"
    done
done
[[ -e $SCRATCH/first ]] || measure "$SCRATCH/first"

say "the load ends"
stop_recording
for mixed in "${MIXED[@]}"; do kill "${mixed#* }"; done
for mixed in "${MIXED[@]}"; do
    wait "${mixed#* }" || die "clients of ${mixed% *}: $(tail -n 12 "$SCRATCH/mixed-${mixed% *}.log")"
done
for history in "$HISTORY" "$HISTORY-vanishing" "$HISTORY-cluster" "$HISTORY-sqlite"; do
    seen=$(check_history "$history")
    summarise "$seen"
    (($(jq .lost_early <<<"$seen") == 0)) || die "leases were lost before they ended: $seen"
done
until_empty
measure "$SCRATCH/last"
printf '%s\n' "${FAULTS[@]}" | sort | uniq -c
compare
say "nothing is left behind"
