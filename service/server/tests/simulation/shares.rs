//! Fair shares in what a database commits, by the leases and turns alone.

use std::collections::BTreeSet;

use latchgate_core::lock::{Group, Lease, LeaseId, LockState, SERVED_MARGIN_MS, Turn};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use latchgate_testkit::commits::has;
use latchgate_testkit::recorder::group_limit;

/// How many permits a group may have in all runs; each request of the group says so.
fn limit_of(group: Option<&Group>) -> Option<u32> {
    group_limit(group?.as_str()).map(|limit| u32::try_from(limit).unwrap())
}

fn permits_of(state: &LockState, group: Option<&Group>, but: Option<&Lease>) -> u32 {
    let is_other = |lease: &&Lease| but.is_none_or(|but| lease.lease_id != but.lease_id);
    let leases = state.holders().iter().filter(is_other).filter(|lease| lease.group.as_ref() == group);
    let kept = state.kept().iter().filter(|kept| kept.group.as_ref() == group);
    leases.map(|lease| lease.mode.permits()).sum::<u32>() + kept.map(|kept| kept.permits).sum::<u32>()
}

/// Whether a group that has permits waits longer than another group that is granted one.
pub fn lets_pass(before: &LockState, after: &LockState) -> bool {
    let is_new = |lease: &&Lease| !before.holders().iter().any(|other| other.token == lease.token);
    let arrival = |lease: &Lease| Timestamp::from_ms(lease.granted_at.as_ms().saturating_sub(lease.waited_ms));
    after.holders().iter().filter(is_new).filter(|lease| lease.mode.permits() > 0).any(|lease| {
        let is_passed = |turn: &&Turn| turn.group() != lease.group.as_ref() && turn.position.arrival < arrival(lease);
        before.turns().iter().filter(is_passed).any(|turn| permits_of(after, turn.group(), None) > 0)
    })
}

/// The turn of another node that a lease was granted ahead of, if there is one: it comes first, and still waits after the commit. Groups
/// have an order of their own, and an owner that holds the lock need not queue for it.
pub fn overtaken<'a>(
    lease: &Lease,
    priority: u8,
    (before, after): (&'a LockState, &LockState),
    node: &str,
    now: Timestamp,
) -> Option<&'a Turn> {
    let is_owner = |other: &&Lease| other.owner == lease.owner && other.lease_id != lease.lease_id;
    let is_grouped = before.turns().iter().chain(after.turns()).any(|turn| turn.share.is_some());
    if lease.group.is_some() || is_grouped || before.holders().iter().chain(after.holders()).any(|it| is_owner(&it)) {
        return None;
    }
    let arrival = Timestamp::from_ms(lease.granted_at.as_ms().saturating_sub(lease.waited_ms));
    let is_first = |turn: &&Turn| {
        let is_earlier = turn.position.priority == priority && turn.position.arrival < arrival;
        turn.node.as_str() != node && (turn.position.priority > priority || is_earlier)
    };
    let waits = |turn: &&Turn| {
        let is_same = |other: &Turn| (&other.node, other.position) == (&turn.node, turn.position);
        after.turns().iter().any(is_same) && turn.until > now.plus_ms(2 * CLOCK_BOUND_MS)
    };
    before.turns().iter().find(|turn| is_first(turn) && waits(turn))
}

/// What is wrong in a commit. A group that has nothing and waits through the commit is passed only by groups that had nothing either and
/// have waited longer. `barging`: requests that need not wait.
pub fn wrong(before: &LockState, after: &LockState, barging: &BTreeSet<LeaseId>, now: Timestamp) -> Vec<String> {
    let new: Vec<&Lease> =
        after.holders().iter().filter(|lease| lease.mode.permits() > 0 && !has(before, lease)).collect();
    let mut wrong = Vec::new();
    for lease in &new {
        let held = permits_of(after, lease.group.as_ref(), None);
        if limit_of(lease.group.as_ref()).is_some_and(|limit| held > limit) {
            wrong.push(format!("its group has {held} permits with {lease:?}: {after:?}"));
        }
    }
    let still_waits = |turn: &&Turn| {
        let is_same =
            |other: &&Turn| (&other.node, other.position, other.since) == (&turn.node, turn.position, turn.since);
        after.turns().iter().any(|other| is_same(&other)) && turn.until > now.plus_ms(2 * CLOCK_BOUND_MS)
    };
    let has_nothing =
        |turn: &&Turn| permits_of(before, turn.group(), None) == 0 && permits_of(after, turn.group(), None) == 0;
    let is_grouped = before.turns().iter().chain(after.turns()).any(|turn| turn.share.is_some());
    let waiting: Vec<&Turn> = before.turns().iter().filter(still_waits).filter(has_nothing).collect();
    for lease in new.iter().filter(|lease| is_grouped && !barging.contains(&lease.lease_id)) {
        let arrival = Timestamp::from_ms(lease.granted_at.as_ms().saturating_sub(lease.waited_ms));
        let had = permits_of(after, lease.group.as_ref(), Some(lease));
        let others = after.holders().iter().filter(|other| other.group == lease.group && other.token > lease.token);
        // Those that were granted later in the same commit do not count.
        let had = had - others.map(|other| other.mode.permits()).sum::<u32>();
        // Its node knows its own waiters before their turn is published.
        let turns = before.turns().iter().chain(after.turns());
        let of_group = turns.filter(|turn| turn.group() == lease.group.as_ref());
        let earliest = of_group.map(Turn::earliest).chain([arrival]).min().unwrap();
        for turn in waiting.iter().filter(|turn| turn.group() != lease.group.as_ref()) {
            // The nodes agree on the latest time that a turn of the group shows.
            let alike = before.turns().iter().chain(after.turns()).filter(|other| other.group() == turn.group());
            let served = alike.map(|other| other.served).max().filter(|served| *served > Timestamp::default());
            let since = served.map(|at| at.plus_ms(SERVED_MARGIN_MS)).max(Some(turn.earliest())).unwrap();
            if had > 0 || earliest > since.plus_ms(CLOCK_BOUND_MS) {
                wrong.push(format!("{lease:?} passes {turn:?}, whose group has nothing: {before:?} -> {after:?}"));
            }
        }
    }
    wrong
}
