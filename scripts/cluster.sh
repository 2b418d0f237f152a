#!/usr/bin/env bash
# A cluster on this machine: Postgres, Redis, three nodes, and nginx in front. It keeps running after this script has ended.
#
#   scripts/cluster.sh up [--balance by_key|round_robin] [--ha | --ha-asynchronous]
#                                                          starts the parts that are not running
#   scripts/cluster.sh down                                stops it and removes its data
#
#   --ha                three servers of Postgres under Patroni with etcd and HAProxy, and three of Redis with Sentinels
#   --ha-asynchronous   the same, with asynchronous replication of Postgres
#
# From the environment:
#   CLUSTER_DIR      a link to its data in a directory under TMPDIR (.cluster)
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   LATCHGATE_…      settings of the nodes
source "$(dirname "$0")/lib.sh"
source scripts/ha.sh

CLUSTER_DIR=${CLUSTER_DIR:-.cluster}
SIMPLE_STORES=(postgres redis)
FRONT=(node-1 node-2 node-3 nginx)
PARTS=("${SIMPLE_STORES[@]}" "${FRONT[@]}")
# The kind of the cluster: simple, ha or ha-asynchronous.
KIND=simple
OUTLIVES=yes
# As in docker-compose.yml.
REDIS_OPTIONS=(--appendonly yes --appendfsync everysec --maxmemory-policy noeviction)

usage() {
    die "usage: scripts/cluster.sh up [--balance by_key|round_robin] [--ha | --ha-asynchronous], or: scripts/cluster.sh down"
}

# use_kind KIND
use_kind() {
    KIND=$1
    [[ $KIND == simple ]] || PARTS=("${HA_STORES[@]}" "${FRONT[@]}")
}

