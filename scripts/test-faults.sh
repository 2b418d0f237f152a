#!/usr/bin/env bash
# Kills every part of a cluster in turn while clients take and release locks through nginx, restarts it as a supervisor would, and
# checks that locks are granted again without an operator. At the end it checks the recorded history: no lock may ever have had two
# holders.
#
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   BENCH_BINARY     a `latchgate-bench`, likewise
#   ROUNDS           how often each part is killed (1)
source "$(dirname "$0")/lib.sh"

ensure_packages cc curl jq
export CLUSTER_DIR=$SCRATCH/cluster TMPDIR=$SCRATCH

BENCH_BINARY=${BENCH_BINARY-}
if [[ -z $BENCH_BINARY ]]; then
    cargo build --release --locked -p latchgate-bench
    BENCH_BINARY=${CARGO_TARGET_DIR:-target}/release/latchgate-bench
fi

KEYS=8
# Fewest grants of each key between two faults.
GRANTS_MIN=25
# Longest recovery after a fault, in s. A dead node's turn lapses after five, and clients wait as long for an answer.
RECOVERY_MAX=30
HISTORY=$SCRATCH/history
FAULTS=()
# When each fault began: by the recorder's clock in µs, and by this machine's in ms.
BEGAN_US=()
BEGAN_MS=()

GATE_LOOP=

leave() {
    [[ -z $GATE_LOOP ]] || kill "$GATE_LOOP" 2>/dev/null || true
    scripts/cluster.sh down 2>/dev/null || true
    stop_all
}
trap leave EXIT

cluster() {
    scripts/cluster.sh "$@" >"$SCRATCH/cluster.log" 2>&1 || die "cluster.sh $*: $(cat "$SCRATCH/cluster.log")"
    # shellcheck disable=SC1091 # made by the line above
    [[ $1 != up ]] || source "$CLUSTER_DIR/urls"
}

now_ms() { echo $((${EPOCHREALTIME/[^0-9]/} / 1000)); }

# gate_loop: does one operation after the other through the gate, and repeats each call until it succeeds.
gate_loop() {
    local n=0 claim id stamp
    while ((n += 1)); do
        until claim=$(pre "$n"); do again || return 0; done
        id=$(jq -r .id <<<"$claim")
        stamp=$(jq .stamp <<<"$claim")
        until curl -sf -m 5 -o /dev/null -X POST "$NGINX/v1/operations/$id/post" \
            -d "{\"stamp\":$stamp,\"outcome\":\"success\"}"; do
            again || return 0
        done
        echo "$(now_ms) $n" >>"$SCRATCH/done"
        again || return 0
    done
}

# pre N: claims the Nth operation; prints the answer if that succeeds.
pre() {
    curl -sf -m 5 -X POST "$NGINX/v1/operations/pre" \
        -d "{\"operation\":\"charge\",\"contents\":{\"order\":$1},\"attempt_id\":\"attempt-$1\"}"
}

# again: pauses; fails when the test is over.
again() {
    sleep 0.05
    [[ ! -e $SCRATCH/over ]]
}

operations_done() { wc -l <"$SCRATCH/done"; }

# last_us: when the last but one call was answered. The line of the last one may not be complete yet.
last_us() { tail -n 2 "$HISTORY" | head -n 1 | jq .received_us; }

# granted_keys LINE: how many keys were granted often enough after that line of the history.
granted_keys() {
    tail -n "+$(($1 + 1))" "$HISTORY" | grep -F '"verb":"acquire"' | grep -F '"status":200' | grep -o '"key":"[^"]*"' |
        sort | uniq -c | awk -v min="$GRANTS_MIN" '$1 >= min' | wc -l
}

# until_as_before FAULT: waits until all keys are granted and operations succeed again.
until_as_before() {
    local lines operations deadline=$((SECONDS + RECOVERY_MAX))
    lines=$(wc -l <"$HISTORY")
    operations=$(operations_done)
    until (($(granted_keys "$lines") == KEYS && $(operations_done) >= operations + 2)); do
        kill -0 "$RECORDER" 2>/dev/null || die "the recorder has ended: $(tail -n 20 "$SCRATCH/recorder.log")"
        ((SECONDS < deadline)) || die "after $1: $(granted_keys "$lines") of $KEYS keys were granted within $RECOVERY_MAX s, \
and $(($(operations_done) - operations)) operations done"
        sleep 0.1
    done
}

