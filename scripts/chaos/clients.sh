# shellcheck shell=bash
# shellcheck disable=SC2034 # for the scripts that source this
# For chaos.sh and test-ha.sh: clients of a tier that record what they see, how long each fault keeps them from it, and the check of it all.

ensure_packages cc curl jq
TESTKIT_BINARY=${TESTKIT_BINARY-} CLUSTER_BINARY=${CLUSTER_BINARY-}
if [[ -z $TESTKIT_BINARY || -z $CLUSTER_BINARY ]]; then
    cargo build --release --locked -p latchgate-testkit -p latchgate
    : "${TESTKIT_BINARY:=${CARGO_TARGET_DIR:-target}/release/latchgate-testkit}" "${CLUSTER_BINARY:=${CARGO_TARGET_DIR:-target}/release/latchgate}"
fi
# Absolute paths: the nodes run in other directories.
CLUSTER_BINARY=$(realpath "$CLUSTER_BINARY")
export CLUSTER_BINARY

KEYS=8
CLIENTS=24
# Fewest grants of each key between two faults.
GRANTS_MIN=10
# Longest recovery after a fault, in s. The bounds of the faults are checked afterwards.
RECOVERY_MAX=90
HISTORY=$SCRATCH/history
RECORDER=
# Background processes of the script itself, which end when the file `over` exists.
LOOPS=()

# now_ms: by the monotonic clock of the histories, to 10 ms, if the machine never sleeps.
now_ms() {
    local s
    read -r s _ </proc/uptime
    echo "${s/./}0"
}

pid_of() {
    local pid
    read -r _ pid _ <"$ROOM/$1.pid"
    echo "$pid"
}

# processes_of NAME: those of a started server. A backend of Postgres has a session of its own, but is a child of the postmaster.
processes_of() { with_children "$(pid_of "$1")"; }

with_children() {
    echo "$1"
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$1" '{ pid = $1; sub(/.*\) /, ""); if ($2 == parent) print pid }' || true
}

# pause PID...: stops the processes until resume_all of the same shell. Their connections stay open.
pause() {
    local pid
    for pid in "$@"; do
        kill -STOP "$pid" 2>/dev/null || continue
        echo "$pid" >>"$SCRATCH/paused-$BASHPID"
    done
}

stop_processes() {
    # shellcheck disable=SC2046 # one word for each process
    pause $(processes_of "$1")
}

resume_all() {
    local pid
    [[ -e $SCRATCH/paused-$BASHPID ]] || return 0
    while read -r pid; do kill -CONT "$pid" 2>/dev/null || true; done <"$SCRATCH/paused-$BASHPID"
    rm "$SCRATCH/paused-$BASHPID"
}

## Clients.

# record URL: starts clients that take locks and operations, until stop_recording.
record() {
    URL=$1
    rm -f "$SCRATCH/over"
    start recorder "$TESTKIT_BINARY" record --urls "$URL" --keys "$KEYS" --clients "$CLIENTS" --seconds 86400 --ttl-ms 3000 \
        --abandon-one-in 0 --out "$HISTORY"
    RECORDER=$STARTED_PID
    # Other locks, whose holders often vanish: the next holder must wait for the end of the lease. Each start has a history of its own.
    # shellcheck disable=SC2016 # for the other shell
    start vanishing bash -c 'exec "$@-$(date +%s%N)"' - "$TESTKIT_BINARY" record --urls "$URL" --keys 4 --clients 8 --seconds 86400 \
        --ttl-ms 1000 --abandon-one-in 20 --out "$HISTORY-vanishing"
    touch "$HISTORY" "$SCRATCH"/{done,done-before-faults,lost-leases,lost-operations}
    gate_loop &
    LOOPS+=($!)
    until_as_before "the start"
}

stop_recording() {
    local pid
    touch "$SCRATCH/over"
    end_process TERM "$(pid_of vanishing)"
    kill "$RECORDER"
    for pid in "$RECORDER" "${LOOPS[@]}"; do wait "$pid"; done
    RECORDER='' LOOPS=()
}

