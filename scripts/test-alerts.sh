#!/usr/bin/env bash
# Causes each alert of deploy/alerts.yml against real nodes and a real Prometheus, and waits until it fires. The expressions are those of
# the file; only how long they must hold is shorter. The last line is a summary.
#
#   ALERTS_BINARY   a built `latchgate`; if absent, cargo builds one
source "$(dirname "$0")/lib.sh"

ensure_packages curl jq openssl postgres prometheus redis
if [[ -z ${ALERTS_BINARY-} ]]; then
    ensure_packages cc
    cargo build --locked -p latchgate
    ALERTS_BINARY=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi

passed=0 failed=0 skipped=0
declare -A CAUSED=()

start_postgres
start_redis
REDIS_PID=$STARTED_PID
start_http plain "$ALERTS_BINARY" serve --locks "sqlite:$ROOM/plain.db"
PLAIN=$HTTP_URL
start_http on-redis "$ALERTS_BINARY" serve --locks "$REDIS_URL" --new
ON_REDIS=$HTTP_URL
start_http gate "$ALERTS_BINARY" serve --locks "sqlite:$ROOM/gate.db" --gate "$REDIS_URL"
GATE=$HTTP_URL
# An operator sets quotas and makes API keys that expire.
API_KEY=lgk_0123456789ab_c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee000033df08
LATCHGATE_ADMIN_API_KEY=$API_KEY start_http guarded "$ALERTS_BINARY" serve --locks "$POSTGRES_URL" --open-metrics \
    --connections-max 40
GUARDED=$HTTP_URL
# certificate DAYS: makes one that lasts for so long.
certificate() {
    openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days "$1" -keyout "$ROOM/key.pem" -out "$ROOM/cert.pem" 2>/dev/null
}
certificate 90
SECURE_PORT=$(free_port)
start secure "$ALERTS_BINARY" serve --listen "127.0.0.1:$SECURE_PORT" --locks "sqlite:$ROOM/secure.db" \
    --tls-cert "$ROOM/cert.pem" --tls-key "$ROOM/key.pem"
SECURE_PID=$STARTED_PID

# In place of a postgres_exporter.
EXPORTER_PORT=$(free_port)
echo 'pg_stat_activity_max_tx_duration{datname="db"} 1' >"$ROOM/exported"
start exporter python3 -c '
import http.server, sys
class Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(open(sys.argv[2], "rb").read())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Exporter).serve_forever()' "$EXPORTER_PORT" "$ROOM/exported"

sed -E 's/^( +for:) .*/\1 1s/' deploy/alerts.yml >"$ROOM/alerts.yml"
cat >"$ROOM/prometheus.yml" <<END
global:
  scrape_interval: 500ms
  scrape_timeout: 500ms
  evaluation_interval: 500ms
rule_files: [$ROOM/alerts.yml]
scrape_configs:
  - job_name: latchgate
    static_configs:
      - targets: ["${PLAIN#http://}", "${ON_REDIS#http://}", "${GATE#http://}", "${GUARDED#http://}"]
  - job_name: secure
    scheme: https
    tls_config: { insecure_skip_verify: true }
    static_configs:
      - targets: ["127.0.0.1:$SECURE_PORT"]
  - job_name: postgres
    static_configs:
      - targets: ["127.0.0.1:$EXPORTER_PORT"]
END
PROMETHEUS=http://127.0.0.1:$(free_port)
start prometheus prometheus --config.file="$ROOM/prometheus.yml" --storage.tsdb.path="$ROOM/prometheus" \
    --web.listen-address="${PROMETHEUS#http://}" --log.level=warn
wait_until prometheus curl -fs -m 2 "$PROMETHEUS/-/ready" || die "Prometheus does not start"

# query EXPRESSION: prints the number of series.
query() {
    curl -fs -m 5 -G "$PROMETHEUS/api/v1/query" --data-urlencode "query=$1" | jq '.data.result | length'
}

# firing: the names of the alerts that fire.
firing() {
    curl -fs -m 5 "$PROMETHEUS/api/v1/alerts" | jq -r '.data.alerts[] | select(.state == "firing") | .labels.alertname' | sort -u
}

# causes ALERT COMMAND...: repeats the command until the alert fires, for 60 s at most.
causes() {
    local alert=$1 deadline=$((SECONDS + 60))
    shift
    CAUSED[$alert]=yes
    while ((SECONDS < deadline)); do
        "$@" >/dev/null 2>&1 || true
        if firing | grep -qx "$alert"; then
            say "$alert fires"
            passed=$((passed + 1))
            return
        fi
        sleep 0.2
    done
    say "$alert does not fire"
    failed=$((failed + 1))
}

KEYS=0
# acquire URL BODY: a key of its own.
acquire() {
    KEYS=$((KEYS + 1))
    curl -s -m 5 -d "$2" "$1/v1/locks/alert-$KEYS/acquire"
}

a_holder_dies() { acquire "$PLAIN" '{"ttl_ms": 100}'; }

an_operation_runs_twice() {
    local contents first second url
    KEYS=$((KEYS + 1))
    contents="{\"operation\": \"pay\", \"contents\": $KEYS, \"ttl_ms\": 1000, \"on_expiry\": \"retry\"}"
    first=$(curl -fs -m 5 -d "$contents" "$PLAIN/v1/operations/pre")
    sleep 1.2
    second=$(curl -fs -m 5 -d "$contents" "$PLAIN/v1/operations/pre")
    url=$PLAIN/v1/operations/$(jq -r .id <<<"$first")/post
    for go in "$second" "$first"; do
        curl -s -m 5 -d "$(jq '{stamp, outcome: "success"}' <<<"$go")" "$url"
    done
}

