#!/usr/bin/env bash
# Measures Latchgate beside other lock services in one run, in rounds; prints tables in Markdown, and the targets with what was reached.
#
#   scripts/bench-peers.sh [ARGS]
#
# Arguments go to service/bench/peers/peers.py: --rounds 3 --seconds 4 --connections 128 --only pairs,hot --json PATH. Variables:
#   SIDES            what to measure; all if absent: floor postgres postgres-no-history sqlite sqlite-no-history redis redis-no-history
#                    gate postgres-0ms postgres-1ms three-nodes etcd webdis curator octostore
#   CLUSTER_BINARY   a `latchgate` to use instead of building one
#   BENCH_BINARY     a `latchgate-bench`, likewise
#
# Each service runs privately on free ports, with throw-away data on this disk. One that cannot be had is skipped by name.
source "$(dirname "$0")/lib.sh"

SIDES=${SIDES:-floor postgres postgres-no-history sqlite sqlite-no-history redis redis-no-history gate postgres-0ms postgres-1ms
    three-nodes etcd webdis curator octostore}
is_meant() { [[ " ${SIDES//$'\n'/ } " == *" $1 "* ]]; }

ensure_packages cc curl postgres python3
# Linux distributes the processors among sessions before processes (sched_autogroup). Servers in sessions of their own would distort
# the measurement.
ONE_SESSION=yes
# Each client is a connection: one descriptor in the client and one in the node.
ulimit -n "$(ulimit -Hn)"

if [[ -z ${CLUSTER_BINARY-} || -z ${BENCH_BINARY-} ]]; then
    cargo build --profile dist --locked -p latchgate -p latchgate-bench
fi
latchgate=${CLUSTER_BINARY:-${CARGO_TARGET_DIR:-target}/dist/latchgate}
bench=${BENCH_BINARY:-${CARGO_TARGET_DIR:-target}/dist/latchgate-bench}

sides=()
# add NAME PROTOCOL URL [WORD...]
add() { sides+=(--side "$*"); }

# try NAME COMMAND...: sets up a service; if that fails, it is left out.
try() {
    local name=$1
    shift
    is_meant "$name" || return 0
    # In this shell, because it notes what it has started. `-e` does not apply in a condition: the functions return at a failure.
    if ! "$@"; then
        say "skipped: $name"
    fi
}

# has TOOL...: installs what is missing, in a subshell, because ensure_packages ends the script if it cannot.
has() { (ensure_packages "$@"); }

admin_key=$("$latchgate" api-key generate)

# node NAME [ARGS]: one node as a user runs it, with an API key; sets HTTP_URL and STARTED_PID.
node() {
    LATCHGATE_ADMIN_API_KEY=$admin_key start_http "node-of-$1" "$latchgate" serve "${@:2}"
}

start_postgres
postgres_pid=$STARTED_PID
age_postgres
# database NAME: sets DATABASE to the URL of a new database.
database() {
    "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" -c "create database \"bench-$1\"" || return
    DATABASE=${POSTGRES_URL%/*}/bench-$1
}

side_floor() {
    start_http floor "$bench" floor-server
    add floor floor "$HTTP_URL" node="$STARTED_PID"
}

# side_postgres NAME [ARGS]
side_postgres() {
    local name=$1
    shift
    database "$name" || return
    # As many connections as the part `idle` needs.
    node "$name" --locks "$DATABASE" --connections-max 22500 "$@"
    add "$name" latchgate "$HTTP_URL" node="$STARTED_PID" store="$postgres_pid" key="$admin_key"
}

# side_delayed NAME MS: Postgres behind a proxy that delays each answer.
side_delayed() {
    local name=$1 port address
    database "$name" || return
    port=$(free_port)
    address=${POSTGRES_URL#*@}
    start "proxy-$name" "$bench" delay-proxy --listen "127.0.0.1:$port" --to "${address%/*}" --ms "$2"
    wait_until "proxy-$name" grep -q listens "$ROOM/proxy-$name.log" || return
    node "$name" --locks "postgres://postgres@127.0.0.1:$port/${DATABASE##*/}"
    add "$name" latchgate "$HTTP_URL" node="$STARTED_PID" store="$postgres_pid" key="$admin_key"
}

# side_sqlite NAME [ARGS]
side_sqlite() {
    local name=$1
    shift
    node "$name" --locks "sqlite:$ROOM/$name.db" "$@"
    add "$name" latchgate "$HTTP_URL" node="$STARTED_PID" key="$admin_key"
}

# private_redis NAME: without persistence, and not shared with another side; sets REDIS_URL and REDIS_PID.
private_redis() {
    local name=redis-of-$1 port
    has redis || return
    port=$(free_port)
    mkdir "$ROOM/$name"
    start "$name" redis-server --port "$port" --bind 127.0.0.1 --dir "$ROOM/$name" --save '' --appendonly no
    REDIS_PID=$STARTED_PID
    wait_until "$name" redis-cli -p "$port" ping || return
    REDIS_URL=redis://127.0.0.1:$port REDIS_PORT=$port
}

# side_redis NAME [ARGS]
side_redis() {
    local name=$1
    shift
    private_redis "$name" || return
    node "$name" --locks "$REDIS_URL" --new "$@"
    add "$name" latchgate "$HTTP_URL" node="$STARTED_PID" store="$REDIS_PID" key="$admin_key"
}

side_gate() {
    private_redis gate || return
    database gate || return
    node gate --locks "$DATABASE" --gate "$REDIS_URL"
    add gate latchgate "$HTTP_URL" node="$STARTED_PID" store="$REDIS_PID,$postgres_pid" key="$admin_key"
}