# gate_loop: does one operation after the other through the gate, and repeats each call until it succeeds.
gate_loop() {
    local n=0 claim id stamp
    while ((n += 1)); do
        until claim=$(pre "$n") && [[ $claim =~ \"id\":\"([^\"]*)\" ]] && id=${BASH_REMATCH[1]} && [[ $claim =~ \"stamp\":(\"[^\"]*\"|[0-9]+) ]]; do
            again || return 0
        done
        stamp=${BASH_REMATCH[1]}
        until posted=$(curl -s -m 5 -w '\n%{http_code}' "$URL/v1/operations/$id/post" -d "{\"stamp\":$stamp,\"outcome\":\"success\"}") &&
            [[ $posted == *$'\n'200 ]]; do
            # The claim was lost, in a way that was declared.
            [[ $posted != *$'\n'40[49] ]] || continue 2
            again || return 0
        done
        echo "$(now_ms) $n" >>"$SCRATCH/done"
        again || return 0
    done
}

# durability_of N: that of the Nth operation. Redis may lose the fast ones.
durability_of() { if (($1 % 2)); then echo durable; else echo fast; fi; }

# body_of N [FIELD]: the request for the Nth operation.
body_of() {
    echo "{\"operation\":\"charge\",\"contents\":{\"order\":$1},\"durability\":\"$(durability_of "$1")\",\"on_expiry\":\"retry\",\"ttl_ms\":3000${2-}}"
}

# pre N: claims the Nth operation; prints the answer if that succeeds.
pre() { curl -sf -m 5 "$URL/v1/operations/pre" -d "$(body_of "$1" ",\"attempt_id\":\"attempt-$1\"")"; }

# again: pauses; fails when the test is over.
again() {
    sleep 0.05
    [[ ! -e $SCRATCH/over ]]
}

# acquire KEY BODY [SECONDS]: prints the answer.
acquire() { curl -s -m "${3-10}" "$URL/v1/locks/$1/acquire" -d "$2"; }

## How long each fault keeps clients from what they want.

# grants_since BYTE: for each grant in the history behind it, the time in µs and the key.
grants_since() {
    tail -c "+$(($1 + 1))" "$HISTORY" | grep -F '"verb":"acquire"' | grep -F '"status":200' |
        sed -nE 's/.*"key":"([^"]*)".*"received_us":([0-9]+).*/\2 \1/p' || true
}

operations_done() { wc -l <"$SCRATCH/done"; }

# granted_keys BYTE: how many keys were granted often enough since then.
granted_keys() { grants_since "$1" | awk -v min="$GRANTS_MIN" '++n[$2] == min { all++ } END { print all + 0 }'; }

# While the tier recovers: what a supervisor and an operator do.
attend() { :; }

# until_as_before FAULT: waits until all keys are granted and operations succeed again.
until_as_before() {
    local size operations deadline=$((SECONDS + RECOVERY_MAX))
    size=$(stat -c %s "$HISTORY")
    operations=$(operations_done)
    until (($(granted_keys "$size") == KEYS && $(operations_done) >= operations + 2)); do
        kill -0 "$RECORDER" 2>/dev/null || die "the recorder has ended: $(tail -n 20 "$ROOM/recorder.log")"
        ((SECONDS < deadline)) || die "after $1: $(granted_keys "$size") of $KEYS keys were granted within $RECOVERY_MAX s, \
and $(($(operations_done) - operations)) operations done"
        attend
        sleep 0.1
    done
}

# begin_fault NAME
begin_fault() {
    say "$1"
    BEGAN_MS=$(now_ms)
    # With the last grant of each key before the fault.
    BEGAN_BYTE=$(stat -c %s "$HISTORY")
    BEGAN_BYTE=$((BEGAN_BYTE > 200000 ? BEGAN_BYTE - 200000 : 0))
    BEGAN_US=$(grants_since "$BEGAN_BYTE" | awk '$1 > last { last = $1 } END { print last + 0 }')
    note_operations
}

# note_operations: the last that were done. At the end they must still be known.
note_operations() { tail -n 4 "$SCRATCH/done" >>"$SCRATCH/done-before-faults"; }

# end_fault: sets LONGEST to the longest times in ms that ended since the fault began, without a grant of one of the keys, and without an
# operation done.
end_fault() {
    LONGEST=("$(grants_since "$BEGAN_BYTE" | sort -n | longest_gap "$BEGAN_US" 1000)"
        "$(awk -v from=$((BEGAN_MS - 20000)) '$1 >= from { print $1, "any" }' "$SCRATCH/done" | longest_gap "$BEGAN_MS" 1)")
}

# longest_gap FROM UNIT: reads lines with a time and a name, in order of time; prints the longest time between two lines of the same name, the
# second of which is behind FROM.
longest_gap() {
    awk -v from="$1" -v unit="$2" '
        ($2 in last) && $1 > from && $1 - last[$2] > longest { longest = $1 - last[$2] }
        { last[$2] = $1 }
        END { printf "%d", longest / unit }'
}

## The check.

# declare_loss FROM_MS: stores have lost what they acknowledged since then.
declare_loss() { lost_leases "$1" && lost_operations "$1"; }

lost_operations() { echo "$1 $(now_ms)" >>"$SCRATCH/lost-operations"; }

# A line for the check of each history. A client that held a lease then may have learned that it had lost the lease.
lost_leases() {
    echo "{\"verb\":\"lose\",\"key\":\"\",\"sent_us\":${1}000,\"received_us\":$(($(now_ms) + 10))000}" >>"$SCRATCH/lost-leases"
}

# clocks_differ: the expiries that stores give cannot be compared.
clocks_differ() { touch "$SCRATCH/clocks-differ"; }

# check_histories: fails if a lock or an operation broke a promise. Sets SEEN to the sums.
check_histories() {
    local file seen all=() of_all=() options
    [[ ! -e $SCRATCH/clocks-differ ]] || of_all=(--clocks-differ)
    for file in "$HISTORY"*; do
        options=("${of_all[@]}")
        # Some faults kill the other clients.
        [[ $file == "$HISTORY" ]] || options+=(--killed)
        # A client that was killed may have left half a line.
        [[ -z $(tail -c 1 "$file") ]] || sed -i '$d' "$file"
        seen=$("$TESTKIT_BINARY" check "$file" "$SCRATCH/lost-leases" "${options[@]}" --handovers-min "$([[ $file == "$HISTORY" ]] && echo 100 || echo 0)") ||
            die "the recorded history shows a broken promise: $file"
        all+=("$seen")
    done
    SEEN=$(jq -cs 'map(to_entries[]) | group_by(.key) | map({key: .[0].key, value: map(.value) | add}) | from_entries' <<<"${all[*]}")
    operations_are_known
}

# operations_are_known: operations that were done before a fault are still known, if no store has lost that time.
operations_are_known() {
    local ms n answer
    while read -r ms n; do
        ! awk -v ms="$ms" '$1 <= ms && ms <= $2 { lost = 1 } END { exit !lost }' "$SCRATCH/lost-operations" || continue
        answer=$(curl -s -m 20 "$URL/v1/operations/pre" -d "$(body_of "$n")")
        [[ $(jq -r .code <<<"$answer") == operation-duplicate ]] || die "operation $n was done, but can be done again: $answer"
    done <"$SCRATCH/done-before-faults"
}

# summarise: prints what check_histories has found, for a person.
summarise() {
    jq -r '"\(.grants) grants, \(.handovers) hand-overs, \(.attempts) attempts, \(.events) events, \(.unknown_outcomes) unknown outcomes: no rule broken"' <<<"$SEEN"
}
