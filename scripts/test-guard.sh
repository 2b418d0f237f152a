#!/usr/bin/env bash
# Holders are paused beyond their leases (SIGSTOP) while they add elements to sets under a lock: without `latchgate.guard`, updates are
# lost, and with it none. Workers are killed (SIGKILL) between any two statements of a transaction with `latchgate.post`: no operation is left
# unknown, and none is done twice. Then other keys are measured while a guard is open.
#
#   scripts/test-guard.sh [MINUTES]   how long each of the two runs with sets lasts; if absent, 20 seconds
#   GUARD_BINARY                      a built `latchgate`; if absent, cargo builds one
source "$(dirname "$0")/lib.sh"

seconds=20
(($# == 0)) || seconds=$(($1 * 60))
ensure_packages curl jq postgres python3
binary=${GUARD_BINARY-}
if [[ -z $binary ]]; then
    cargo build --locked -p latchgate
    binary=${CARGO_TARGET_DIR:-target}/debug/latchgate
fi
python_tools guard 'psycopg[binary]==3.2.10'
start_postgres
export DATABASE_URL=$POSTGRES_URL
port=$(free_port)
export LATCHGATE_URL=http://127.0.0.1:$port
start node env -u LATCHGATE_URL "$binary" serve --listen "127.0.0.1:$port" --locks "$POSTGRES_URL"
is_ready() { curl -sf -m 2 "$LATCHGATE_URL/readyz" >/dev/null; }
wait_until node is_ready || die "the node does not start: $(cat "$ROOM/node.log")"

workload() { "$TOOLS/python" scripts/guard/workload.py "$@"; }
number() { jq -r ".$2" <<<"$1"; }

say "sets, $seconds s without a guard"
without=$(workload sets "$seconds")
say "sets, $seconds s with a guard"
with=$(workload sets "$seconds" guard)
say "posts"
posts=$(workload posts 25)

# p99_ms NAME: other keys, at a rate that the machine can do.
p99_ms() {
    "$binary" bench repeated --url "$LATCHGATE_URL" --connections 8 --rate 200 --warmup 2s --duration 12s --json >"$SCRATCH/bench-$1.json"
    jq '[.. | objects | .p99? // empty] | max / 1000' "$SCRATCH/bench-$1.json"
}
say "other keys, without and with an open guard"
free=$(p99_ms free)
workload hold guarded 30 >"$SCRATCH/hold.log" &
holder=$!
is_held() { grep -q held "$SCRATCH/hold.log"; }
until is_held; do sleep 0.05; done
guarded=$(p99_ms guarded)
wait "$holder"
handed_over_ms=$(tail -n 1 "$SCRATCH/hold.log" | jq .handed_over_ms)

printf '\n%-14s %14s %9s %8s %6s\n' '' acknowledged refused pauses lost
row() { printf '%-14s %14s %9s %8s %6s\n' "$1" "$(number "$2" acknowledged)" "$(number "$2" refused)" "$(number "$2" pauses)" "$(number "$2" lost)"; }
row 'without guard' "$without"
row 'with guard' "$with"
echo "posts: $(number "$posts" operations) operations, $(number "$posts" runs) runs, $(number "$posts" rows) rows, $(number "$posts" double) double, $(number "$posts" unknown) unknown"
echo "other keys: p99 $free ms, and $guarded ms while a guard is open; its own key was handed over $handed_over_ms ms after the commit"
(($(number "$without" lost) > 0)) || die "no update was lost without a guard: nothing was shown"
(($(number "$with" lost) == 0)) || die "updates were lost with a guard"
(($(number "$with" refused) > 0)) || die "no guard has refused anything: nothing was shown"
[[ $(jq -c '[.double, .missing, .unknown]' <<<"$posts") == '[0,0,0]' ]] || die "posts: $posts"
((handed_over_ms < 1000)) || die "the waiter behind the guard was granted the lock too late"
say "no update is lost behind a guard"
