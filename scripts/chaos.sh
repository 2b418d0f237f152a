#!/usr/bin/env bash
# Faults of every kind at random, one alone and then several at once, while clients take locks and operations; and the check that no promise
# was broken: from what all clients saw, locks never had holders that exclude each other, tokens rose, no lease was lost that no store had lost,
# operations that were done stay done, no fault kept clients from a lock for longer than its bound, and nothing is left behind.
#
#   scripts/chaos.sh [--minutes N] [--seed S] [--only FAULT,…] [--on TARGET,…]
#
#   --minutes   in all (3)
#   --seed      repeats the choices of an earlier run, as far as processes allow
#   --only      faults whose names begin so: scripts/chaos/faults.sh has them with their bounds
#   --on        cluster: three nodes behind nginx, locks in Postgres, operations in Redis; sqlite: a node on a file; pair: three nodes on
#               Postgres and Redis as a pair of engines; ha: the stores of `make cluster-ha`. One after the other (cluster,sqlite,pair)
#
#   CLUSTER_BINARY, TESTKIT_BINARY   a built `latchgate` and `latchgate-testkit`; if absent, cargo builds them
#                                    `scripts/sensitivity.sh --crash` builds one that has the faults `crash-point …`
#   OLD_BINARY                       the release before: each target begins with it, and is upgraded first (`old binary`)
#   KEEP_LOGS                        a directory that gets logs and histories of a run that fails
#
# Disks are filled only as root: the data is then on a file system in memory.
source "$(dirname "$0")/lib.sh"
ensure_packages cc envsubst nginx postgres redis
source scripts/ha.sh
source scripts/chaos/clients.sh
source scripts/chaos/faults.sh

MINUTES=3 SEED=$RANDOM ONLY='' ON=cluster,sqlite,pair
while (($# > 0)); do
    case "$1 ${2-}" in
        "--minutes "[1-9]*) MINUTES=$2 ;;
        "--seed "[0-9]*) SEED=$2 ;;
        "--only "?*) ONLY=$2 ;;
        "--on "?*) ON=$2 ;;
        *) die "usage: scripts/chaos.sh [--minutes N] [--seed S] [--only FAULT,…] [--on cluster,sqlite,pair,ha]" ;;
    esac
    shift 2
done
RANDOM=$SEED
LONG=''
((MINUTES < 10)) || LONG=yes
if [[ -n $LONG ]]; then
    # The least that nodes accept, so that the collection has work.
    export LATCHGATE_IDLE_RETENTION=60s LATCHGATE_HISTORY_RETENTION=60s
fi
# Leases last for 3 s at most, and end up to 0.2 s late.
HOLD_OFF_ENOUGH=3.5
OTHER_CLIENTS=(vanishing mixed)
# Longest time in s until the cause of a fault is gone.
FAULT_MAX=150
OPERATIONS=0
# How much a node's memory, and a file of SQLite or the table of the locks, may grow after the first fifth of a long run, in KiB.
RSS_GROWTH_MAX=65536
FILE_GROWTH_MAX=32768
declare -A TIMES=() LONGEST_LOCKS=() LONGEST_OPERATIONS=()

leave() {
    local code=$?
    touch "$SCRATCH/over"
    if ((code != 0)) && [[ -n ${KEEP_LOGS-} ]]; then
        mkdir -p "$KEEP_LOGS"
        find "$SCRATCH" -maxdepth 1 -type f -exec cp {} "$KEEP_LOGS" \;
    fi
    cat "$SCRATCH"/paused-* 2>/dev/null | xargs -r kill -CONT 2>/dev/null || true
    target_down
    if mountpoint -q "$SCRATCH/data"; then umount -l "$SCRATCH/data"; fi
    stop_all
}
trap leave EXIT

## A target: its parts, each with a clock that can be set, and links to its stores that can break.

