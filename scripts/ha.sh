# shellcheck shell=bash
# For cluster.sh: the stores of a cluster that fails over by itself. Three servers of Postgres under Patroni, whose leader lock is in
# three members of etcd; HAProxy, which leads to the primary; three servers of Redis and three Sentinels. The configurations are
# rendered from deploy/ha.

# shellcheck disable=SC2034 # for scripts/cluster.sh
HA_STORES=(etcd-{1,2,3} patroni-{1,2,3} haproxy redis-{1,2,3} sentinel-{1,2,3})
# Throw-away servers on loopback.
HA_PASSWORD=throw-away

start_ha_stores() {
    choose_ha_ports
    export HA_HOST=127.0.0.1 HA_NETWORK=127.0.0.0/8 HA_BIN HA_SYNCHRONOUS=true
    export HA_SUPERUSER_PASSWORD=$HA_PASSWORD HA_REPLICATION_PASSWORD=$HA_PASSWORD HA_REWIND_PASSWORD=$HA_PASSWORD
    export HA_REDIS_PASSWORD=$HA_PASSWORD
    HA_BIN=$(postgres_bin)
    [[ $KIND == ha ]] || HA_SYNCHRONOUS=false
    # Each group needs a majority of its members to get ready, so all are started first.
    start_etcd
    start_redis_servers
    until_etcd_is_ready
    start_patroni
    start_haproxy
    until_redis_is_ready
    until_standbys_follow
    make_database
}

# The members know each other's ports, so all ports are chosen before the first is started.
choose_ha_ports() {
    local name
    for name in etcd-{1,2,3} etcd-{1,2,3}-peer patroni-{1,2,3} postgres-{1,2,3} haproxy redis-{1,2,3} sentinel-{1,2,3}; do
        while [[ -z ${PORTS[$name]-} || " ${PORTS_OF_OTHERS-} " == *" ${PORTS[$name]} "* ]]; do PORTS[$name]=$(free_port); done
        PORTS_OF_OTHERS+=" ${PORTS[$name]}"
    done
}

# list FORMAT PART...: the ports of the parts, each printed in FORMAT, separated by commas.
list() {
    local format=$1 part items=()
    for part in "${@:2}"; do
        # shellcheck disable=SC2059 # the format is an argument
        items+=("$(printf "$format" "${PORTS[$part]}")")
    done
    (IFS=, && echo "${items[*]}")
}

start_etcd() {
    local n
    export HA_NAME HA_DATA=$ROOM HA_ETCD_PORT HA_ETCD_PEER_PORT HA_ETCD_CLUSTER
    HA_ETCD_CLUSTER=$(for n in 1 2 3; do printf 'etcd-%s=http://127.0.0.1:%s,' "$n" "${PORTS[etcd-$n-peer]}"; done)
    HA_ETCD_CLUSTER=${HA_ETCD_CLUSTER%,}
    for n in 1 2 3; do
        is_running "etcd-$n" && continue
        HA_NAME=etcd-$n HA_ETCD_PORT=${PORTS[etcd-$n]} HA_ETCD_PEER_PORT=${PORTS[etcd-$n-peer]}
        render HA_ deploy/ha/etcd.yml >"$ROOM/etcd-$n.yml"
        start "etcd-$n" etcd --config-file "$ROOM/etcd-$n.yml"
    done
}

until_etcd_is_ready() {
    local n
    for n in 1 2 3; do until_ready "etcd-$n" "http://127.0.0.1:${PORTS[etcd-$n]}/health"; done
}

start_patroni() {
    local n
    export HA_NAME HA_POSTGRES_PORT HA_PATRONI_PORT HA_ETCD_HOSTS HA_ETCD_API=etcd3 HA_DATA=$ROOM/servers
    # See deploy/ha/patroni.yml.
    [[ $(printf 'patroni 3.0.3\n%s\n' "$(patroni --version)" | sort -V | head -n 1) == "patroni 3.0.3" ]] || HA_ETCD_API=etcd
    HA_ETCD_HOSTS=$(list 127.0.0.1:%s etcd-{1,2,3})
    mkdir -p "$HA_DATA"
    for n in 1 2 3; do
        is_running "patroni-$n" && continue
        HA_NAME=patroni-$n HA_POSTGRES_PORT=${PORTS[postgres-$n]} HA_PATRONI_PORT=${PORTS[patroni-$n]}
        mkdir -p "$HA_DATA/$HA_NAME"
        render HA_ deploy/ha/patroni.yml >"$ROOM/patroni-$n.yml"
        [[ $(id -u) != 0 ]] || chown -R postgres: "$HA_DATA/$HA_NAME"
        chmod 700 "$HA_DATA/$HA_NAME"
        start "patroni-$n" patroni "$ROOM/patroni-$n.yml"
    done
}

# until_standbys_follow: until the primary has two standbys that follow it; in synchronous mode, one of them synchronously. Patroni
# may first rewind a server that was the primary, after it has already reported it as running.
until_standbys_follow() {
    local n deadline=$((SECONDS + 180)) wanted=2/0
    [[ $HA_SYNCHRONOUS == false ]] || wanted=2/1
    until [[ $(standbys 2>/dev/null) == "$wanted" ]]; do
        for n in 1 2 3; do
            is_running "patroni-$n" || die "patroni-$n has ended: $(tail -n 20 "$ROOM/patroni-$n.log")"
        done
        ((SECONDS < deadline)) || die "no two standbys follow: $(tail -n 20 "$ROOM/patroni-1.log" "$ROOM/patroni-2.log" "$ROOM/patroni-3.log")"
        sleep 0.2
    done
}