side_three_nodes() {
    local number port pids=() servers=
    has nginx || return
    database three-nodes || return
    for number in 1 2 3; do
        node "three-nodes-$number" --locks "$DATABASE"
        pids+=("$STARTED_PID")
        servers+="server ${HTTP_URL#http://}; "
    done
    port=$(free_port)
    # As deploy/nginx.conf by default: the calls for a key go to one node.
    cat >"$ROOM/nginx.conf" <<CONF
worker_processes 2;
daemon off;
pid $ROOM/nginx-own.pid;
error_log $ROOM/nginx-error.log;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path $ROOM/nginx-body; proxy_temp_path $ROOM/nginx-proxy; fastcgi_temp_path $ROOM/nginx-fastcgi;
    uwsgi_temp_path $ROOM/nginx-uwsgi; scgi_temp_path $ROOM/nginx-scgi;
    keepalive_requests 1000000;
    map \$uri \$lock_key {
        "~^/v1/locks/(?<before_the_verb>.+)/(?:acquire|renew|release)\$" \$before_the_verb;
        default \$request_id;
    }
    upstream nodes { hash \$lock_key consistent; ${servers}keepalive 256; keepalive_requests 1000000; }
    server {
        listen 127.0.0.1:$port;
        location / { proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host \$http_host; }
    }
}
CONF
    start nginx "$(nginx_bin)" -c "$ROOM/nginx.conf" -p "$ROOM"
    wait_until nginx curl -fs -m 2 "http://127.0.0.1:$port/readyz" || return
    add three-nodes latchgate "http://127.0.0.1:$port" node="$(IFS=,; echo "${pids[*]}"),$STARTED_PID" store="$postgres_pid" \
        key="$admin_key"
}

side_etcd() {
    local port peer
    has etcd || return
    port=$(free_port) peer=$(free_port)
    start etcd etcd --data-dir "$ROOM/etcd" --listen-client-urls "http://127.0.0.1:$port" --log-level error \
        --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer"
    wait_until etcd curl -fs -m 2 "http://127.0.0.1:$port/health" || return
    add etcd etcd "http://127.0.0.1:$port" node="$STARTED_PID"
}

# With the settings of Debian's package, apart from ports and files.
side_webdis() {
    local port
    has webdis || return
    private_redis webdis || return
    port=$(free_port)
    cat >"$ROOM/webdis.json" <<CONF
{"redis_host": "127.0.0.1", "redis_port": $REDIS_PORT, "http_host": "127.0.0.1", "http_port": $port, "threads": 2,
 "daemonize": false, "database": 0, "verbosity": 3, "logfile": "$ROOM/webdis-own.log"}
CONF
    start webdis webdis "$ROOM/webdis.json"
    wait_until webdis curl -fs -m 2 "http://127.0.0.1:$port/PING" || return
    add webdis webdis "http://127.0.0.1:$port" node="$STARTED_PID" store="$REDIS_PID"
}

# java_path: the libraries of ZooKeeper and Curator, where Debian keeps them.
java_path() {
    local jars=(/usr/share/java/{curator-recipes,curator-framework,curator-client,zookeeper,zookeeper-jute,guava,slf4j-api,slf4j-nop}.jar
        /usr/share/java/{metrics-core,snappy-java,commons-cli,log4j-1.2}.jar /usr/share/java/netty-*.jar)
    (IFS=:; echo "${jars[*]}")
}

side_curator() {
    local port path
    has java javac zookeeper curator || return
    path=$(java_path)
    port=$(free_port)
    mkdir "$ROOM/zookeeper" "$ROOM/curator"
    javac -cp "$path" -d "$ROOM/curator" service/bench/peers/CuratorLoad.java || return
    printf '%s\n' tickTime=2000 "dataDir=$ROOM/zookeeper" "clientPort=$port" clientPortAddress=127.0.0.1 \
        admin.enableServer=false maxClientCnxns=0 >"$ROOM/zookeeper.cfg"
    start zookeeper java -Dzookeeper.admin.enableServer=false -cp "$path" org.apache.zookeeper.server.ZooKeeperServerMain \
        "$ROOM/zookeeper.cfg"
    wait_until zookeeper port_is_open "$port" || return
    add curator curator java -cp "$path:$ROOM/curator" CuratorLoad "127.0.0.1:$port" node="$STARTED_PID"
}

port_is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

side_octostore() {
    local port root=${CARGO_TARGET_DIR:-target}/peers binary
    binary=$(command -v octostore || echo "$root/bin/octostore")
    if [[ ! -x $binary ]]; then
        say "building octostore"
        cargo install --quiet --locked --root "$root" octostore || return
    fi
    port=$(free_port)
    start octostore env BIND_ADDR="127.0.0.1:$port" DATABASE_URL="$ROOM/octostore.db" STATIC_TOKENS=bench:bench-token-0123456789 \
        RUST_LOG=error "$binary" serve
    wait_until octostore port_is_open "$port" || return
    add octostore octostore "http://127.0.0.1:$port" node="$STARTED_PID" key=bench-token-0123456789
}

try floor side_floor
try postgres side_postgres postgres
try postgres-no-history side_postgres postgres-no-history --history-retention 0
try sqlite side_sqlite sqlite
try sqlite-no-history side_sqlite sqlite-no-history --history-retention 0
try redis side_redis redis
try redis-no-history side_redis redis-no-history --history-retention 0
try gate side_gate
for name in $SIDES; do
    if [[ $name =~ ^postgres-([0-9]+)ms$ ]]; then try "$name" side_delayed "$name" "${BASH_REMATCH[1]}"; fi
done
try three-nodes side_three_nodes
try etcd side_etcd
try webdis side_webdis
try curator side_curator
try octostore side_octostore

python3 service/bench/peers/peers.py --latchgate "$latchgate" --bench "$bench" "${sides[@]}" "$@"
