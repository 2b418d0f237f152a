#!/usr/bin/env bash
# A cluster of real parts on this machine: Postgres, Redis, three nodes, and nginx in front. It goes on when this script
# has ended.
#
#   scripts/cluster.sh up [--balance by_key|round_robin]   starts it, or whatever of it does not run
#   scripts/cluster.sh down                                stops it and removes its data
#
# From the environment:
#   CLUSTER_DIR      its state: a link to a directory under TMPDIR (.cluster)
#   CLUSTER_BINARY   a `latchgate` that is already built; without it, cargo builds one
#   LATCHGATE_…      the nodes get these too
source "$(dirname "$0")/lib.sh"

CLUSTER_DIR=${CLUSTER_DIR:-.cluster}
PARTS=(postgres redis node-1 node-2 node-3 nginx)
OUTLIVES=yes
# As in docker-compose.yml.
REDIS_OPTIONS=(--appendonly yes --appendfsync everysec --maxmemory-policy noeviction)

usage() {
    die "usage: scripts/cluster.sh up [--balance by_key|round_robin], or: scripts/cluster.sh down"
}

up() {
    local balance=''
    while (($# > 0)); do
        case "$1 ${2-}" in
            "--balance by_key" | "--balance round_robin") balance=$2 ;;
            *) usage ;;
        esac
        shift 2
    done
    ensure_packages cc curl envsubst nginx postgres redis
    local binary=${CLUSTER_BINARY-}
    if [[ -z $binary ]]; then
        cargo build --release --locked -p latchgate
        binary=${CARGO_TARGET_DIR:-target}/release/latchgate
    fi
    # One path for it, wherever it is looked at from.
    binary=$(realpath "$binary")
    # Each waiter is two connections of nginx.
    ulimit -n "$(ulimit -Hn)"

    enter_room
    local running=() part
    for part in "${PARTS[@]}"; do
        if is_running "$part"; then running+=("$part"); else sweep "$part"; fi
    done
    start_parts "$binary" "$balance"
    if ((${#running[@]} == ${#PARTS[@]})); then
        say "the cluster was up already"
    elif ((${#running[@]} > 0)); then
        say "these ran already: ${running[*]}"
    fi
    # From here on they are on their own.
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
    say "the cluster is down, and its data is gone"
}

# The data cannot be in the checkout itself: the user postgres may not be able to pass through to it, and the name of a
# socket must be short.
find_room() {
    [[ -L $CLUSTER_DIR ]] || return 1
    ROOM=$(readlink "$CLUSTER_DIR") # where it led to may be gone
    # Removed with all that is in it: so it must be one of ours.
    [[ $(basename "$ROOM") == latchgate-cluster.* ]] || die "$CLUSTER_DIR is not a link that this script has made"
}

remove_room() {
    local part
    for part in "${PARTS[@]}"; do sweep "$part"; done
    rm -rf "$ROOM"
    rm -f "$CLUSTER_DIR"
}

# Takes the room of the cluster that runs, or makes a new one. Of a cluster that has no part left, after a reboot say,
# nothing is kept: others may have its ports.
enter_room() {
    local part name port
    if find_room; then
        for part in "${PARTS[@]}"; do
            if is_running "$part"; then
                while read -r name port; do PORTS[$name]=$port; done <"$ROOM/ports"
                return
            fi
        done
        say "nothing of the last cluster runs any more: starting a new one"
        remove_room
    fi
    [[ ! -e $CLUSTER_DIR ]] || die "$CLUSTER_DIR is in the way"
    ROOM=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/latchgate-cluster.XXXXXX")")
    chmod 711 "$ROOM"
    # Fails if somebody else is starting one at this moment.
    ln -s "$ROOM" "$CLUSTER_DIR" || { rm -rf "$ROOM"; exit 1; }
    IS_NEW=yes
}

# start_parts BINARY BALANCE: those that do not run.
start_parts() {
    local node part
    is_running postgres || start_postgres
    is_running redis || start_redis
    export LATCHGATE_LOCKS=postgres://postgres@127.0.0.1:${PORTS[postgres]}/postgres
    export LATCHGATE_GATE=redis://127.0.0.1:${PORTS[redis]}
    for node in node-1 node-2 node-3; do
        if is_running "$node"; then
            # Its stores may just have come back.
            until_ready "$node" "http://127.0.0.1:${PORTS[$node]}/readyz"
        else
            start_http "$node" "$1" serve
        fi
    done
    balance "$2"
    for part in "${!PORTS[@]}"; do echo "$part ${PORTS[$part]}"; done >"$ROOM/ports"
    report_urls >"$ROOM/urls"
}

# balance METHOD: has nginx run with it; an empty one means the last one, at first by_key.
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
            # Running requests end where they are.
            "${nginx[@]}" -q -s reload 2>>"$ROOM/nginx.log"
        fi
        # It may take nodes that are back for down for a second.
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

# until_ready NAME URL: for what runs already.
until_ready() {
    read -r _ STARTED_PID _ <"$ROOM/$1.pid"
    wait_until "$1" curl -fs -m 2 "$2" || die "$1 does not get ready"
}

# Variables for a shell.
report_urls() {
    echo "NGINX=http://127.0.0.1:${PORTS[nginx]}"
    local n
    for n in 1 2 3; do echo "NODE_$n=http://127.0.0.1:${PORTS[node-$n]}"; done
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
}

# A cluster that is only half up is of no use to anybody.
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