# fault NAME SIGNAL PART: ends a part's main process, and starts it again as a supervisor would.
fault() {
    local pid
    FAULTS+=("$1")
    BEGAN_US+=("$(last_us)")
    BEGAN_MS+=("$(now_ms)")
    tail -n 1 "$SCRATCH/done" | cut -d ' ' -f 2 >>"$SCRATCH/done-before-faults"
    read -r _ pid _ <"$CLUSTER_DIR/$3.pid"
    end_process "$2" "$pid"
    cluster up
    until_as_before "$1"
}

# longest_gaps: prints one line for each fault: the longest time without a grant of any key, without a grant of the same key, and
# without a completed operation, in ms, each between this fault and the next.
longest_gaps() {
    local index from_us to_us from_ms to_ms
    BEGAN_US+=("$(last_us)")
    BEGAN_MS+=("$(now_ms)")
    jq -r 'select(.verb == "acquire" and .status == 200) | "\(.received_us) \(.key)"' "$HISTORY" | sort -n >"$SCRATCH/grants"
    for index in "${!FAULTS[@]}"; do
        from_us=${BEGAN_US[index]} to_us=${BEGAN_US[index + 1]}
        from_ms=${BEGAN_MS[index]} to_ms=${BEGAN_MS[index + 1]}
        table_row "${FAULTS[index]}" \
            "$(awk '{ print $1, "any" }' "$SCRATCH/grants" | longest_gap "$from_us" "$to_us" 1000)" \
            "$(longest_gap "$from_us" "$to_us" 1000 <"$SCRATCH/grants")" \
            "$(awk '{ print $1, "any" }' "$SCRATCH/done" | longest_gap "$from_ms" "$to_ms" 1)"
    done
}

table_row() { printf '%-28s  %12s  %12s  %12s\n' "$@"; }

# longest_gap FROM TO UNIT: reads lines with a time and a name, in order of time; prints the longest time between two lines of the
# same name, the second of which is in the interval.
longest_gap() {
    awk -v from="$1" -v to="$2" -v unit="$3" '
        ($2 in last) && $1 >= from && $1 < to && $1 - last[$2] > longest { longest = $1 - last[$2] }
        { last[$2] = $1 }
        END { printf "%d", longest / unit }'
}

# check_history FILE: fails if a lock broke a promise; prints a summary.
check_history() {
    "$BENCH_BINARY" check "$1" --handovers-min 100 || die "the recorded history shows a broken promise"
}

cluster up
say "the cluster is up; recording"
# Both run until they are stopped.
start recorder "$BENCH_BINARY" record --urls "$NGINX" --keys "$KEYS" --clients 24 --seconds 86400 --ttl-ms 3000 \
    --abandon-one-in 0 --out "$HISTORY"
RECORDER=$STARTED_PID
# Other locks, whose holders often vanish: the next holder must wait for the end of the lease.
start vanishing "$BENCH_BINARY" record --urls "$NGINX" --keys 4 --clients 8 --seconds 86400 --ttl-ms 1000 \
    --abandon-one-in 20 --out "$HISTORY-vanishing"
VANISHING=$STARTED_PID
touch "$HISTORY" "$SCRATCH/done"
gate_loop &
GATE_LOOP=$!
until_as_before "the start"

for ((round = 0; round < ${ROUNDS:-1}; round++)); do
    for node in node-1 node-2 node-3; do fault "kill -9 of $node" KILL "$node"; done
    fault "kill -9 of nginx" KILL nginx
    fault "kill -9 of Redis" KILL redis
    # SIGQUIT is `pg_ctl stop -m immediate`: every connection is cut, and the start is a recovery from a crash.
    fault "immediate stop of Postgres" QUIT postgres
done

touch "$SCRATCH/over"
kill "$RECORDER" "$VANISHING"
for pid in "$RECORDER" "$VANISHING" "$GATE_LOOP"; do wait "$pid"; done
seen=$(check_history "$HISTORY")
seen_vanishing=$(check_history "$HISTORY-vanishing")
(($(jq .unknown_outcomes <<<"$seen") > 0)) || die "no client has noticed a fault"
# Operations that were done must still be known.
while read -r n; do
    answer=$(curl -s -m 5 -X POST "$NGINX/v1/operations/pre" -d "{\"operation\":\"charge\",\"contents\":{\"order\":$n}}")
    [[ $(jq -r .code <<<"$answer") == operation-duplicate ]] || die "operation $n was done, but can be done again: $answer"
done <"$SCRATCH/done-before-faults"

echo
table_row "longest time, in ms, without" "any grant" "one of a key" "operations"
longest_gaps
echo
for seen in "$seen" "$seen_vanishing"; do
    jq -r '"\(.grants) grants, \(.handovers) hand-overs, \(.unknown_outcomes) unknown outcomes: never two holders, and tokens rose"' \
        <<<"$seen"
done
say "the cluster recovers from all faults"
