# shellcheck shell=bash
# For test-faults.sh, test-ha.sh and soak.sh: a cluster under load, faults in it, and what its clients saw.
#
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   TESTKIT_BINARY   a `latchgate-testkit`, likewise
#   KEEP_LOGS        a directory that gets the logs of a run that fails
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ensure_packages cc curl jq
export CLUSTER_DIR=$SCRATCH/cluster TMPDIR=$SCRATCH

TESTKIT_BINARY=${TESTKIT_BINARY-}
if [[ -z $TESTKIT_BINARY ]]; then
    cargo build --release --locked -p latchgate-testkit
    TESTKIT_BINARY=${CARGO_TARGET_DIR:-target}/release/latchgate-testkit
fi

KEYS=8
CLIENTS=24
# Fewest grants of each key between two faults.
GRANTS_MIN=25
# Longest recovery after a fault, in s, on a busy machine. A dead node's turn lapses after five, and clients wait as long for an answer.
RECOVERY_MAX=60
# Arguments of `cluster.sh up`.
CLUSTER_ARGS=()
HISTORY=$SCRATCH/history
FAULTS=()
# When each fault began: by the recorder's clock in µs, and by this machine's in ms.
BEGAN_US=()
BEGAN_MS=()
RECORDER=
# Background processes of the script itself, which end when the file `over` exists.
LOOPS=()