target_up() {
    PARTS=() NODES=(node-1 node-2 node-3) STORES=(postgres redis) URLS=()
    local node store part links=() mix=shared,permits,rates,multilock,tickets,reentrant,revoke,hang-up
    rm -rf "${DATA:?}"/* "$HISTORY"* "$SCRATCH"/{done,lost,clocks}* "$SCRATCH/first"
    REDIS_OPTIONS=(--appendonly yes --appendfsync everysec --maxmemory-policy noeviction)
    [[ $TARGET != sqlite ]] || NODES=(node-1) STORES=()
    if [[ $TARGET == ha ]]; then
        ensure_packages etcd haproxy patroni
        KIND=ha STORES=()
        start_ha_stores
        PARTS=("${HA_STORES[@]}")
        POSTGRES_URL=postgres://postgres:$HA_PASSWORD@127.0.0.1:${PORTS[haproxy]}/latchgate
    fi
    for store in "${STORES[@]}"; do
        clock_of "$store"
        "start_$store"
        PARTS+=("$store")
    done
    # The other engine of the gate.
    [[ $TARGET != cluster ]] || query "create database gate"
    for node in "${NODES[@]}"; do
        for store in "${STORES[@]}"; do
            : "${PORTS[$node-$store]:=$(free_port)}"
            links+=("${PORTS[$node-$store]}:${PORTS[$store]}:$ROOM/link-$node-$store")
        done
    done
    ((${#links[@]} == 0)) || { start links "$TESTKIT_BINARY" links "${links[@]}" && PARTS+=(links); }
    for node in "${NODES[@]}"; do
        clock_of "$node"
        start_node "$node"
        PARTS+=("$node") URLS+=("$HTTP_URL")
    done
    URL=${URLS[0]}
    [[ $TARGET == sqlite ]] || start_nginx
    record "$URL"
    [[ $TARGET != pair ]] || clocks_differ
    # Old nodes beside new ones may exceed the limits of groups; and see the fault `master`.
    [[ -n $UPGRADE ]] || mix+=,groups
    [[ $TARGET == ha ]] || mix+=,gate,gate,gate
    # shellcheck disable=SC2016 # for the other shell
    start mixed bash -c 'exec "$@-$(date +%s%N)"' - "$TESTKIT_BINARY" record --urls "$(IFS=, && echo "$URL,${URLS[*]}")" --keys 4 --clients 12 \
        --seconds 86400 --ttl-ms 2000 --abandon-one-in 20 --readers 2 --mix "$mix" --out "$HISTORY-mixed"
    PARTS+=("${OTHER_CLIENTS[@]}")
    # Bash says nothing about the ends of what it does not know.
    for part in "${PARTS[@]}"; do disown "$(pid_of "$part")"; done
}

start_node() {
    local postgres=postgres://postgres@127.0.0.1:${PORTS[$1-postgres]-0}/postgres redis=redis://127.0.0.1:${PORTS[$1-redis]-0}
    local settings=(LATCHGATE_LOCKS="$postgres" LATCHGATE_GATE="redis=$redis postgres=${postgres%/postgres}/gate")
    case $TARGET in
        pair) settings=(LATCHGATE_LOCKS="postgres=$postgres redis=$redis") ;;
        sqlite) settings=(LATCHGATE_LOCKS="sqlite:$DATA/latchgate.db") ;;
        ha) use_ha_stores "$1" && settings=(LATCHGATE_LOCKS="$LATCHGATE_LOCKS" LATCHGATE_GATE="$LATCHGATE_GATE") ;;
    esac
    # Hold-offs last as long.
    settings+=(LATCHGATE_TTL_MAX=60s LATCHGATE_OPERATION_TTL_MAX=60s)
    ln -sfn "$(realpath "${UPGRADE:-$CLUSTER_BINARY}")" "$ROOM/$1.binary"
    start_http "$1" env "${settings[@]}" TEST_CRASH="$ROOM/$1.crash" "$ROOM/$1.binary" serve
}

start_nginx() {
    export BALANCER_METHOD=by_key BALANCER_LISTEN=127.0.0.1:${PORTS[nginx]:=$(free_port)}
    export BALANCER_NODE_1=${URLS[0]#http://} BALANCER_NODE_2=${URLS[1]#http://} BALANCER_NODE_3=${URLS[2]#http://}
    URL=http://$BALANCER_LISTEN
    mkdir -p "$ROOM/nginx"
    render_nginx >"$ROOM/nginx.conf"
    start nginx "$(nginx_bin)" -e stderr -p "$ROOM/nginx" -c "$ROOM/nginx.conf" -g 'daemon off;'
    wait_until nginx curl -fs -m 2 "$URL/healthz" || die "nginx does not start"
    PARTS+=(nginx)
}

target_down() {
    local index
    for ((index = ${#PARTS[@]} - 1; index >= 0; index--)); do stop "${PARTS[index]}"; done
    PARTS=()
}

# clock_of PART: makes its clock one that set_clock sets.
clock_of() {
    set_clock "$1" 0
    BEFORE[$1]="env LD_PRELOAD=$ROOM/clock.so CHAOS_CLOCK=$ROOM/clock-$1"
}

# set_clock PART MS: ahead of this machine's. The eight bytes are written at once.
set_clock() {
    local bytes='' shift byte
    for shift in 0 8 16 24 32 40 48 56; do
        printf -v byte '\\x%02x' $((($2 * 1000000 >> shift) & 255))
        bytes+=$byte
    done
    printf '%b' "$bytes" 1<>"$ROOM/clock-$1"
}

query() { PGOPTIONS='-c client_min_messages=error -c default_transaction_read_only=off' "$(postgres_bin)/psql" -X -q -t -A "$POSTGRES_URL" -c "$1"; }

# set_postgres SETTING VALUE: fails while Postgres is down; then it is repeated.
set_postgres() {
    until query "alter system set $1 = $2" >/dev/null 2>&1 && query "select pg_reload_conf()" >/dev/null 2>&1; do sleep 0.2; done
}

redis() { until redis-cli -p "${PORTS[redis]}" "$@" >/dev/null 2>&1; do sleep 0.2; done; }

## A supervisor, and an operator.

# supervise: starts the parts that have ended, with the same commands.
supervise() {
    local part pid
    for part in "${PARTS[@]}"; do
        read -r _ pid _ <"$ROOM/$part.pid"
        if [[ -e $ROOM/$part.down ]] || kill -0 "$pid" 2>/dev/null; then continue; fi
        # The next Patroni takes the Postgres of a killed one over.
        [[ $part == patroni-* ]] || sweep "$part"
        [[ $part != postgres ]] || forget_killed_postgres "$DATA/postgres"
        eval "start $part ${COMMANDS[$part]}"
        disown "$STARTED_PID"
    done
}

# keep_down PART, let_up PART: ends it, and keeps it from being started again, until then.
keep_down() {
    touch "$ROOM/$1.down"
    # shellcheck disable=SC2046 # one word for each process
    kill -KILL $(processes_of "$1") 2>/dev/null || true
    while is_running "$1"; do sleep 0.05; done
}

let_up() {
    rm -f "$ROOM/$1.down"
    until_up "$1"
}

# until_up PART: started by `supervise`, and it serves.
until_up() {
    local deadline=$((SECONDS + RECOVERY_MAX))
    until is_running "$1" && serves "$1"; do
        ((SECONDS < deadline)) || die "$1 does not come up: $(tail -n 3 "$ROOM/$1.log")"
        sleep 0.1
    done
}

serves() {
    case $1 in
        postgres) query "select 1" >/dev/null 2>&1 ;;
        redis) [[ $(redis-cli -p "${PORTS[redis]}" ping 2>&1) == PONG ]] ;;
        nginx) curl -fs -m 2 -o /dev/null "$URL/healthz" ;;
        node-*) curl -fs -m 2 -o /dev/null "http://127.0.0.1:${PORTS[$1]}/healthz" ;;
    esac
}

restart_part() {
    end_process TERM "$(pid_of "$1")"
    until_up "$1"
}

without_other_clients() {
    local part
    for part in "${OTHER_CLIENTS[@]}"; do touch "$ROOM/$part.down" && kill "$(pid_of "$part")" 2>/dev/null || true; done
    for part in "${OTHER_CLIENTS[@]}"; do while is_running "$part"; do sleep 0.1; done; done
    sleep "$HOLD_OFF_ENOUGH"
}

with_other_clients() { for part in "${OTHER_CLIENTS[@]}"; do rm -f "$ROOM/$part.down"; done; }

# hold_off_ms: for how long no lock is granted, as one of the nodes says.
hold_off_ms() {
    local url
    for url in "${URLS[@]}"; do curl -s -m 2 "$url/v1/admin/engines" | jq -r '.locks.hold_off_ms // 0' && return; done
    echo 0
}

# end_hold_off: when no lease that was lost can be live.
end_hold_off() {
    sleep "$HOLD_OFF_ENOUGH"
    while (($(hold_off_ms) > 0)); do
        curl -s -m 5 -o /dev/null "$URL/v1/admin/hold-off" -d '{"for_ms":0}' || true
        sleep 0.2
    done
}

# order_hold_offs: at a store that was put back, while no node runs.
order_hold_offs() {
    local of
    export LATCHGATE_LOCKS
    unset LATCHGATE_GATE
    [[ $TARGET != cluster ]] || export LATCHGATE_GATE="redis=redis://127.0.0.1:${PORTS[redis]} postgres=${POSTGRES_URL%/*}/gate"
    for of in locks gate; do
        "$CLUSTER_BINARY" engines hold-off "$of" --beside-store >"$ROOM/hold-off" 2>&1 || die "no hold-off can be ordered: $(<"$ROOM/hold-off")"
    done
}

# attend: after a fault. In a long run, the operator leaves one hold-off in four to its end, after a minute.
attend() {
    supervise
    if [[ -z $PATIENT ]] && ((SECONDS >= GONE + 4 && $(hold_off_ms) > 0)); then
        curl -s -m 5 -o /dev/null "$URL/v1/admin/hold-off" -d '{"for_ms":0}' || true
    fi
}

active_engine() { curl -s -m 5 "$URL/v1/admin/engines" | jq -r '.locks.active // empty'; }

# order_switch ENGINE [FIELDS [gate]]: fails if the switch is refused or given up.
order_switch() {
    local answer
    answer=$(curl -s -m 60 "$URL/v1/admin/engines/${3-locks}" -d "{\"engine\":\"$1\"${2-}}")
    echo "$(now_ms) $1 ${2-} $answer" >>"$ROOM/switches.log"
    [[ -n $answer && $(jq -r '.status // 200' <<<"$answer") == 200 ]]
}

# until_complete: until the stores of `ha` can lose another server.
until_complete() {
    local deadline=$((SECONDS + 180))
    until [[ $(standbys 2>/dev/null) == 2/1 ]] && redis_is_ready; do
        ((SECONDS < deadline)) || die "no two standbys follow: $(standbys 2>&1; tail -n 5 "$ROOM"/patroni-?.log)"
        supervise
        sleep 0.2
    done
}

## Faults one after the other.

# plan: sets TO_DO to the faults of this target that this run has, and UPGRADE to the release that it starts with, if that is another.
plan() {
    local name only
    TO_DO=() UPGRADE=''
    for name in "${FAULTS[@]}"; do
        [[ ${HERE[$name]} == " all " || ${HERE[$name]} == *" $TARGET "* ]] || continue
        if [[ -n $ONLY ]]; then
            IFS=, read -ra only <<<"$ONLY"
            begins_with "$name" "${only[@]}" || continue
        elif [[ -n ${SLOW[$name]-} && -z $LONG ]]; then
            continue
        fi
        if [[ $name == "old binary" && -z ${OLD_BINARY-} ]]; then say "left out: $name (OLD_BINARY is not set)" && continue; fi
        if [[ $name == crash-point* ]] && ! grep -qa TEST_CRASH "$CLUSTER_BINARY"; then continue; fi
        if [[ $name == "disk full" ]] && ! mountpoint -q "$DATA"; then say "left out: $name (no file system can be mounted)" && continue; fi
        if [[ $name == "old binary" ]]; then UPGRADE=$OLD_BINARY; else TO_DO+=("$name"); fi
    done
    [[ -n $UPGRADE ]] || ((${#TO_DO[@]} > 0)) || die "no such fault on $TARGET: $ONLY"
}

# begins_with NAME PREFIX...
begins_with() {
    local prefix
    for prefix in "${@:2}"; do [[ $1 != "$prefix"* ]] || return 0; done
    return 1
}

# run_faults NAME...: all at once; waits until all is as before, and compares how long that took with the sum of their bounds.
run_faults() {
    local all pids=() pid name bound_locks=0 bound_operations=0 key=$1
    all=$(printf ', %s' "$@") && all=${all:2}
    (($# == 1)) || key="several at once"
    begin_fault "$TARGET: $all"
    for name in "$@"; do
        # Arithmetic of the seed, because a subshell would begin with a RANDOM of its own.
        (RANDOM=$((SEED + ++COUNT)) && ${name%% *} ${name#* }) &
        pids+=($!) COUNT=$((COUNT + 1))
        ((bound_locks += ${BOUND[$name]%/*} * 1000, bound_operations += ${BOUND[$name]#*/} * 1000))
    done
    local deadline=$((SECONDS + FAULT_MAX))
    for pid in "${pids[@]}"; do
        while [[ -n $(birth_of "$pid") ]]; do
            ((SECONDS < deadline)) || die "$all does not end: $(tail -n 3 "$ROOM/switches.log" 2>&1)"
            supervise
            sleep 0.1
        done
        wait "$pid" || die "$all has failed"
    done
    GONE=$SECONDS PATIENT=''
    if [[ -n $LONG ]] && ((RANDOM % 4 == 0)); then PATIENT=yes bound_locks=$((bound_locks + 60000)); fi
    until_as_before "$all"
    end_fault
    [[ $TARGET != ha ]] || until_complete
    say "$(printf '    %.1f s without a lock, %.1f s without an operation' "$(tenths "${LONGEST[0]}")" "$(tenths "${LONGEST[1]}")")"
    [[ -z $PATIENT ]] || ((LONGEST[0] < 50000)) || key="a hold-off left to its end"
    TIMES[$key]=$((${TIMES[$key]-0} + 1))
    ((LONGEST[0] <= ${LONGEST_LOCKS[$key]-0})) || LONGEST_LOCKS[$key]=${LONGEST[0]}
    ((LONGEST[1] <= ${LONGEST_OPERATIONS[$key]-0})) || LONGEST_OPERATIONS[$key]=${LONGEST[1]}
    if ((LONGEST[0] > bound_locks || LONGEST[1] > bound_operations)); then
        TOO_LONG+=("$TARGET: $all: ${LONGEST[*]} ms")
        say "    longer than the bounds of $((bound_locks / 1000)) and $((bound_operations / 1000)) s"
    fi
}

