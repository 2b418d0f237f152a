#!/usr/bin/env bash
# Fails when docker-compose.yml, deploy/ and .env.example do not fit each other or the binary. It needs no Docker, but does not show
# that the images work.
#
#   scripts/check-deploy.sh [BINARY]   if absent, cargo builds it
source "$(dirname "$0")/lib.sh"

ensure_packages cc envsubst nginx python3-yaml
binary=${1-}
if [[ -z $binary ]]; then
    cargo build --locked --quiet -p latchgate
    binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi

python3 -B scripts/check-deploy.py "$binary" >"$SCRATCH/variables" || die "the files for Docker do not fit"
while read -r variable; do export "${variable?}"; done <"$SCRATCH/variables"

# Even the test opens the port.
BALANCER_LISTEN=127.0.0.1:$(free_port)
export BALANCER_LISTEN BALANCER_METHOD
for BALANCER_METHOD in by_key round_robin; do
    render_nginx >"$SCRATCH/nginx.conf"
    log=$("$(nginx_bin)" -t -e stderr -p "$SCRATCH" -c "$SCRATCH/nginx.conf" 2>&1) || die "deploy/nginx.conf: $log"
    [[ $log != *'[emerg]'* ]] || die "deploy/nginx.conf: $log"
done
say "docker-compose.yml, deploy/ and .env.example fit each other and the binary"
