#!/usr/bin/env bash
# Measures on a private Postgres (fsync on), as ratios in one run.
#
#   scripts/bench.sh [ARGS]            one node beside an HTTP handler that only parses and answers, and many waiters beside few
#   scripts/bench.sh handoffs [ARGS]   three nodes: a lock that passes from node to node, beside one whose waiters are at one node
#   scripts/bench.sh trouble [ARGS]    other keys while one key is in trouble: its row is locked by another session, then its state is
#                                      unreadable, then it is large
#   scripts/bench.sh cost [ARGS]       the CPU time per request that API keys cost
#   scripts/bench.sh apps [ARGS]       an app beside another one that is at its quotas
#
#   --runs N, --seconds N, --warmup-seconds N   measurements of each side, and how long each takes
#   --connections N, --waiters N                of pairs, and of hand-offs (without a mode: 16 beside N)
#   --at-least X, --at-most X                   fail if a result is below or above
#   --json                                      print results and measurements as JSON instead of a table
#
#   CLUSTER_BINARY   a `latchgate` to use instead of building one
#   BENCH_BINARY     a `latchgate-bench`, likewise
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl jq postgres
if [[ -z ${CLUSTER_BINARY-} || -z ${BENCH_BINARY-} ]]; then
    cargo build --profile dist --locked -p latchgate -p latchgate-bench
fi
latchgate=${CLUSTER_BINARY:-${CARGO_TARGET_DIR:-target}/dist/latchgate}
bench=${BENCH_BINARY:-${CARGO_TARGET_DIR:-target}/dist/latchgate-bench}

# Each waiter is a connection: one descriptor in the client and one in the node.
ulimit -n "$(ulimit -Hn)"

# Linux distributes the processors among sessions before processes (sched_autogroup). Servers in sessions of their own would distort
# the measurement.
ONE_SESSION=yes

mode=node
if [[ ${1-} =~ ^[a-z] ]]; then
    mode=$1
    shift
fi
case $mode in
    node) runs=3 seconds=10 warmup=2 connections=128 waiters=1000 ;;
    handoffs) runs=3 seconds=5 warmup=1 connections=1 waiters=300 ;;
    trouble) runs=5 seconds=6 warmup=1 connections=12 waiters=1 ;;
    apps) runs=5 seconds=6 warmup=1 connections=8 waiters=1 ;;
    cost) runs=7 seconds=4 warmup=1 connections=32 waiters=1 ;;
    *) die "there is no mode $mode" ;;
esac
least='' most='' json=''
while (($#)); do
    case $1 in
        --json) json=yes && shift && continue ;;
        --runs) runs=${2-} ;;
        --seconds) seconds=${2-} ;;
        --warmup-seconds) warmup=${2-} ;;
        --connections) connections=${2-} ;;
        --waiters) waiters=${2-} ;;
        --at-least) least=${2-} ;;
        --at-most) most=${2-} ;;
        *) die "there is no option $1" ;;
    esac
    [[ ${2-} =~ ^[0-9.]+$ ]] || die "$1 needs a number"
    shift 2
done
REPORTS=$SCRATCH/reports

# measure SIDE CONNECTIONS WORKLOAD URL [ARGS]: enters what `latchgate bench` reports.
measure() {
    local report
    report=$("$latchgate" bench "$3" --url "$4" --connections "$2" --duration "${seconds}s" --warmup "${warmup}s" --json "${@:5}") ||
        die "$1: a rate with failures means nothing"
    jq -c --arg side "$1" '. + {$side}' <<<"$report" >>"$REPORTS"
}

# conclude TEXT PROGRAM: prints the measurements since the last conclusion, and the number that the program of jq makes of them.
conclude() {
    local help result
    # shellcheck disable=SC2016 # variables of jq
    help='def median: sort | .[length / 2 | floor];
        def of($side; value): map(select(.side == $side) | value);
        def rate: .operations_per_second;
        def ratio($side; $other; value): (of($side; value) | median) / (of($other; value) | median);
        def each(value): map(value) | "\(median) (\(map(tostring) | join(" ")))";
        def latencies: [.[0].latency_us | keys[]] as $calls | [$calls[] as $call | map(.latency_us[$call]) |
            "\($call) p50 \(each(.p50)), p99 \(each(.p99)) µs"] | join(", ");
        def line: "  \(.[0].side): \(each(rate | round)) per second, \(latencies)";'
    result=$(jq -s "$help ($2) * 100 | round / 100" "$REPORTS")
    if [[ -n $json ]]; then
        jq -s --arg what "$1" --argjson result "$result" '{$what, $result, reports: .}' "$REPORTS"
    else
        jq -rs "$help group_by(.side)[] | line" "$REPORTS"
        echo "$1: $result"
    fi
    rm "$REPORTS"
    awk -v it="$result" -v least="$least" -v most="$most" 'BEGIN { exit (least != "" && it < least + 0) || (most != "" && it > most + 0) }' ||
        die "$1: $result, but ${least:+at least $least }${most:+at most $most }was asked for"
}

