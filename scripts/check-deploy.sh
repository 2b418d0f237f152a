#!/usr/bin/env bash
# Fails when docker-compose.yml, deploy/ and .env.example do not fit each other or the binary, when systemd does not accept the unit, or
# when the manifests do not fit the schemas of Kubernetes. It needs no Docker: scripts/test-compose.sh runs the images.
#
#   scripts/check-deploy.sh [BINARY]   if absent, cargo builds it
source "$(dirname "$0")/lib.sh"

ensure_packages cc envsubst nginx systemd-analyze
# shellcheck disable=SC2046 # words
python_tools deploy $(<service/testkit/deploy/requirements.txt)
binary=${1-}
if [[ -z $binary ]]; then
    cargo build --locked --quiet -p latchgate
    binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi

"$TOOLS/python" -B scripts/check-deploy.py "$binary" >"$SCRATCH/variables" || die "the files for Docker do not fit"
while read -r variable; do export "${variable?}"; done <"$SCRATCH/variables"

# Even the test opens the port.
BALANCER_LISTEN=127.0.0.1:$(free_port)
export BALANCER_LISTEN BALANCER_METHOD
for BALANCER_METHOD in by_key round_robin; do
    render_nginx >"$SCRATCH/nginx.conf"
    log=$("$(nginx_bin)" -t -e stderr -p "$SCRATCH" -c "$SCRATCH/nginx.conf" 2>&1) || die "deploy/nginx.conf: $log"
    [[ $log != *'[emerg]'* ]] || die "deploy/nginx.conf: $log"
done

# In the unit, the binary is where an operator installs it.
mkdir "$SCRATCH/systemd"
sed "s|^ExecStart=[^ ]*|ExecStart=$(realpath "$binary")|" deploy/latchgate.service >"$SCRATCH/systemd/latchgate.service"
# Also other units of this machine are read. Their errors and warnings do not matter.
verify=(systemd-analyze verify)
[[ $(systemd-analyze --help) != *--recursive-errors* ]] || verify+=(--recursive-errors=no)
log=$("${verify[@]}" "$SCRATCH/systemd/latchgate.service" 2>&1) || die "deploy/latchgate.service: $log"
[[ $log != *latchgate.service* ]] || die "deploy/latchgate.service: $log"

log=$("$TOOLS/kubernetes-validate" --strict deploy/kubernetes/*.yaml 2>&1) ||
    die "deploy/kubernetes: $log"
say "docker-compose.yml, deploy/ and .env.example fit each other and the binary"