# The state of the key is cached from the second time on, so that what waits is the commit and not a load.
the_store_is_slow() {
    local lease
    KEYS=$((KEYS + 1))
    lease="{\"lease_id\": \"slow-$KEYS\"}"
    redis-cli -u "$REDIS_URL" client pause 600
    curl -s -m 5 -d "$lease" "$ON_REDIS/v1/locks/slow/acquire"
    curl -s -m 5 -d "$lease" "$ON_REDIS/v1/locks/slow/release"
}

the_store_loses_its_data() {
    [[ -n ${HAS_LOST_DATA-} ]] || redis-cli -u "$REDIS_URL" flushall
    HAS_LOST_DATA=yes
    acquire "$ON_REDIS" '{}'
}

a_transaction_stays_open() { echo 'pg_stat_activity_max_tx_duration{datname="db"} 700' >"$ROOM/exported"; }

a_call_needs_the_store() { acquire "$ON_REDIS" '{}'; }

a_run_is_entered() {
    KEYS=$((KEYS + 1))
    curl -s -m 5 -d "{\"operation\": \"pay\", \"contents\": $KEYS, \"attempt_id\": \"$KEYS\", \"ran_at\": \"2026-01-01T00:00:00Z\"}" \
        "$GATE/v1/operations/enter"
}

guarded() { curl -s -m 5 -H "Authorization: Bearer $API_KEY" "$@"; }

an_outcome_is_unknown() {
    local go
    KEYS=$((KEYS + 1))
    go=$(curl -fs -m 5 -d "{\"operation\": \"pay\", \"contents\": $KEYS}" "$PLAIN/v1/operations/pre")
    curl -s -m 5 -d "$(jq '{stamp, outcome: "unknown"}' <<<"$go")" "$PLAIN/v1/operations/$(jq -r .id <<<"$go")/post"
}

an_api_key_expires_soon() {
    guarded "$GUARDED/v1/admin/api-keys" -d '{"scopes": ["read"], "expires_in_ms": 600000}'
}

a_certificate_expires_soon() {
    [[ -z ${HAS_CERTIFICATE-} ]] || return 0
    HAS_CERTIFICATE=yes
    certificate 10
    kill -HUP "$SECURE_PID"
}

an_app_reaches_its_quota() {
    guarded -X PATCH "$GUARDED/v1/admin/apps/default" -d '{"quotas": {"event_streams": 0}}'
    guarded "$GUARDED/v1/events"
}

many_requests_wait() {
    [[ -z ${HAS_WAITERS-} ]] || return 0
    HAS_WAITERS=yes
    guarded "$GUARDED/v1/locks/waited/acquire" -d '{"ttl_ms": 300000}'
    for _ in {1..30}; do
        guarded -m 60 "$GUARDED/v1/locks/waited/acquire" -d '{"wait_ms": 50000}' &
    done
}

# The exporter says it in place of a node, which holds no connection for long while its server is locked or away.
a_pool_is_full() {
    printf 'latchgate_pool_connections{of="locks",pool="reads",state="%s"} 4\n' used max >"$ROOM/exported"
}

deadline=$((SECONDS + 120))
until [[ $(query 'latchgate_ready == 1') == 5 ]]; do
    ((SECONDS < deadline)) || die "Prometheus does not read the nodes: $(curl -s "$PROMETHEUS/api/v1/targets")"
    sleep 0.2
done
# The rules have been evaluated since.
sleep 2
if [[ -n $(firing) ]]; then
    say "alerts fire although nothing has happened: $(firing)"
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi

causes LatchgateLeasesExpire a_holder_dies
causes LatchgateDoubleRun an_operation_runs_twice
causes LatchgateSlowCommits the_store_is_slow
causes LatchgateRunEntered a_run_is_entered
causes LatchgateUndecided an_outcome_is_unknown
causes LatchgateKeyExpires an_api_key_expires_soon
causes LatchgateCertificateExpires a_certificate_expires_soon
causes LatchgateQuota an_app_reaches_its_quota
causes LatchgateWaiters many_requests_wait
causes LatchgateOldSnapshot a_transaction_stays_open
kill -STOP "$REDIS_PID"
causes LatchgateNotReady a_call_needs_the_store
causes LatchgateErrors a_call_needs_the_store
kill -CONT "$REDIS_PID"
causes LatchgateHoldOff the_store_loses_its_data
stop plain
causes LatchgateDown true
causes LatchgatePoolFull a_pool_is_full

for alert in $(sed -nE 's/^ *- alert: //p' deploy/alerts.yml); do
    if [[ -z ${CAUSED[$alert]-} ]]; then
        say "$alert was not caused"
        skipped=$((skipped + 1))
    fi
    anchor=${alert,,}
    grep -q "runbook_url: .*/OPERATIONS.md#$anchor\"\$" deploy/alerts.yml && grep -q "^### $alert\$" docs/OPERATIONS.md || {
        say "$alert has no section in docs/OPERATIONS.md"
        failed=$((failed + 1))
    }
done
stop_all
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && skipped == 0))
