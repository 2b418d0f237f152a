# shellcheck shell=bash
# shellcheck disable=SC2034,SC2046,SC2128 # chaos.sh reads the tables; one word for each process; the first part
# For chaos.sh: the faults. Each is a function that returns when its cause is gone, in a shell of its own whose RANDOM follows from the seed.
# A part that has ended is started again by the loop of chaos.sh, as a supervisor would, unless `keep_down` forbids it.

FAULTS=()
declare -A BOUND=() HERE=() SLOW=() SINGLE=()

# fault LOCKS/OPERATIONS TARGETS NAME [slow] [single]: the longest time in s without a grant of one of the keys, and without an operation
# done: the time that the fault itself takes at most, the time that the product may need, and two seconds for a busy machine. A slow fault
# runs only in runs of ten minutes, a single one never together with others.
fault() {
    FAULTS+=("$3")
    BOUND[$3]=$1 HERE[$3]=" ${2//,/ } "
    [[ " ${*:4} " != *" slow "* ]] || SLOW[$3]=yes
    [[ " ${*:4} " != *" single "* ]] || SINGLE[$3]=yes
}

# pick WORD...: sets PICKED to one of them. (In a subshell, RANDOM would begin anew.)
pick() { PICKED=${*:RANDOM % $# + 1:1}; }

# some_time SECONDS [MORE]: sleeps for so long, and up to so much longer.
some_time() { sleep "$(($1 + RANDOM % (${2:-0} + 1)))"; }

# a_part NAME: sets PARTS_HIT: one of the nodes, the other clients, or the part of this name.
a_part() {
    case $1 in
        node) pick "${NODES[@]}" && PARTS_HIT=("$PICKED") ;;
        clients) PARTS_HIT=("${OTHER_CLIENTS[@]}") ;;
        *) PARTS_HIT=("$1") ;;
    esac
}

## Processes. The longest recovery is that of the node of the first turn: 5.5 s.

fault 9/9 all "crash node"
fault 3/3 all "crash clients"
fault 9/9 cluster,pair "crash postgres"
fault 12/8 cluster,pair "crash redis"
fault 6/6 cluster,pair,ha "crash nginx"
fault 12/12 ha "crash haproxy"
fault 12/12 ha "crash etcd-2"
fault 12/12 ha "crash sentinel-2"
crash() {
    local part
    a_part "$1"
    for part in "${PARTS_HIT[@]}"; do kill -KILL $(processes_of "$part") 2>/dev/null || true; done
    note_operations
    for part in "${PARTS_HIT[@]}"; do until_up "$part"; done
}

# A node that ends at such a moment of its work, in a build with the patches of service/testkit/defects/crash.
fault 9/9 all "crash-point before-commit"
fault 9/9 all "crash-point after-commit"
fault 9/9 all "crash-point before-notify"
fault 9/9 all "crash-point before-commit-of-many"
fault 9/9 all "crash-point after-commit-of-many"
fault 9/9 all "crash-point before-write"
fault 9/9 all "crash-point after-write"
fault 9/9 all "crash-point before-answer"
crash-point() {
    local pid
    a_part node
    pid=$(pid_of "$PARTS_HIT")
    echo "$1" >"$ROOM/$PARTS_HIT.crash"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    rm "$ROOM/$PARTS_HIT.crash"
    note_operations
    until_up "$PARTS_HIT"
}

# Leases last for 3 s at most.
fault 14/14 all "freeze node"
fault 3/3 all "freeze clients"
fault 14/14 cluster,pair "freeze postgres"
fault 14/14 cluster,pair "freeze redis"
fault 14/14 cluster,pair,ha "freeze nginx"
freeze() {
    local part
    a_part "$1"
    for part in "${PARTS_HIT[@]}"; do stop_processes "$part"; done
    some_time 4 4
    resume_all
}

fault 9/9 all "restart nodes"
restart() {
    local node
    for node in "${NODES[@]}"; do
        end_process TERM "$(pid_of "$node")"
        until_up "$node"
        some_time 1
    done
}

