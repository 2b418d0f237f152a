# shellcheck shell=bash
# shellcheck disable=SC2034 # the variables set here are for the scripts that source this
# For the other scripts: `source "$(dirname "$0")/lib.sh"`. Installs what is missing, starts private servers and stops
# them when the script ends, however it ends.
#
# A Postgres or Redis that happens to run as a service of this machine is never used: installing Debian's packages may
# start one, and its data is not ours.

set -Eeuo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/latchgate.XXXXXX")
# The postgres user must be able to pass through to its own directory below.
chmod 711 "$SCRATCH"
STARTED=()

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ensure_packages TOOL...: installs the packages of those tools (cc curl jq postgres redis nginx) that are missing, by apt
# when we are root, and otherwise says what to install.
ensure_packages() {
    local tool missing=()
    for tool in "$@"; do
        has_tool "$tool" || missing+=("$(package_of "$tool")")
    done
    ((${#missing[@]} == 0)) && return
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        die "please install: ${missing[*]} (Debian's names; as root: apt-get install --no-install-recommends ${missing[*]})"
    fi
    say "installing ${missing[*]}"
    # The exit code does not matter: a package's own service may fail to start. What counts is that the tool is there.
    DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2 || true
    for tool in "$@"; do
        has_tool "$tool" || die "$tool is still missing after installing $(package_of "$tool")"
    done
}

has_tool() {
    case $1 in
        postgres) [[ -n $(postgres_bin) ]] ;;
        redis) command -v redis-server >/dev/null && command -v redis-cli >/dev/null ;;
        nginx) command -v nginx >/dev/null || [[ -x /usr/sbin/nginx ]] ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

package_of() {
    case $1 in
        cc) echo build-essential ;; # SQLite is compiled into the binary
        postgres) echo postgresql ;;
        redis) echo redis-server ;;
        *) echo "$1" ;;
    esac
}

# The directory of initdb and postgres, which Debian keeps out of PATH: the newest version.
postgres_bin() {
    local initdb
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

# start NAME COMMAND...: runs it in the background, away from the terminal's Ctrl-C, with its output in $SCRATCH/NAME.log;
# sets STARTED_PID. Should this script be killed outright, the kernel stops the command.
start() {
    local name=$1 signal=TERM as=()
    shift
    if [[ $name == postgres ]]; then
        # To Postgres, SIGTERM means: wait until all clients have gone.
        signal=INT
        as=("${AS_POSTGRES[@]}")
    fi
    local apart=(setsid --)
    [[ -z ${ONE_SESSION-} ]] || apart=()
    # In one setpriv: a later change of user would make the kernel forget the signal.
    "${apart[@]}" setpriv --pdeathsig "$signal" "${as[@]}" -- "$@" >>"$SCRATCH/$name.log" 2>&1 </dev/null &
    STARTED_PID=$!
    STARTED+=("$signal $STARTED_PID")
}

# wait_until NAME COMMAND...: until the command succeeds, while the process started as NAME lives; at most a minute.
wait_until() {
    local name=$1 pid=$STARTED_PID
    shift
    local deadline=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null || ((SECONDS > deadline)); then
            say "$name did not get ready:"
            tail -n 50 "$SCRATCH/$name.log" >&2
            return 1
        fi
        sleep 0.05
    done
    kill -0 "$pid" 2>/dev/null
}

# start_postgres: a throw-away server, fsync on; sets POSTGRES_URL to its database `postgres`.
start_postgres() {
    local bin dir=$SCRATCH/postgres try port
    bin=$(postgres_bin)
    mkdir "$dir"
    [[ $(id -u) != 0 ]] || chown postgres: "$dir"
    (cd "$dir" && setpriv "${AS_POSTGRES[@]}" -- "$bin/initdb" --no-sync --locale=C --encoding=UTF8 --auth=trust \
        --username=postgres -D "$dir/data" >"$SCRATCH/initdb.log" 2>&1) ||
        die "initdb failed: $(cat "$SCRATCH/initdb.log")"
    local settings=(-c listen_addresses=127.0.0.1 -c "unix_socket_directories=$dir" -c max_connections=400
        -c fsync=on -c synchronous_commit=on)
    for try in 1 2 3; do
        port=$(free_port)
        # The directory's lock file, unlike a connection, cannot be that of another server on the port.
        start postgres "$bin/postgres" -D "$dir/data" -p "$port" "${settings[@]}"
        if wait_until postgres grep -q '^ready' "$dir/data/postmaster.pid"; then
            POSTGRES_URL=postgres://postgres@127.0.0.1:$port/postgres
            return
        fi
        say "trying Postgres again ($try)"
    done
    die "Postgres does not start"
}

# start_redis: a throw-away server that keeps everything in memory; sets REDIS_URL.
start_redis() {
    local dir=$SCRATCH/redis try port
    mkdir "$dir"
    for try in 1 2 3; do
        port=$(free_port)
        start redis redis-server --port "$port" --bind 127.0.0.1 --dir "$dir" --save '' --appendonly no
        if wait_until redis redis-cli -p "$port" ping; then
            REDIS_URL=redis://127.0.0.1:$port
            return
        fi
        say "trying Redis again ($try)"
    done
    die "Redis does not start"
}

# stop_all: ends what was started, last first, and removes its data. Runs by itself at the end.
stop_all() {
    local signal pid index
    for ((index = ${#STARTED[@]} - 1; index >= 0; index--)); do
        read -r signal pid <<<"${STARTED[index]}"
        kill -s "$signal" "$pid" 2>/dev/null || continue
        for _ in {1..200}; do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    STARTED=()
    rm -rf "$SCRATCH"
}

trap stop_all EXIT
# Turned into an exit, so that the trap above runs once and the code says what happened.
trap 'exit 130' INT
trap 'exit 143' TERM