# How many standbys follow the primary, and how many of them synchronously.
standbys() {
    as_superuser "select count(*) || '/' || count(*) filter (where sync_state in ('sync', 'quorum'))
        from pg_stat_replication where state = 'streaming' and application_name like 'patroni-%'"
}

start_haproxy() {
    local n
    is_running haproxy && return
    for n in 1 2 3; do
        export "HA_POSTGRES_$n=127.0.0.1:${PORTS[postgres-$n]}" "HA_PATRONI_PORT_$n=${PORTS[patroni-$n]}"
    done
    export HA_LISTEN=127.0.0.1:${PORTS[haproxy]}
    render HA_ deploy/ha/haproxy.cfg >"$ROOM/haproxy.cfg"
    PATH=$PATH:/usr/sbin start haproxy haproxy -db -f "$ROOM/haproxy.cfg"
}

# as_superuser STATEMENT: through HAProxy; prints the result.
as_superuser() {
    PGPASSWORD=$HA_PASSWORD PGCONNECT_TIMEOUT=2 "$(postgres_bin)/psql" -X -q -t -A -v ON_ERROR_STOP=1 \
        "postgres://postgres@127.0.0.1:${PORTS[haproxy]}/postgres" -c "$1"
}

make_database() {
    [[ $(as_superuser "select count(*) from pg_database where datname = 'latchgate'") == 0 ]] || return 0
    as_superuser "create role latchgate login password '$HA_PASSWORD'"
    as_superuser "create database latchgate owner latchgate"
}

start_redis_servers() {
    local n
    export HA_DATA HA_REDIS_PORT HA_REDIS_REPLICAOF='' HA_SENTINEL_PORT HA_REDIS_MASTER="127.0.0.1 ${PORTS[redis-1]}"
    for n in 1 2 3; do
        is_running "redis-$n" && continue
        HA_REDIS_PORT=${PORTS[redis-$n]} HA_DATA=$ROOM/redis-$n HA_REDIS_REPLICAOF=''
        ((n == 1)) || HA_REDIS_REPLICAOF="replicaof $HA_REDIS_MASTER"
        mkdir -p "$HA_DATA"
        # A Sentinel changes the rendered file.
        [[ -e $HA_DATA/redis.conf ]] || render HA_ deploy/ha/redis.conf >"$HA_DATA/redis.conf"
        start "redis-$n" redis-server "$HA_DATA/redis.conf"
    done
    for n in 1 2 3; do
        is_running "sentinel-$n" && continue
        HA_SENTINEL_PORT=${PORTS[sentinel-$n]} HA_DATA=$ROOM/sentinel-$n
        mkdir -p "$HA_DATA"
        [[ -e $HA_DATA/sentinel.conf ]] || render HA_ deploy/ha/sentinel.conf >"$HA_DATA/sentinel.conf"
        start "sentinel-$n" redis-server "$HA_DATA/sentinel.conf" --sentinel
    done
}

# Until a majority of the Sentinels knows the master, and its replicas follow it.
until_redis_is_ready() {
    local deadline=$((SECONDS + 60))
    until redis_is_ready; do
        ((SECONDS < deadline)) || die "Redis does not get ready: $(tail -n 20 "$ROOM/sentinel-1.log")"
        sleep 0.1
    done
}

redis_is_ready() {
    local n master
    for n in 1 2 3; do
        [[ $(redis-cli -p "${PORTS[sentinel-$n]}" sentinel ckquorum latchgate 2>&1) == "OK 3 "* ]] || return 1
    done
    master=$(redis_master)
    REDISCLI_AUTH=$HA_PASSWORD redis-cli -p "$master" info replication | tr -d '\r' | grep -qx 'min_slaves_good_slaves:2'
}

# The port of the master, as the Sentinels know it.
redis_master() { redis-cli -p "${PORTS[sentinel-1]}" sentinel get-master-addr-by-name latchgate | tail -n 1; }

# use_ha_stores NODE: sets the node's settings. The first two find the primary through HAProxy, the third by itself.
use_ha_stores() {
    local hosts=127.0.0.1:${PORTS[haproxy]}
    [[ $1 != node-3 ]] || hosts=$(list 127.0.0.1:%s postgres-{1,2,3})
    export LATCHGATE_LOCKS="postgres://latchgate:$HA_PASSWORD@$hosts/latchgate?target_session_attrs=read-write"
    LATCHGATE_GATE=redis+sentinel://:$HA_PASSWORD@$(list 127.0.0.1:%s sentinel-{1,2,3})/latchgate
    export LATCHGATE_GATE
    [[ $KIND != ha ]] || export LATCHGATE_TRUST_PROMOTION=true
}

report_ha_urls() {
    local n
    for n in 1 2 3; do echo "PATRONI_$n=http://127.0.0.1:${PORTS[patroni-$n]}"; done
    use_ha_stores node-3
    echo "LOCKS='$LATCHGATE_LOCKS'"
    echo "SENTINEL=${PORTS[sentinel-1]}"
}

report_ha() {
    local n
    echo
    for n in 1 2 3; do
        echo "  patroni-$n  http://127.0.0.1:${PORTS[patroni-$n]}/cluster   (Postgres: port ${PORTS[postgres-$n]})"
    done
    echo "  haproxy    127.0.0.1:${PORTS[haproxy]}   (the primary)"
}