up() {
    local balance='' kind=simple
    while (($# > 0)); do
        case "$1 ${2-}" in
            "--balance by_key" | "--balance round_robin") balance=$2 && shift 2 ;;
            "--ha "* | "--ha-asynchronous "*) kind=${1#--} && shift ;;
            *) usage ;;
        esac
    done
    ensure_packages cc curl envsubst nginx postgres redis
    [[ $kind == simple ]] || ensure_packages etcd haproxy jq patroni
    local binary=${CLUSTER_BINARY-}
    if [[ -z $binary ]]; then
        cargo build --release --locked -p latchgate
        binary=${CARGO_TARGET_DIR:-target}/release/latchgate
    fi
    # An absolute path: the nodes run in other directories.
    binary=$(realpath "$binary")
    # Each waiter needs two connections of nginx.
    ulimit -n "$(ulimit -Hn)"

    enter_room "$kind"
    local running=() part
    for part in "${PARTS[@]}"; do
        if is_running "$part"; then
            running+=("$part")
        elif [[ $part != patroni-* ]]; then
            # The Postgres of a killed Patroni keeps running, and the next Patroni takes it over.
            sweep "$part"
        fi
    done
    start_parts "$binary" "$balance"
    if ((${#running[@]} == ${#PARTS[@]})); then
        say "the cluster was already up"
    elif ((${#running[@]} > 0)); then
        say "already running: ${running[*]}"
    fi
    # From here on the parts outlive this script.
    STARTED=()
    IS_NEW=
    report
}

down() {
    (($# == 0)) || usage
    if ! find_room; then
        say "there is no cluster in $CLUSTER_DIR"
        return
    fi
    local index
    for ((index = ${#PARTS[@]} - 1; index >= 0; index--)); do
        stop "${PARTS[index]}"
    done
    remove_room
    say "the cluster is down, and its data is removed"
}

# The data cannot be in the checkout itself: the user postgres may not have access to it, and the path of a socket must be short.
find_room() {
    [[ -L $CLUSTER_DIR ]] || return 1
    ROOM=$(readlink "$CLUSTER_DIR") # its target may no longer exist
    # The directory will be removed with its contents, so it must be one that this script has made.
    [[ $(basename "$ROOM") == latchgate-cluster.* ]] || die "$CLUSTER_DIR is not a link that this script has made"
    [[ ! -e $ROOM/kind ]] || use_kind "$(<"$ROOM/kind")"
}

remove_room() {
    local part
    for part in "${PARTS[@]}"; do sweep "$part"; done
    rm -rf "$ROOM"
    rm -f "$CLUSTER_DIR"
}

# enter_room KIND: finds the directory of the running cluster, or makes a new one. If no part runs any more, for example after a
# reboot, the old data is removed: other programs may have taken its ports.
enter_room() {
    local part name port
    if find_room; then
        [[ $KIND == "$1" ]] || die "$CLUSTER_DIR is a cluster of another kind ($KIND): take it down first"
        for part in "${PARTS[@]}"; do
            if is_running "$part"; then
                while read -r name port; do PORTS[$name]=$port; done <"$ROOM/ports"
                return
            fi
        done
        say "no part of the last cluster runs any more: starting a new cluster"
        remove_room
    fi
    [[ ! -e $CLUSTER_DIR ]] || die "$CLUSTER_DIR is in the way"
    ROOM=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/latchgate-cluster.XXXXXX")")
    chmod 711 "$ROOM"
    use_kind "$1"
    echo "$KIND" >"$ROOM/kind"
    # Fails if another process starts a cluster at this moment.
    ln -s "$ROOM" "$CLUSTER_DIR" || { rm -rf "$ROOM"; exit 1; }
    IS_NEW=yes
}

# start_parts BINARY BALANCE: starts the parts that are not running.
start_parts() {
    local node part
    if [[ $KIND == simple ]]; then
        is_running postgres || start_postgres
        is_running redis || start_redis
        export LATCHGATE_LOCKS=postgres://postgres@127.0.0.1:${PORTS[postgres]}/postgres
        export LATCHGATE_GATE=redis://127.0.0.1:${PORTS[redis]}
    else
        start_ha_stores
    fi
    for node in node-1 node-2 node-3; do
        [[ $KIND == simple ]] || use_ha_stores "$node"
        if is_running "$node"; then
            # Its stores may just have been restarted.
            until_ready "$node" "http://127.0.0.1:${PORTS[$node]}/readyz"
        else
            start_http "$node" "$1" serve
        fi
    done
    balance "$2"
    for part in "${!PORTS[@]}"; do echo "$part ${PORTS[$part]}"; done >"$ROOM/ports"
    report_urls >"$ROOM/urls"
}

# balance METHOD: runs nginx with this method; if empty, with the last one, at first by_key.
balance() {
    local was='' try
    [[ ! -e $ROOM/balance ]] || was=$(<"$ROOM/balance")
    export BALANCER_METHOD=${1:-${was:-by_key}}
    export BALANCER_NODE_1=127.0.0.1:${PORTS[node-1]}
    export BALANCER_NODE_2=127.0.0.1:${PORTS[node-2]}
    export BALANCER_NODE_3=127.0.0.1:${PORTS[node-3]}
    echo "$BALANCER_METHOD" >"$ROOM/balance"
    local nginx=("$(nginx_bin)" -e stderr -p "$ROOM/nginx" -c "$ROOM/nginx.conf")
    if is_running nginx; then
        export BALANCER_LISTEN=127.0.0.1:${PORTS[nginx]}
        render_nginx >"$ROOM/nginx.conf"
        if [[ $BALANCER_METHOD != "$was" ]]; then
            # Running requests end at their nodes.
            "${nginx[@]}" -q -s reload 2>>"$ROOM/nginx.log"
        fi
        # For a second, nginx may still regard restarted nodes as down.
        until_ready nginx "http://$BALANCER_LISTEN/healthz"
        return
    fi
    mkdir -p "$ROOM/nginx"
    for try in 1 2 3; do
        local port=${PORTS[nginx]:-$(free_port)}
        export BALANCER_LISTEN=127.0.0.1:$port
        render_nginx >"$ROOM/nginx.conf"
        start nginx "${nginx[@]}" -g 'daemon off;'
        if wait_until nginx curl -fs -m 2 "http://127.0.0.1:$port/healthz"; then
            PORTS[nginx]=$port
            return
        fi
        say "trying nginx again ($try)"
    done
    die "nginx does not start"
}

# Variables for a shell.
report_urls() {
    echo "NGINX=http://127.0.0.1:${PORTS[nginx]}"
    local n
    for n in 1 2 3; do echo "NODE_$n=http://127.0.0.1:${PORTS[node-$n]}"; done
    [[ $KIND == simple ]] || report_ha_urls
}

report() {
    local n
    cat <<END

  nginx   http://127.0.0.1:${PORTS[nginx]}   ($(<"$ROOM/balance"))
END
    for n in 1 2 3; do echo "  node-$n  http://127.0.0.1:${PORTS[node-$n]}"; done
    cat <<END

Take your first lock through nginx:

  curl -f -X POST http://127.0.0.1:${PORTS[nginx]}/v1/locks/my-lock/acquire

\`. $CLUSTER_DIR/urls\` sets NGINX and NODE_1 to NODE_3; logs are $CLUSTER_DIR/*.log.
END
    [[ $KIND == simple ]] || report_ha
}

# A cluster that has not started completely is removed.
IS_NEW=
leave() {
    stop_all
    [[ -z $IS_NEW ]] || remove_room
}
trap leave EXIT

case ${1-} in
    up) up "${@:2}" ;;
    down) down "${@:2}" ;;
    *) usage ;;
esac
