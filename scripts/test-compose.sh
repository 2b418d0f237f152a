#!/usr/bin/env bash
# Runs docker-compose.yml and deploy/Dockerfile, as they are, under a Docker engine of its own: builds the image, starts everything,
# uses it through nginx, kills a node, and stops and starts all of it again.
#
# It pulls no image. It makes images from Debian's packages under the names that the files use: a Rust toolchain (that of this machine,
# with the crates of Cargo.lock), Postgres, Redis and nginx, with entrypoints that honour those variables of the official
# images that the files use. So it shows that the files work, and not that the official images do.
#
# As root, on Debian. It takes some minutes, most of them for a release build.
source "$(dirname "$0")/lib.sh"

[[ $(id -u) == 0 ]] || die "only root can start a Docker engine"
# Debian's programs: other versions of `docker` on this machine may lack what its engine needs.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
ensure_packages curl docker-compose dockerd iptables jq mmdebstrap

DOCKER=$SCRATCH/docker
export DOCKER_HOST=unix://$DOCKER/docker.sock DOCKER_CONFIG=$DOCKER/config DOCKER_BUILDKIT=1 COMPOSE_DOCKER_CLI_BUILD=1
# Another project's name, so that networks and volumes are only this test's.
export COMPOSE_PROJECT_NAME=latchgate-test
NGINX=http://127.0.0.1:$(free_port)
export BALANCER_PUBLISH=${NGINX#http://}
POSTGRES_PASSWORD=$(random_text) REDIS_PASSWORD=$(random_text) LATCHGATE_SECRET=$(random_text)
export POSTGRES_PASSWORD REDIS_PASSWORD LATCHGATE_SECRET
