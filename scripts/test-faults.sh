#!/usr/bin/env bash
# Kills every part of a cluster in turn while clients take and release locks through nginx, restarts it as a supervisor would, and
# checks that locks are granted again without an operator. At the end it checks the recorded history: no lock may ever have had two
# holders.
#
#   CLUSTER_BINARY   a built `latchgate`; if absent, cargo builds one
#   TESTKIT_BINARY   a `latchgate-testkit`, likewise
#   ROUNDS           how often each part is killed (1)
source "$(dirname "$0")/recording.sh"

# fault NAME SIGNAL PART: ends a part's main process, and starts it again as a supervisor would.
fault() {
    begin_fault "$1"
    end_process "$2" "$(pid_of "$3")"
    cluster_up
    until_as_before "$1"
}

cluster_up
say "the cluster is up; recording"
record
for ((round = 0; round < ${ROUNDS:-1}; round++)); do
    for node in node-1 node-2 node-3; do fault "kill -9 of $node" KILL "$node"; done
    fault "kill -9 of nginx" KILL nginx
    fault "kill -9 of Redis" KILL redis
    # SIGQUIT is `pg_ctl stop -m immediate`: every connection is cut, and the start is a recovery from a crash.
    fault "immediate stop of Postgres" QUIT postgres
done
stop_recording

seen=$(check_history "$HISTORY")
seen_vanishing=$(check_history "$HISTORY-vanishing")
(($(jq .unknown_outcomes <<<"$seen") > 0)) || die "no client has noticed a fault"
(($(jq .lost_early <<<"$seen") == 0)) || die "leases were lost before they ended: $seen"
# Operations that were done must still be known.
while read -r n; do is_duplicate "$n"; done <"$SCRATCH/done-before-faults"

echo
longest_gaps
echo
summarise "$seen"
summarise "$seen_vanishing"
say "the cluster recovers from all faults"