leave() {
    local code=$? pid
    if ((code != 0)) && [[ -n ${KEEP_LOGS-} ]]; then
        mkdir -p "$KEEP_LOGS"
        cp "$SCRATCH"/*.log "$CLUSTER_DIR"/*.log "$KEEP_LOGS" || true
    fi
    touch "$SCRATCH/over"
    resume_all
    for pid in "${LOOPS[@]}"; do kill "$pid" 2>/dev/null || true; done
    scripts/cluster.sh down 2>/dev/null || true
    before_removal
    stop_all
}
trap leave EXIT

# What a script does when its cluster is down, before its files are removed.
before_removal() { :; }

cluster_up() { run_cluster up "${CLUSTER_ARGS[@]}"; }

cluster_down() { run_cluster down; }

run_cluster() {
    scripts/cluster.sh "$@" >"$SCRATCH/cluster.log" 2>&1 || die "cluster.sh $*: $(cat "$SCRATCH/cluster.log")"
    # shellcheck disable=SC1091 # made by the line above
    [[ $1 != up ]] || source "$CLUSTER_DIR/urls"
}

pid_of() {
    local pid
    read -r _ pid _ <"$CLUSTER_DIR/$1.pid"
    echo "$pid"
}

# processes_of POSTMASTER: all processes of a Postgres. A backend has a session of its own, but is a child of the postmaster.
processes_of() {
    echo "$1"
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$1" '{ pid = $1; sub(/.*\) /, ""); if ($2 == parent) print pid }' || true
}

# pause PID...: stops the processes until resume_all. Their connections stay open.
pause() {
    local pid
    for pid in "$@"; do
        kill -STOP "$pid" 2>/dev/null || continue
        echo "$pid" >>"$SCRATCH/paused"
    done
}

resume_all() {
    local pid
    [[ -e $SCRATCH/paused ]] || return 0
    while read -r pid; do kill -CONT "$pid" 2>/dev/null || true; done <"$SCRATCH/paused"
    rm "$SCRATCH/paused"
}

now_ms() { echo $((${EPOCHREALTIME/[^0-9]/} / 1000)); }

# record: starts clients that take locks and operations through nginx, until stop_recording.
record() {
    rm -f "$SCRATCH/over"
    # Both recorders run until they are stopped.
    start recorder "$TESTKIT_BINARY" record --urls "$NGINX" --keys "$KEYS" --clients "$CLIENTS" --seconds 86400 --ttl-ms 3000 \
        --abandon-one-in 0 --out "$HISTORY"
    RECORDER=$STARTED_PID
    # Other locks, whose holders often vanish: the next holder must wait for the end of the lease.
    start vanishing "$TESTKIT_BINARY" record --urls "$NGINX" --keys 4 --clients 8 --seconds 86400 --ttl-ms 1000 \
        --abandon-one-in 20 --out "$HISTORY-vanishing"
    VANISHING=$STARTED_PID
    touch "$HISTORY" "$SCRATCH/done"
    in_background gate_loop
    until_as_before "the start"
}

# in_background FUNCTION...
in_background() {
    "$@" &
    LOOPS+=($!)
}

stop_recording() {
    local pid
    touch "$SCRATCH/over"
    kill "$RECORDER" "$VANISHING"
    for pid in "$RECORDER" "$VANISHING" "${LOOPS[@]}"; do wait "$pid"; done
    RECORDER='' LOOPS=()
}

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

# durability_of N: that of the Nth operation.
durability_of() { echo fast; }

# body_of N: the request for the Nth operation.
body_of() {
    echo "{\"operation\":\"charge\",\"contents\":{\"order\":$1},\"durability\":\"$(durability_of "$1")\",\"on_expiry\":\"retry\"}"
}

# pre N: claims the Nth operation; prints the answer if that succeeds.
pre() { curl -sf -m 5 -X POST "$NGINX/v1/operations/pre" -d "$(jq -c ".attempt_id=\"attempt-$1\"" <<<"$(body_of "$1")")"; }

# again: pauses; fails when the test is over.
again() {
    sleep 0.05
    [[ ! -e $SCRATCH/over ]]
}

operations_done() { wc -l <"$SCRATCH/done"; }

# is_duplicate N: fails if the Nth operation, which was done, could be done again.
is_duplicate() {
    local answer
    answer=$(curl -s -m 20 -X POST "$NGINX/v1/operations/pre" -d "$(body_of "$1")")
    [[ $(jq -r .code <<<"$answer") == operation-duplicate ]] || die "operation $1 was done, but can be done again: $answer"
}

# last_us: when the last but one call was answered. The line of the last one may not be complete yet.
last_us() { tail -n 2 "$HISTORY" | head -n 1 | jq .received_us; }

# granted_keys SIZE: how many keys were granted often enough since the history had that many bytes.
granted_keys() {
    tail -c "+$(($1 + 1))" "$HISTORY" | grep -F '"verb":"acquire"' | grep -F '"status":200' | grep -o '"key":"[^"]*"' |
        sort | uniq -c | awk -v min="$GRANTS_MIN" '$1 >= min' | wc -l
}

# until_as_before FAULT: waits until all keys are granted and operations succeed again.
until_as_before() {
    local size operations deadline=$((SECONDS + RECOVERY_MAX))
    size=$(stat -c %s "$HISTORY")
    operations=$(operations_done)
    until (($(granted_keys "$size") == KEYS && $(operations_done) >= operations + 2)); do
        kill -0 "$RECORDER" 2>/dev/null || die "the recorder has ended: $(tail -n 20 "$SCRATCH/recorder.log")"
        ((SECONDS < deadline)) || die "after $1: $(granted_keys "$size") of $KEYS keys were granted within $RECOVERY_MAX s, \
and $(($(operations_done) - operations)) operations done"
        sleep 0.1
    done
}

# begin_fault NAME
begin_fault() {
    say "$1"
    FAULTS+=("$1")
    BEGAN_US+=("$(last_us)")
    BEGAN_MS+=("$(now_ms)")
    tail -n 1 "$SCRATCH/done" | cut -d ' ' -f 2 >>"$SCRATCH/done-before-faults"
}

# longest_gaps: prints one line for each fault: the longest time without a grant of any key, without a grant of the same key, and
# without a completed operation, in ms, each between this fault and the next.
longest_gaps() {
    local index from_us to_us from_ms to_ms
    BEGAN_US+=("$(last_us)")
    BEGAN_MS+=("$(now_ms)")
    table_row "longest time, in ms, without" "any grant" "one of a key" "operations"
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

table_row() { printf '%-36s  %12s  %12s  %12s\n' "$@"; }

# longest_gap FROM TO UNIT: reads lines with a time and a name, in order of time; prints the longest time between two lines of the
# same name, the second of which is in the interval.
longest_gap() {
    awk -v from="$1" -v to="$2" -v unit="$3" '
        ($2 in last) && $1 >= from && $1 < to && $1 - last[$2] > longest { longest = $1 - last[$2] }
        { last[$2] = $1 }
        END { printf "%d", longest / unit }'
}

# check_history FILE [OPTIONS]: fails if a lock or an operation broke a promise; prints a summary.
check_history() {
    "$TESTKIT_BINARY" check "$@" --handovers-min 100 || die "the recorded history shows a broken promise"
}

# summarise JSON: prints what check_history has found, for a person.
summarise() {
    jq -r '"\(.grants) grants, \(.handovers) hand-overs, \(.unknown_outcomes) unknown outcomes: never two holders, and tokens rose"' \
        <<<"$1"
}
