#!/usr/bin/env bash
# Runs docker-compose.yml and deploy/Dockerfile under a Docker engine of its own: builds the image, starts everything,
# uses it through nginx, kills a node, and stops and starts all of it again. On Debian, as root.
#
# It pulls no image. Images of Debian's packages stand in, under the names that the files use: a Rust toolchain (this machine's, with
# the crates of Cargo.lock), Postgres, Redis and nginx, with entrypoints that honour those variables of the official images that
# the files use; and `docker-compose` 1.29 for `docker compose`. So it shows that the files work, and not that they work with the
# official images.
source "$(dirname "$0")/lib.sh"

[[ $(id -u) == 0 ]] || die "only root can start a Docker engine"
# Debian's programs: another `docker` of this machine may need a plug-in.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
ensure_packages curl docker-compose dockerd ip iptables jq mmdebstrap

DOCKER=$SCRATCH/docker
mkdir -p "$DOCKER/config"
export DOCKER_HOST=unix://$DOCKER/docker.sock DOCKER_CONFIG=$DOCKER/config DOCKER_BUILDKIT=1 COMPOSE_DOCKER_CLI_BUILD=1 BUILDKIT_PROGRESS=plain
export POSTGRES_PASSWORD=5e1f00d5e1f00d REDIS_PASSWORD=ca5cadeca5cade LATCHGATE_SECRET=0123456789abcdef0123456789abcdef
NGINX=http://127.0.0.1:8080
NODE_1=http://172.31.70.11:7070
# Debian's docker-compose 1.29 gets the project's name by an option, and knows no `name` in the file. Where this machine permits fewer
# open files than the file asks for, containers get as many as it permits.
files=$(ulimit -Hn)
[[ $files != unlimited ]] && ((files < 65536)) || files=65536
sed "/^name: /d; s/nofile: 65536/nofile: $files/" docker-compose.yml >"$SCRATCH/compose.yml"
COMPOSE=(docker-compose --ansi never --project-name latchgate --project-directory "$PWD" --file "$SCRATCH/compose.yml")

leave() {
    "${COMPOSE[@]}" down --volumes --timeout 5 >/dev/null 2>&1 || true
    stop docker
    # What a container has left mounted would keep the directory from being removed.
    awk -v dir="$DOCKER/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
    stop_all
}
trap leave EXIT

# The engine has a network of its own, so nothing of it stays on this machine, and no port is taken.
start_engine() {
    start docker unshare --net -- sh -c 'ip link set lo up && exec dockerd "$@"' dockerd --host "$DOCKER_HOST" \
        --data-root "$DOCKER/data" --exec-root "$DOCKER/exec" --pidfile "$DOCKER/pid"
    wait_until docker docker version || die "the Docker engine does not start"
}

inside() { nsenter --net="/proc/$(<"$DOCKER/pid")/ns/net" "$@"; }

# log NAME COMMAND...: with its output in a file, which is shown if it fails.
log() {
    local name=$1
    shift
    "$@" >"$SCRATCH/$name.log" 2>&1 || die "$name: $(tail -n 60 "$SCRATCH/$name.log")"
}

# name_of IMAGE: with its version, as docker-compose.yml has it.
name_of() { sed -n "s/^    image: \($1:.*\)$/\1/p" docker-compose.yml; }