# The target was started with the release before; now one node after the other is upgraded. An old one may not be able to start any more.
fault 9/9 cluster,sqlite,pair "old binary"
old() {
    local node
    for node in "${NODES[@]}"; do
        some_time 2 3
        ln -sfn "$CLUSTER_BINARY" "$ROOM/$node.binary"
        restart_part "$node"
    done
}

## The network between nodes and stores. An undecided call is given up after --store-timeout (0.8 s); a session that the store believes to
## be open keeps its row locks for 2 s.

fault 6/6 cluster,pair "link delay 60"
fault 12/12 cluster,pair "link delay 1500"
fault 12/12 cluster,pair "link jitter 800"
fault 14/14 cluster,pair "link hold"
fault 14/14 cluster,pair "link hold-requests"
fault 14/14 cluster,pair "link hold-answers"
fault 12/12 cluster,pair "link half-open"
fault 12/12 cluster,pair "link cut"
link() {
    local node store
    pick postgres redis && store=$PICKED
    pick "${NODES[@]}" all
    for node in "${NODES[@]}"; do
        if [[ $PICKED == all || $PICKED == "$node" ]]; then echo "$*" >"$ROOM/link-$node-$store"; fi
    done
    some_time 3 4
    for node in "${NODES[@]}"; do : >"$ROOM/link-$node-$store"; done
}

## Clocks, each set for itself while the part runs, and set back.

# The nodes' own clocks count for nothing. (With SQLite, what a node has read of it at the start.)
fault 3/3 all "clock node +5"
fault 3/3 all "clock node -5"
fault 3/3 all "clock node +3600"
fault 3/3 all "clock node -3600"
# That of a server is everything: when it jumps ahead, nodes hold off for as long as it has jumped; set back, leases last longer.
fault 14/14 cluster,pair "clock postgres +5"
fault 14/14 cluster,pair "clock postgres -5"
fault 14/14 cluster,pair "clock redis +5"
fault 14/14 cluster,pair "clock redis -5"
fault 16/16 cluster,pair "clock postgres +3600" slow single
fault 16/16 cluster,pair "clock postgres -3600" slow single
fault 16/16 cluster,pair "clock redis +3600" slow single
fault 16/16 cluster,pair "clock redis -3600" slow single
clock() {
    local part offset=$2 from
    a_part "$1"
    part=$PARTS_HIT
    if [[ $1 != node ]]; then
        # The gate promises nothing when its store's clock jumps ahead (docs/GATE.md), and an abandoned lease would last as long as the step.
        without_other_clients
        clocks_differ
        from=$(now_ms)
        [[ ${offset#[+-]} != 3600 ]] || touch "$SCRATCH/clocks-jumped"
    fi
    set_clock "$part" "${offset}000"
    [[ $1 == node ]] || end_hold_off
    some_time 2 2
    set_clock "$part" 0
    [[ $1 == node ]] || { end_hold_off && lost_leases "$from"; }
    with_other_clients
}

# A node's clock a tenth too fast or too slow, and then the other way round. That of a server 3 in 100, which the longest lease can bear
# (docs/GUARANTEES.md, "Time").
fault 3/3 cluster,pair "drift postgres"
fault 3/3 cluster,pair "drift redis"
fault 3/3 all "drift node"
drift() {
    local ms=0 step every=0.05
    a_part "$1"
    pick 5 -5
    if [[ $1 != node ]]; then
        clocks_differ
        pick 3 -3
        every=0.1
    fi
    for step in {1..60} {-60..-1}; do
        ((ms += step > 0 ? PICKED : -PICKED)) || true
        set_clock "$PARTS_HIT" "$ms"
        sleep "$every"
    done
    set_clock "$PARTS_HIT" 0
}

## Stores that cannot or do not write, and settings that change under way.

fault 14/14 all "disk full"
disk() {
    fallocate -l "$(($(df --output=avail -k "$DATA" | tail -n 1) * 1024))" "$DATA/full" 2>/dev/null || true
    # What was freed in between.
    dd if=/dev/zero of="$DATA/rest" bs=4k status=none 2>/dev/null || true
    some_time 2 3
    rm -f "$DATA/full" "$DATA/rest"
}

fault 9/9 cluster,pair "refuse postgres read-only"
fault 9/9 cluster,pair "refuse redis no-replicas"
fault 9/9 cluster,pair "refuse redis no-memory"
fault 9/9 cluster,pair "refuse redis no-snapshots"
refuse() {
    case $2 in
        read-only) set_postgres default_transaction_read_only on ;;
        no-replicas) redis config set min-replicas-to-write 1 ;;
        no-memory) redis config set maxmemory 1 ;;
        no-snapshots) mkdir -p "$DATA/redis/dump.rdb" && redis config set save "3600 1" && redis bgsave ;;
    esac
    some_time 2 3
    case $2 in
        read-only) set_postgres default_transaction_read_only off ;;
        no-replicas) redis config set min-replicas-to-write 0 ;;
        no-memory) redis config set maxmemory 0 ;;
        no-snapshots) redis config set save "" && rmdir "$DATA/redis/dump.rdb" ;;
    esac
}

