#!/usr/bin/env bash
# Holders are paused beyond their leases (SIGSTOP) while they add elements to sets under a lock: without `latchgate.guard`, updates are
# lost, and with it none; also while nodes are frozen beyond leases, Postgres crashes (SIGKILL) and starts again, and the locks are switched to
# Redis and back. Workers are killed (SIGKILL) between any two statements of a transaction with `latchgate.post`: no operation is left
# unknown, and none is done twice. Then other keys are measured while a guard is open, and a switch is ordered that it must delay.
#
#   scripts/test-guard.sh [MINUTES]   how long each of the three runs with sets lasts; if absent, 20 seconds
#   GUARD_BINARY                      a built `latchgate`; if absent, cargo builds one
source "$(dirname "$0")/lib.sh"

seconds=20
(($# == 0)) || seconds=$(($1 * 60))
ensure_packages curl jq postgres python3 redis
binary=${GUARD_BINARY-}
if [[ -z $binary ]]; then
    cargo build --locked -p latchgate
    binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi
python_tools guard 'psycopg[binary]==3.2.10'
start_postgres
start_redis
export DATABASE_URL=$POSTGRES_URL
urls=()
for node in one two; do
    start_http "node-$node" "$binary" serve --locks "pg=$POSTGRES_URL" --locks "redis=$REDIS_URL" --ttl-max 1m
    urls+=("$HTTP_URL")
done
# The faults are at the first node.
export LATCHGATE_URL=${urls[0]},${urls[1]}

workload() { "$TOOLS/python" scripts/guard/workload.py "$@"; }
number() { jq -r ".$2" <<<"$1"; }

say "sets, $seconds s without a guard"
without=$(workload sets "$seconds")
say "sets, $seconds s with a guard"
with=$(workload sets "$seconds" guard)
# switch ENGINE: prints the status of the order.
switch() {
    curl -s -m 60 -o "$SCRATCH/switched.json" -w '%{http_code}' -X POST "${urls[1]}/v1/admin/engines/locks" -d "{\"engine\":\"$1\"}"
}
# kill_postgres: as a crash of its machine, and its start.
kill_postgres() {
    local pid
    read -r _ pid _ <"$ROOM/postgres.pid"
    kill -STOP "$pid"
    pkill -KILL -P "$pid" || true
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true # so that the shell says nothing about it
    start_postgres
}
freeze_node() {
    local pid
    read -r _ pid _ <"$ROOM/node-one.pid"
    kill -STOP "$pid"
    sleep 2.5 # beyond leases, which last a second
    kill -CONT "$pid"
}
# There and back; an order that comes too early after a crash is repeated.
switch_and_return() {
    local engine
    for engine in redis pg; do
        until [[ $(switch "$engine") == 200 ]]; do sleep 0.2; done
        sleep 1
    done
}
say "sets, $seconds s with a guard, frozen nodes, crashes of Postgres and switches"
workload sets "$seconds" guard >"$SCRATCH/faults.json" &
worker=$!
rounds=0
while kill -0 "$worker" 2>/dev/null; do
    freeze_node
    kill_postgres
    switch_and_return
    rounds=$((rounds + 1))
done
wait "$worker" || die "the workload with faults has failed"
faults=$(<"$SCRATCH/faults.json")
say "posts"
posts=$(workload posts 25)

# p99_ms NAME: other keys, at a rate that the machine can do.
p99_ms() {
    "$binary" bench repeated --url "${urls[1]}" --connections 8 --rate 200 --warmup 1s --duration 6s --json >"$SCRATCH/bench-$1.json"
    jq '[.. | objects | .p99? // empty] | max / 1000' "$SCRATCH/bench-$1.json"
}
say "other keys, without and with an open guard, five times each"
ratios=() handed_over_ms=0
is_held() { grep -q held "$SCRATCH/hold.log"; }
for round in 1 2 3 4 5; do
    free=$(p99_ms free)
    # In the last round the guard is open for 30 s, and a switch must not pass it.
    hold_s=9
    ((round < 5)) || hold_s=30
    : >"$SCRATCH/hold.log"
    workload hold "guarded-$round" "$hold_s" >"$SCRATCH/hold.log" &
    holder=$!
    until is_held; do sleep 0.05; done
    guarded=$(p99_ms guarded)
    ((round < 5)) || refused=$(switch redis)
    wait "$holder" || die "a guard has failed"
    handed_over=$(tail -n 1 "$SCRATCH/hold.log" | jq .handed_over_ms)
    ((handed_over <= handed_over_ms)) || handed_over_ms=$handed_over
    ratios+=("$(jq -n "$guarded / $free * 100 | round / 100")")
    say "p99 of other keys: $free ms, and $guarded ms while a guard is open"
done
[[ $refused == 503 ]] || die "a switch has passed an open guard: $refused, $(<"$SCRATCH/switched.json")"
[[ $(switch redis) == 200 ]] || die "after the guard, no switch is possible: $(<"$SCRATCH/switched.json")"

printf '\n%-22s %14s %9s %12s %8s %6s\n' '' acknowledged refused 'not active' pauses lost
row() {
    printf '%-22s %14s %9s %12s %8s %6s\n' "$1" "$(number "$2" acknowledged)" "$(number "$2" refused)" "$(number "$2" not_active)" \
        "$(number "$2" pauses)" "$(number "$2" lost)"
}
row 'without guard' "$without"
row 'with guard' "$with"
row 'with guard and faults' "$faults"
echo "faults: $rounds times each, a node frozen for 2.5 s, a crash of Postgres, a switch to Redis and back"
echo "posts: $(number "$posts" operations) operations, $(number "$posts" runs) runs, $(number "$posts" rows) rows, $(number "$posts" double) double, $(number "$posts" unknown) unknown"
echo "other keys: p99 ${ratios[*]} times that without an open guard, in the median $(jq -s 'sort[length / 2 | floor]' <<<"${ratios[*]}"); its own key was handed over at most $handed_over_ms ms after the commit"
(($(number "$without" lost) > 0)) || die "no update was lost without a guard: nothing was shown"
(($(number "$with" lost) == 0)) || die "updates were lost with a guard"
(($(number "$faults" lost) == 0)) || die "updates were lost with a guard, in faults"
(($(number "$with" refused) > 0)) || die "no guard has refused anything: nothing was shown"
[[ $(jq -c '[.double, .missing, .unknown]' <<<"$posts") == '[0,0,0]' ]] || die "posts: $posts"
((handed_over_ms < 1000)) || die "the waiter behind the guard was granted the lock too late"
say "no update is lost behind a guard"