make_images() {
    local tar=$SCRATCH/base.tar rust=$SCRATCH/rust.tar files=$SCRATCH/files id version
    say "installing Debian's packages into an image"
    # shellcheck disable=SC2016 # mmdebstrap gives $1
    log debian mmdebstrap --variant=minbase --include=ca-certificates,curl,gcc,gettext-base,libc6-dev,nginx-light,postgresql,redis-server \
        --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --essential-hook='mkdir -p "$1/etc/postgresql-common"; echo create_main_cluster=false >"$1/etc/postgresql-common/createcluster.conf"' \
        bookworm "$tar"
    cp "$tar" "$rust"

    mkdir -p "$files/entrypoints" "$files/data"
    write_entrypoints "$files/entrypoints"
    tar -C "$files" -rf "$tar" entrypoints
    # A new volume gets its owner from the image.
    id=$(tar -xOf "$tar" ./etc/passwd | awk -F: '$1 == "redis" { print $3 " " $4 }')
    tar -C "$files" --owner="${id% *}" --group="${id#* }" -rf "$tar" data
    import "$tar" "$(name_of postgres)" 'ENTRYPOINT ["/entrypoints/postgres"]'
    import "$tar" "$(name_of nginx)" 'ENTRYPOINT ["/entrypoints/nginx"]'
    import "$tar" "$(name_of redis)" 'WORKDIR /data'

    log vendor cargo vendor --locked --versioned-dirs "$SCRATCH/vendor"
    printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "/usr/local/cargo/vendor"\n' >"$SCRATCH/config.toml"
    tar -C "$(rustc --print sysroot)" --transform 's,^,usr/local/rust/,' -rf "$rust" bin lib
    tar -C "$SCRATCH" --transform 's,^,usr/local/cargo/,' -rf "$rust" vendor config.toml
    rm -rf "$SCRATCH/vendor"
    version=$(sed -n 's/^ARG RUST_VERSION=//p' deploy/Dockerfile)
    import "$rust" "rust:$version-bookworm" 'ENV CARGO_HOME=/usr/local/cargo' \
        'ENV PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
}

# import TAR NAME CHANGE...
import() {
    local tar=$1 name=$2 change changes=()
    shift 2
    for change in "$@"; do changes+=(--change "$change"); done
    log import docker import "${changes[@]}" "$tar" "$name"
    rm -f "$SCRATCH/import.log"
}