# Sessions of nodes set synchronous_commit themselves, so that a crash loses nothing; with the others off, they get no answers.
fault 14/14 cluster,pair "settings postgres synchronous_commit"
fault 9/9 cluster,pair "settings postgres fsync"
fault 9/9 cluster,pair "settings postgres full_page_writes"
fault 18/12 cluster,pair "settings redis appendonly" single
# With no memory left, Redis would forget records then; nodes say so (latchgate_may_forget).
fault 3/3 cluster,pair "settings redis maxmemory-policy" single
settings() {
    local from
    from=$(now_ms)
    case $1-$2 in
        postgres-*) set_postgres "$2" off ;;
        redis-appendonly) redis config set appendonly no ;;
        redis-*) redis config set "$2" allkeys-lru ;;
    esac
    # Without its walwriter, what was not committed synchronously is lost in the crash.
    [[ $2 != synchronous_commit ]] || pause $(pgrep -P "$(pid_of postgres)" -f walwriter)
    some_time 2 3
    [[ $2 != synchronous_commit ]] || { crash postgres && resume_all; }
    [[ $2 != appendonly ]] || crash redis
    case $1-$2 in
        postgres-*) set_postgres "$2" on ;;
        # It has started from an old file.
        redis-appendonly) redis config set appendonly yes && declare_loss "$from" ;;
        redis-*) redis config set "$2" noeviction ;;
    esac
}

## Stores that go back. The operator ends the hold-off when no lost lease can be live, which another fault beside it could make too early.