tenths() { awk -v ms="$1" 'BEGIN { print ms / 1000 }'; }

# shuffle WORD...: sets SHUFFLED to the words in random order.
shuffle() {
    local index other word
    SHUFFLED=("$@")
    for ((index = $# - 1; index > 0; index--)); do
        other=$((RANDOM % (index + 1))) word=${SHUFFLED[index]}
        SHUFFLED[index]=${SHUFFLED[other]} SHUFFLED[other]=$word
    done
}

# run_target SECONDS
run_target() {
    local end=$((SECONDS + $1)) warm=$((SECONDS + $1 / 5)) alone=() several=() name
    [[ -z $UPGRADE ]] || run_faults "old binary"
    shuffle "${TO_DO[@]}" && alone=("${SHUFFLED[@]}")
    for name in "${TO_DO[@]}"; do
        # A node on SQLite that is started while its clock is ahead takes live leases for ended (docs/GUARANTEES.md).
        [[ -n ${SINGLE[$name]-} || ($TARGET == sqlite && $name == @(clock|drift)*) ]] || several+=("$name")
    done
    while ((SECONDS < end && ${#TO_DO[@]} > 0)); do
        if ((${#several[@]} < 2 || (${#alone[@]} > 0 && RANDOM % 3 > 0))); then
            ((${#alone[@]} > 0)) || { shuffle "${TO_DO[@]}" && alone=("${SHUFFLED[@]}"); }
            run_faults "${alone[0]}"
            alone=("${alone[@]:1}")
        else
            shuffle "${several[@]}"
            run_faults "${SHUFFLED[@]:0:RANDOM % 2 + 2}"
        fi
        [[ -z $LONG || -e $SCRATCH/first ]] || ((SECONDS < warm)) || measure "$SCRATCH/first"
    done
}

## The end.

check_target() {
    say "$TARGET: the load ends"
    PARTS=("${PARTS[@]:0:${#PARTS[@]} - 2}")
    kill "$(pid_of mixed)"
    stop_recording
    # It writes its last line when each of its clients has its last answer.
    while is_running mixed; do sleep 0.1; done
    check_histories
    ((OPERATIONS += $(jq .calls <<<"$SEEN"))) || true
    summarise
    until_empty
    if [[ -e $SCRATCH/first ]]; then measure "$SCRATCH/last" && compare; fi
}

# is_empty: no lease and no waiter; in a long run also no key and no event. An operation whose client has gone is known for a day.
is_empty() {
    local url
    LEFT=''
    for url in "${URLS[@]}"; do
        expect_none "leases at $url" "$(curl -s -m 5 "$url/v1/locks?held=true&limit=5" | jq -c '.locks[]?')"
        expect_none "waiters at $url" "$(curl -s -m 5 "$url/metrics" | awk '$1 == "latchgate_waiters" && $2 != 0')"
        expect_none "$url is not ready" "$(curl -fs -m 5 -o /dev/null "$url/readyz" || echo not ready)"
        [[ -z $LONG ]] || expect_none "keys at $url" "$(curl -s -m 5 "$url/v1/locks?limit=5" | jq -c '.locks[]?')"
    done
    if ((${#STORES[@]} > 0)); then
        expect_none "open transactions" "$(query "select pid, query from pg_stat_activity where state like 'idle in transaction%'")"
        [[ -z $LONG || $TARGET == pair ]] || expect_none "events" "$(query 'select count(*) from latchgate.lock_events' | grep -vx 0)"
    fi
    [[ -z $LEFT ]]
}

# expect_none WHAT TEXT
expect_none() { [[ -z $2 ]] || LEFT+="$1: $2"$'\n'; }

until_empty() {
    local deadline=$((SECONDS + 300))
    # Leases and keys that were written by a clock that was ahead stay for as long.
    [[ ! -e $SCRATCH/clocks-jumped ]] || return 0
    until is_empty; do
        ((SECONDS < deadline)) || die "this is left behind: $LEFT"
        supervise
        sleep 1
    done
}

# measure FILE: enters memory, descriptors and file sizes.
measure() {
    local node
    {
        for node in "${NODES[@]}"; do
            awk -v node="$node" '$1 == "VmRSS:" { print "rss-" node, $2 }' "/proc/$(pid_of "$node")/status"
            echo "fds-$node $(find "/proc/$(pid_of "$node")/fd" -mindepth 1 | wc -l)"
        done
        if ((${#STORES[@]} == 0)); then
            echo "file-sqlite $(du -k --apparent-size -c "$DATA"/latchgate.db* | awk 'END { print $1 }')"
        else
            echo "file-postgres $(query "select sum(pg_total_relation_size(c.oid)) / 1024 from pg_class c
                join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'latchgate' and c.relkind = 'r'")"
        fi
    } | sort >"$1"
}

# compare: prints all, and fails if memory or files have grown since the first measurement.
compare() {
    join "$SCRATCH/first" "$SCRATCH/last" | tee "$SCRATCH/compared" | awk '{ printf "%-16s %10d -> %d\n", $1, $2, $3 }'
    awk -v rss="$RSS_GROWTH_MAX" -v file="$FILE_GROWTH_MAX" '
        /^rss/ && $3 > $2 + rss { grown = 1 }
        /^file/ && $3 > 2 * $2 + file { grown = 1 }
        /^fds/ && $3 > $2 + 64 { grown = 1 }
        END { exit grown }' "$SCRATCH/compared" || die "something has grown, see above (KiB, and descriptors)"
}

report() {
    local name all=0
    printf '\n%-36s %5s  %22s  %22s\n' fault times "s without a lock" "s without an operation"
    for name in "${FAULTS[@]}" "several at once" "a hold-off left to its end"; do
        [[ -n ${TIMES[$name]-} ]] || continue
        ((all += TIMES[$name]))
        printf '%-36s %5d  %9.1f of %10s  %9.1f of %10s\n' "$name" "${TIMES[$name]}" "$(tenths "${LONGEST_LOCKS[$name]-0}")" \
            "${BOUND[$name]%/*}" "$(tenths "${LONGEST_OPERATIONS[$name]-0}")" "${BOUND[$name]#*/}"
    done
    printf '\n%d calls, %d faults, 0 broken promises (--seed %s)\n' "$OPERATIONS" "$all" "$SEED"
}

DATA=$SCRATCH/data
cc -O2 -shared -fPIC -o "$ROOM/clock.so" scripts/chaos/clock.c
mkdir "$SCRATCH/data"
chmod 711 "$SCRATCH/data"
if [[ $(id -u) == 0 ]]; then mount -t tmpfs -o size=1536m,mode=711 latchgate "$SCRATCH/data" 2>/dev/null || true; fi
PARTS=() COUNT=0 GONE=0 PATIENT="" TOO_LONG=()
BOUND["several at once"]="the sum/the sum" BOUND["a hold-off left to its end"]="and 60/the sum"
IFS=, read -ra targets <<<"$ON"
say "$MINUTES minutes of chaos on $ON (--seed $SEED)"
for TARGET in "${targets[@]}"; do
    plan
    target_up
    run_target $((60 * MINUTES / ${#targets[@]}))
    check_target
    target_down
done
report
((${#TOO_LONG[@]} == 0)) || die "clients waited for too long: $(printf '%s\n' "${TOO_LONG[@]}")"