start_postgres
age_postgres

# start_node NAME [ARGS]: without history; HISTORY_RETENTION=1d scripts/bench.sh measures with it.
start_node() {
    start_http "$1" "$latchgate" serve --locks "$POSTGRES_URL" --history-retention "${HISTORY_RETENTION:-0}" "${@:2}"
}

bench_node() {
    local subject floor
    start_node latchgate
    subject=$HTTP_URL
    start_http floor "$bench" floor-server
    floor=$HTTP_URL
    for ((run = 0; run < runs; run++)); do
        measure floor "$connections" repeated "$floor"
        measure node "$connections" repeated "$subject"
    done
    conclude "acquire and release, of the bare handler's rate" 'ratio("node"; "floor"; rate)'
    for ((run = 0; run < runs; run++)); do
        measure "16 waiters" 16 hot "$subject"
        measure "$waiters waiters" "$waiters" hot "$subject"
    done
    conclude "hand-offs of one key, of the rate of 16 waiters" "ratio(\"$waiters waiters\"; \"16 waiters\"; rate)"
}

bench_handoffs() {
    local node nodes=() across
    for node in node-1 node-2 node-3; do
        start_node "$node"
        nodes+=("$HTTP_URL")
    done
    across=$(IFS=,; echo "${nodes[*]}")
    for ((run = 0; run < runs; run++)); do
        measure "one node" "$waiters" hot "${nodes[0]}"
        measure "three nodes" "$waiters" hot "$across"
    done
    conclude "hand-offs from node to node, of the p50 at one node" \
        '(of("three nodes"; .latency_us.crossing.p50) | median) / (of("one node"; .latency_us["hand-off"].p50) | median)'
}

bench_cost() {
    local with without with_pid without_pid
    start_node without
    without=$HTTP_URL without_pid=$STARTED_PID
    LATCHGATE_ADMIN_API_KEY=$("$latchgate" api-key generate)
    export LATCHGATE_ADMIN_API_KEY
    start_node with
    with=http://$LATCHGATE_ADMIN_API_KEY@${HTTP_URL#http://} with_pid=$STARTED_PID
    for ((run = 0; run < runs; run++)); do
        measure without "$connections" repeated "$without" --node-pid "$without_pid"
        measure with "$connections" repeated "$with" --node-pid "$with_pid"
    done
    # Neighbours saw the same load of the machine. A pair is two requests.
    conclude "cost per request, in µs of CPU time" \
        '[of("with"; .node_cpu_us / 2), of("without"; .node_cpu_us / 2)] | transpose | map(.[0] - .[1]) | median'
}

# ask_in_background NAME ARGS: callers for as long as a measurement takes; their report goes to a file.
ask_in_background() {
    "$bench" pairs --duration "$((seconds + warmup))" --warmup 0 "${@:2}" >"$SCRATCH/$1" &
    ASKERS+=("$!")
}

# measure_beside SIDE ARGS: as `measure`, beside these askers.
measure_beside() {
    measure "$@"
    for pid in "${ASKERS[@]}"; do wait "$pid"; done
    ASKERS=()
}
ASKERS=()

psql_of_bench() {
    "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" "$@"
}