# Small ones, which do what the files need of those of the official images.
write_entrypoints() {
    cat >"$1/postgres" <<'END'
#!/bin/sh
set -eu
bin=$(echo /usr/lib/postgresql/*/bin) data=/var/lib/postgresql/data
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
if [ ! -e $data/ready ]; then
    rm -rf $data
    install -d -o postgres -g postgres -m 700 $data
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    chmod 644 /tmp/password
    as_postgres "$bin/initdb" -D $data --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>$data/pg_hba.conf
    echo "create database $POSTGRES_DB" | as_postgres "$bin/postgres" --single -D $data postgres
    touch $data/ready
fi
exec setpriv --reuid postgres --regid postgres --init-groups "$bin/postgres" -D $data -c listen_addresses='*' -c unix_socket_directories=/tmp
END
    cat >"$1/nginx" <<'END'
#!/bin/sh
set -eu
names=$(env | sed 's/=.*//' | grep "$NGINX_ENVSUBST_FILTER" | sed 's/.*/${&}/')
for template in /etc/nginx/templates/*.template; do
    envsubst "$names" <"$template" >"$NGINX_ENVSUBST_OUTPUT_DIR/$(basename "$template" .template)"
done
exec "$@"
END
    chmod +x "$1"/*
}

up() {
    log up "${COMPOSE[@]}" up -d --no-build
    until_healthy
}

until_healthy() {
    local deadline=$((SECONDS + 180)) states
    while ((SECONDS < deadline)); do
        # shellcheck disable=SC2046 # one word for each container
        states=$(docker inspect -f '{{.State.Health.Status}}' $("${COMPOSE[@]}" ps -q) | sort | uniq -c | xargs)
        [[ $states != "6 healthy" ]] || return 0
        sleep 0.5
    done
    die "not healthy: $("${COMPOSE[@]}" ps) $("${COMPOSE[@]}" logs --tail 20 2>&1)"
}

container() { "${COMPOSE[@]}" ps -q "$1"; }

pid_of() { docker inspect -f '{{.State.Pid}}' "$(container "$1")"; }

# ask STATUS METHOD PATH [BODY]: through nginx; prints the answer.
ask() {
    local answer status
    answer=$(inside curl -s -m 60 -w '\n%{http_code}' -X "$2" "$NGINX$3" -d "${4-}")
    status=${answer##*$'\n'}
    [[ $status == "$1" ]] || die "$2 $3: $status where $1 was expected: $answer"
    printf '%s\n' "${answer%$'\n'*}"
}

locks_and_operations_work_through_nginx() {
    local lease waiter claim id
    lease=$(ask 200 POST /v1/locks/my-lock/acquire | jq -r .lease_id)
    ask 423 POST /v1/locks/my-lock/acquire >/dev/null
    ask 200 POST /v1/locks/my-lock/acquire '{"wait_ms":50000}' >"$SCRATCH/granted" &
    waiter=$!
    until [[ $(ask 200 GET /v1/locks/my-lock | jq .waiters) == 1 ]]; do sleep 0.1; done
    ask 200 POST /v1/locks/my-lock/release "{\"lease_id\":\"$lease\"}" >/dev/null
    wait "$waiter"
    claim=$(ask 201 POST /v1/operations/pre '{"operation":"charge","contents":{"order":42}}')
    id=$(jq -r .id <<<"$claim")
    ask 200 POST "/v1/operations/$id/post" "{\"stamp\":$(jq .stamp <<<"$claim"),\"outcome\":\"success\"}" >/dev/null
    ask 409 POST /v1/operations/pre '{"operation":"charge","contents":{"order":42}}' >/dev/null
    inside curl -fs -m 10 "$NGINX/" | grep -q '<title>Latchgate</title>' || die "nginx does not serve the console"
}

containers_have_no_rights() {
    local name pid status
    for name in node-1 node-2 node-3 nginx redis; do
        pid=$(pid_of "$name")
        status=$(<"/proc/$pid/status")
        grep -qP '^Uid:\t(?!0\t)' <<<"$status" || die "$name runs as root"
        grep -q '^CapEff:.0*$' <<<"$status" || die "$name has capabilities"
        grep -q '^CapBnd:.0*$' <<<"$status" || die "$name can get capabilities"
        grep -q '^NoNewPrivs:.1$' <<<"$status" || die "$name can get privileges"
        awk '$5 == "/" && $6 ~ /(^|,)ro(,|$)/ { found = 1 } END { exit !found }' "/proc/$pid/mountinfo" || die "$name can write to its root"
    done
    ! docker exec "$(container nginx)" touch /here 2>"$SCRATCH/touch" || die "nginx wrote to its root"
    grep -q 'Read-only file system' "$SCRATCH/touch" || die "touch failed for another reason: $(<"$SCRATCH/touch")"
    # Nothing but nginx can be reached from outside, and the stores by nodes alone.
    ! inside curl -s -m 2 telnet://172.31.70.1:5432 </dev/null >/dev/null || die "Postgres's port is published"
}

a_killed_node_is_not_missed_and_comes_back() {
    local i before
    before=$(pid_of node-2)
    kill -KILL "$before"
    for i in {1..20}; do ask 200 POST "/v1/locks/after-$i/acquire" >/dev/null; done
    until [[ $(pid_of node-2) != "$before" && $(pid_of node-2) != 0 ]]; do sleep 0.2; done
    until_healthy
}

data_outlives_the_containers() {
    local lease
    lease=$(ask 200 POST /v1/locks/kept/acquire '{"ttl_ms":300000}' | jq -r .lease_id)
    # Without --volumes.
    log down "${COMPOSE[@]}" down
    [[ -z $(docker ps -aq) ]] || die "a container is left"
    up
    ask 423 POST /v1/locks/kept/acquire >/dev/null
    ask 200 POST /v1/locks/kept/release "{\"lease_id\":\"$lease\"}" >/dev/null
    ask 409 POST /v1/operations/pre '{"operation":"charge","contents":{"order":42}}' >/dev/null
}

# Until it serves, with its stores running.
start_time_ms() {
    local began
    docker stop "$(container node-1)" >/dev/null
    began=$(date +%s%3N)
    docker start "$(container node-1)" >/dev/null
    until inside curl -fs -m 1 -o /dev/null "$NODE_1/readyz"; do sleep 0.02; done
    echo $(($(date +%s%3N) - began))
}

start_engine
make_images
say "building the image"
log build "${COMPOSE[@]}" build
size=$(docker image inspect -f '{{.Size}}' latchgate:local)
((size <= 40000000)) || die "the image has $size bytes"
say "the image has $((size / 1000000)) MB"
up
say "everything is healthy"
locks_and_operations_work_through_nginx
containers_have_no_rights
a_killed_node_is_not_missed_and_comes_back
data_outlives_the_containers
say "a node's container serves $(start_time_ms) ms after its start"
say "docker-compose.yml and deploy/Dockerfile pass their tests"
