#!/usr/bin/env bash
# Kills every part of a cluster in turn while clients take and release locks through nginx, restarts it as a supervisor
# would, and sees that locks are granted again with nobody's help. At the end what all clients saw is judged: no lock may
# ever have had two holders.
#
#   CLUSTER_BINARY   a `latchgate` that is already built; without it, cargo builds one
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
# How often each of them is granted between two faults, at least.
GRANTS_MIN=25
# How long after a fault everything must be as before, in s: a dead node's turn stands for five, and an answer is waited
# for that long.
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

# gate_loop: does one thing after the other, once each, through the gate; each is repeated until there is a yes.
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

# pre N: asks to do the Nth thing; prints the answer if it is a yes.
pre() {
    curl -sf -m 5 -X POST "$NGINX/v1/operations/pre" \
        -d "{\"operation\":\"charge\",\"contents\":{\"order\":$1},\"attempt_id\":\"attempt-$1\"}"
}

# again: after a moment, unless it is over.
again() {
    sleep 0.05
    [[ ! -e $SCRATCH/over ]]
}

operations_done() { wc -l <"$SCRATCH/done"; }

# last_us: when the last call was answered. Its line may not be whole yet; the one before is.
last_us() { tail -n 2 "$HISTORY" | head -n 1 | jq .received_us; }

# granted_keys LINE: how many keys were granted often enough after that line of the history.
granted_keys() {
    tail -n "+$(($1 + 1))" "$HISTORY" | grep -F '"verb":"acquire"' | grep -F '"status":200' | grep -o '"key":"[^"]*"' |
        sort | uniq -c | awk -v min="$GRANTS_MIN" '$1 >= min' | wc -l
}

# until_as_before FAULT: all keys are granted, and the gate says yes, from now on.
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

# fault NAME SIGNAL PART: ends a part's main process, and has a supervisor start it again.
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

# longest_gaps: one line for each fault: the longest time without any grant, that without one of the same key, and that
# without an operation, in ms, each from the fault on until the next.
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

# longest_gap FROM TO UNIT: of lines with a time and a name, in order: the longest time between two of the same name of which the
# second is in that interval.
longest_gap() {
    awk -v from="$1" -v to="$2" -v unit="$3" '
        ($2 in last) && $1 >= from && $1 < to && $1 - last[$2] > longest { longest = $1 - last[$2] }
        { last[$2] = $1 }
        END { printf "%d", longest / unit }'
}

# judge FILE: the verdict on a history; prints what was seen.
judge() {
    "$BENCH_BINARY" check "$1" --handovers-min 100 || die "what the clients saw is not what locks do"
}

cluster up
say "the cluster is up; recording"
# They end when told to.
start recorder "$BENCH_BINARY" record --urls "$NGINX" --keys "$KEYS" --clients 24 --seconds 86400 --ttl-ms 3000 \
    --abandon-one-in 0 --out "$HISTORY"
RECORDER=$STARTED_PID
# Locks of its own, whose holders often vanish: who comes next must have waited for the end of the lease.
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
seen=$(judge "$HISTORY")
seen_vanishing=$(judge "$HISTORY-vanishing")
(($(jq .unknown_outcomes <<<"$seen") > 0)) || die "no client has noticed anything: those were no faults"
# What was done stays done.
while read -r n; do
    answer=$(curl -s -m 5 -X POST "$NGINX/v1/operations/pre" -d "{\"operation\":\"charge\",\"contents\":{\"order\":$n}}")
    [[ $(jq -r .code <<<"$answer") == operation-duplicate ]] || die "operation $n was done, and may be done again: $answer"
done <"$SCRATCH/done-before-faults"

echo
table_row "longest time, in ms, without" "any grant" "one of a key" "operations"
longest_gaps
echo
for seen in "$seen" "$seen_vanishing"; do
    jq -r '"\(.grants) grants, \(.handovers) hand-overs, \(.unknown_outcomes) unknown outcomes: never two holders, and tokens rose"' \
        <<<"$seen"
done
say "the cluster gets over what it should"