# beside_key KEY IS_GRANTED FIELDS ARGS: other keys while callers ask for this one, and for a healthy one.
beside_key() {
    local side key granted
    for ((run = 0; run < runs; run++)); do
        for side in healthy trouble; do
            key=$1
            [[ $side == trouble ]] || key=healthy-$1
            ask_in_background answers --url "$HTTP_URL" --acquire "/v1/locks/$key/acquire" "{\"lease_id\":\"{id}\",\"ttl_ms\":1000$3}" \
                --release "/v1/locks/$key/release" '{"lease_id":"{id}"}' "${@:4}"
            measure_beside "$side" "$connections" repeated "$HTTP_URL"
        done
        granted=$(jq '.operations > 0' "$SCRATCH/answers")
        [[ $granted == "$2" ]] || die "the key $1 is not in trouble: $(cat "$SCRATCH/answers")"
    done
    conclude "beside a key in trouble, of the rate beside a healthy one" 'ratio("trouble"; "healthy"; rate)'
}

bench_trouble() {
    local key many=',"mode":"permits","limit":1000' long
    start_node latchgate
    for key in slow bad; do
        curl -fsS -d '{"lease_id":"bench"}' "$HTTP_URL/v1/locks/$key/acquire" >/dev/null
        curl -fsS -d '{"lease_id":"bench"}' "$HTTP_URL/v1/locks/$key/release" >/dev/null
    done
    say "a row that another session has locked"
    start locker "$(postgres_bin)/psql" -q -v ON_ERROR_STOP=1 "$POSTGRES_URL" -c begin \
        -c "select 1 from latchgate.locks where key = 'slow' for update" -c "select pg_sleep(86400)"
    row_is_locked() {
        [[ -z $(psql_of_bench -tA -c "select 1 from latchgate.locks where key = 'slow' for update skip locked") ]]
    }
    wait_until locker row_is_locked
    beside_key slow false '' --connections 1 --pause-ms 10
    say "a state that cannot be decoded"
    psql_of_bench -c "update latchgate.locks set state = 'nonsense', version = version + 1 where key = 'bad'"
    beside_key bad false '' --connections 1 --pause-ms 10
    say "a state of 30 leases with long metadata, and four callers"
    long=$(printf 'x%.0s' {1..900})
    for _ in {1..30}; do
        curl -fsS -d "{\"ttl_ms\":300000,\"metadata\":{\"text\":\"$long\"}$many}" "$HTTP_URL/v1/locks/large/acquire" >/dev/null
    done
    beside_key large true "$many" --connections 4
}

# app_key APP [QUOTAS]: prints an API key of a new app.
app_key() {
    local admin=(curl -fsS -H "Authorization: Bearer $LATCHGATE_ADMIN_API_KEY" -H 'Content-Type: application/json')
    "${admin[@]}" -o /dev/null -d "{\"app\":\"$1\"}" "$HTTP_URL/v1/admin/apps"
    [[ -z ${2-} ]] || "${admin[@]}" -o /dev/null -X PATCH -d "{\"quotas\":$2}" "$HTTP_URL/v1/admin/apps/$1"
    "${admin[@]}" -d "{\"app\":\"$1\",\"scopes\":[\"read\",\"locks\"]}" "$HTTP_URL/v1/admin/api-keys" | jq -r .api_key
}

bench_apps() {
    local busy other rate=100 acquire
    LATCHGATE_ADMIN_API_KEY=$("$latchgate" api-key generate)
    export LATCHGATE_ADMIN_API_KEY
    start_node latchgate
    busy=$(app_key busy "{\"requests_per_second\":$rate,\"leases\":20}")
    other=$(app_key other)
    acquire=(--url "$HTTP_URL" --api-key "$busy" --connections 8 --fresh
        --acquire '/v1/locks/bench-{run}-{key}/acquire' '{"lease_id":"{id}","ttl_ms":1000}')
    for ((run = 0; run < runs; run++)); do
        measure alone "$connections" repeated "$HTTP_URL" --api-key "$other"
        # Five times as many requests as the app may send. Half of them leave their leases to expire, which are more than it may have.
        ask_in_background careful --rate "$((rate * 5 / 2))" "${acquire[@]}" --release '/v1/locks/bench-{run}-{key}/release' '{"lease_id":"{id}"}'
        ask_in_background careless --rate "$((rate * 5 / 2))" "${acquire[@]}"
        measure_beside beside "$connections" repeated "$HTTP_URL" --api-key "$other"
    done
    grep -q '429' "$SCRATCH/careless" || die "the busy app is not at its quotas: $(cat "$SCRATCH/careless")"
    conclude "beside an app at its quotas, of the p99 of acquires alone" 'ratio("beside"; "alone"; .latency_us.acquire.p99)'
}

"bench_$mode"