fault 18/12 cluster,pair "back redis" single
fault 24/24 cluster "back postgres" single
fault 24/24 sqlite "back sqlite" single
back() {
    local from files=$1 server=$1 node
    [[ $1 != sqlite ]] || files=latchgate.db server=node-1
    from=$(now_ms)
    # As a snapshot of a file system is: all files at one moment.
    stop_processes "$server"
    rm -rf "$ROOM/snapshot"
    mkdir "$ROOM/snapshot"
    cp -a "$DATA/$files"* "$ROOM/snapshot"
    resume_all
    some_time 2 3
    # A Redis that is started again is known by its run id. The others are like before, so the nodes are stopped (docs/OPERATIONS.md).
    [[ $1 == redis ]] || for node in "${NODES[@]}"; do keep_down "$node"; done
    keep_down "$server"
    rm -rf "${DATA:?}/$files"*
    cp -a "$ROOM/snapshot"/* "$DATA"
    declare_loss "$from"
    [[ $1 == sqlite ]] || let_up "$server"
    if [[ $1 == sqlite ]]; then LATCHGATE_LOCKS=sqlite:$DATA/latchgate.db order_hold_offs; fi
    if [[ $1 == postgres ]]; then LATCHGATE_LOCKS=$POSTGRES_URL order_hold_offs; fi
    for node in "${NODES[@]}"; do let_up "$node"; done
}

# Point-in-time recovery: the server begins a new timeline, by which the nodes know it.
fault 24/24 cluster,pair "recover postgres" single
recover() {
    local from backup=$ROOM/backup
    from=$(now_ms)
    rm -rf "$backup"
    "$(postgres_bin)/pg_basebackup" -d "$POSTGRES_URL" -D "$backup" -c fast -N
    printf "restore_command = 'false'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n" >>"$backup/postgresql.auto.conf"
    touch "$backup/recovery.signal"
    [[ $(id -u) != 0 ]] || chown -R postgres: "$backup"
    some_time 2 3
    keep_down postgres
    rm -rf "$DATA/postgres/data"
    cp -a "$backup" "$DATA/postgres/data"
    declare_loss "$from"
    let_up postgres
    until query "select pg_is_in_recovery()" 2>/dev/null | grep -qx f; do sleep 0.1; done
    query "alter system reset all" >/dev/null
}

## Sessions and clients that are in the way. Another fault may end their server, and them with it.

fault 5/5 cluster,pair "terminate backends"
terminate() {
    query "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'latchgate' and random() < 0.7" >/dev/null 2>&1 || true
}

# Only the locked key waits.
fault 9/3 cluster,pair "lock a row"
lock() {
    query "begin; select key from latchgate.locks where key like 'recorded-%' limit 1 offset $((RANDOM % KEYS)) for update; select pg_sleep(5)" >/dev/null 2>&1 || true
}

# A guard keeps its key closed even beyond the lease, and no other key.
fault 3/3 cluster "guard"
guard() {
    local lease now="select (extract(epoch from clock_timestamp()) * 1000)::bigint" expires_at at from to
    lease=$(acquire guarded '{"ttl_ms":1000,"wait_ms":20000}' 25 | jq -r .lease_id) || return 0
    [[ $lease != null ]] || return 0
    query "begin; select latchgate.guard('guarded', '$lease'); $now; select pg_sleep(4); $now; commit" >"$ROOM/guard" 2>&1 &
    some_time 1 1
    expires_at=$(acquire guarded '{"ttl_ms":1000}' | jq -r '.expires_at // empty')
    wait $! && [[ -n $expires_at ]] || return 0
    # The guard was committed, so it was open between these times of Postgres.
    { read -r from && read -r to; } < <(grep -E '^[0-9]{13}$' "$ROOM/guard")
    at=$(($(date -d "$expires_at" +%s%3N) - 1000))
    ((at < from || to < at)) || die "granted at $at behind a guard that was open from $from to $to"
}

# Holders vanish with the lock, and waiters in mid-poll; the key is granted when the last lease has ended.
fault 3/3 all "vanish"
vanish() {
    local pids=() n
    for n in {1..12}; do
        curl -s -m 25 -o /dev/null "$URL/v1/locks/vanished/acquire" -d '{"ttl_ms":1000,"wait_ms":20000}' &
        pids+=($!)
    done
    disown "${pids[@]}"
    some_time 2 2
    kill -KILL "${pids[@]}" 2>/dev/null || true
    acquire vanished '{"ttl_ms":100,"wait_ms":25000}' 30 >"$ROOM/vanished"
}

## Switches from one engine of a pair to the other.

fault 9/9 pair "switch planned"
fault 14/9 pair "switch guarded" single
fault 24/24 pair "switch given-up" single
fault 24/24 pair "switch forced" single
# That of fast operations, there and back.
fault 3/9 cluster "switch operations"
switch() {
    local active other from holder
    if [[ $1 == operations ]]; then
        for other in postgres redis; do
            until order_switch "$other" '' gate; do sleep 0.5; done
            some_time 1 1
        done
        return
    fi
    active=$(active_engine) && [[ -n $active ]] || return 0
    other=postgres
    [[ $active == redis ]] || other=redis
    case $1 in
        planned) until order_switch "$other" || [[ $(active_engine) == "$other" ]]; do sleep 0.5; done ;;
        guarded)
            # Behind an open guard it is refused after five seconds, and nothing has changed.
            query "begin; select pg_advisory_xact_lock_shared(1279742547, latchgate.callers_lock('locks')); select pg_sleep(8)" >/dev/null 2>&1 &
            holder=$!
            sleep 1
            ! order_switch "$other" || [[ $active != postgres ]] || die "a switch has passed an open guard"
            wait "$holder" || true
            ;;
        given-up)
            # The other engine does not answer during the copy.
            order_switch "$other" &
            stop_processes "$other"
            wait $! || true
            resume_all
            ;;
        forced)
            from=$(now_ms)
            keep_down "$active"
            until order_switch "$other" ',"stopped":true' || [[ $(active_engine) == "$other" ]]; do sleep 0.5; done
            let_up "$active"
            # Nodes that have not seen the switch grant leases in the engine that is back, for a moment. The other engine holds off, so these
            # are lost, but no lock has two holders.
            some_time 3
            lost_leases "$from"
            [[ $active != postgres ]] || lost_operations "$from"
            ;;
    esac
}

## Stores that fail over by themselves. Patroni replaces a primary that does not answer after 20 s, the Sentinels a master after five.

fault 20/20 ha "primary postgres-killed" single
fault 50/50 ha "primary patroni-killed" single
fault 50/50 ha "primary machine-killed" single
fault 50/50 ha "primary frozen" single
fault 20/20 ha "primary switch-over" single
primary() {
    local n
    # Without a synchronous standby none may take the primary's place.
    until [[ -n $(synchronous_now) ]]; do sleep 0.2; done
    n=$(primary_now)
    [[ -n $n ]] || die "there is no primary"
    case $1 in
        postgres-killed) kill -KILL "$(postmaster_of "$n")" ;;
        patroni-killed) keep_down "patroni-$n" ;;
        machine-killed) keep_down "patroni-$n" && kill -KILL "$(postmaster_of "$n")" ;;
        frozen) pause "$(pid_of "patroni-$n")" $(with_children "$(postmaster_of "$n")") ;;
        switch-over) curl -sf -m 60 -o /dev/null "127.0.0.1:${PORTS[patroni-$n]}/switchover" -d "{\"leader\":\"patroni-$n\"}" || true ;;
    esac
    until [[ $(primary_now) =~ [^$n] ]]; do sleep 0.2; done
    resume_all
    rm -f "$ROOM/patroni-$n.down"
}

# primary_now: the number of the server that is the primary, and nothing if there is none.
primary_now() { patroni_with primary; }

# synchronous_now: the same of the synchronous standby.
synchronous_now() { patroni_with synchronous; }

# patroni_with ROLE: the number of the first server whose Patroni says that it has this role.
patroni_with() {
    local n
    for n in 1 2 3; do
        if curl -fs -m 0.5 -o /dev/null "127.0.0.1:${PORTS[patroni-$n]}/$1"; then echo "$n" && return; fi
    done
}

postmaster_of() { head -n 1 "$ROOM/servers/patroni-$1/data/postmaster.pid"; }

# Commits wait until Patroni has chosen the other one.
fault 20/20 ha "standby" single
standby() {
    local n
    n=$(synchronous_now)
    n=${n:-3}
    kill -KILL "$(postmaster_of "$n")"
    keep_down "patroni-$n"
    some_time 8 4
    let_up "patroni-$n"
}

fault 3/30 ha "master" single
master() {
    local before n from
    before=$(redis_master) from=$(now_ms)
    for n in 1 2 3; do
        [[ ${PORTS[redis-$n]} != "$before" ]] || break
    done
    keep_down "redis-$n"
    until [[ $(redis_master) != "$before" ]]; do sleep 0.2; done
    # Of fast operations it may have lost the last. (The other clients do none: with `lost_leases`, locks could be lost, too.)
    lost_operations "$from"
    let_up "redis-$n"
}
