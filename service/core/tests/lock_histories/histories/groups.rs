//! Fair shares, as a reader of the documentation would find them: without the indexes of the rules.

use latchgate_core::lock::{
    Acquire, Group, LeaseId, LockState, Mode, Outcome, Owner, Position, QueuePosition, Share, Turn, WaitQueue,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use super::node::Client;
use super::promise::{Broken, Promise};
use super::steps::{Context, Taken};

/// A request that waits, by a waiter or by a turn.
#[derive(Clone, Debug)]
struct Request<'a> {
    share: Option<&'a Share>,
    mode: Mode,
    position: Position,
    turn: Option<&'a Turn>,
}

impl<'a> Request<'a> {
    fn of_turn(turn: &'a Turn) -> Self {
        Self { share: turn.share.as_ref(), mode: turn.mode, position: turn.position, turn: Some(turn) }
    }

    fn of(request: &'a Acquire) -> Self {
        let lease = &request.lease;
        Self { share: lease.demand.share.as_ref(), mode: lease.demand.mode, position: request.position, turn: None }
    }

    fn group(&self) -> Option<&'a Group> {
        self.share.map(|share| &share.group)
    }

    fn earliest(&self) -> Timestamp {
        self.turn.and_then(|turn| turn.since).unwrap_or(self.position.arrival)
    }

    /// Fewest permits first; among equals, the group that has waited longest without a permit. `known`: the requests that its group may
    /// have waited for.
    fn order(&self, state: &LockState, known: &[Self]) -> (u32, Timestamp, Option<&'a Group>) {
        // A turn is dated by all turns of its group and by nothing else: that is what every node sees.
        let of_turns = || state.turns().iter().filter(|turn| turn.group() == self.group()).map(Turn::earliest).min();
        let of_known = || known.iter().filter(|other| other.group() == self.group()).map(Self::earliest).min();
        let arrival = if self.turn.is_some() { of_turns() } else { of_known() }.unwrap();
        if self.mode.permits() == 0 {
            return (0, arrival, self.group());
        }
        let is_of =
            |lease: &&latchgate_core::lock::Lease| lease.mode.permits() > 0 && lease.group.as_ref() == self.group();
        let granted = state.holders().iter().filter(is_of).map(|lease| lease.granted_at);
        let served = state.turns().iter().filter(|turn| turn.group() == self.group()).map(|turn| turn.served);
        let served = granted.chain(served.filter(|served| *served > Timestamp::default()));
        let since = served.map(|at| at.plus_ms(2 * CLOCK_BOUND_MS + 1)).chain([arrival]).max().unwrap();
        (held(state, self.group()), since, self.group())
    }
}

fn held(state: &LockState, group: Option<&Group>) -> u32 {
    let leases = state.holders().iter().filter(|lease| lease.group.as_ref() == group);
    let kept = state.kept().iter().filter(|kept| kept.group.as_ref() == group);
    leases.map(|lease| lease.mode.permits()).sum::<u32>() + kept.map(|kept| kept.permits).sum::<u32>()
}

pub fn is_at_limit(state: &LockState, share: Option<&Share>, mode: Mode) -> bool {
    let Some(Share { group, limit: Some(limit) }) = share else { return false };
    held(state, Some(group)) + mode.permits() > *limit
}

/// The first request of all: of those that are first of their group and not kept back by its limit.
fn first<'a>(state: &LockState, requests: &[Request<'a>], known: &[Request<'a>]) -> Option<Request<'a>> {
    let is_first = |one: &&Request<'_>| {
        requests.iter().all(|other| other.group() != one.group() || other.position.rank() >= one.position.rank())
    };
    let of_groups = requests.iter().filter(is_first).filter(|one| !is_at_limit(state, one.share, one.mode));
    of_groups.min_by_key(|one| (one.order(state, known), one.turn.map(|turn| turn.node.as_str()))).cloned()
}

pub fn first_turn(state: &LockState) -> Option<&Turn> {
    let turns: Vec<Request<'_>> = state.turns().iter().map(Request::of_turn).collect();
    let is_grouped = turns.iter().any(|turn| turn.share.is_some());
    if is_grouped {
        return first(state, &turns, &turns)?.turn;
    }
    state.turns().iter().min_by_key(|turn| (turn.position.rank(), turn.node.as_str()))
}

/// Whether one of the other nodes' turns comes before a request.
pub fn is_behind_turns(state: &LockState, request: &Acquire) -> bool {
    let others = state.turns().iter().filter(|turn| turn.node != request.node).map(Request::of_turn);
    comes_before(state, others.collect(), request, true)
}

/// Whether one of the others comes before a request. One that does not wait takes the place of its group.
fn comes_before(state: &LockState, others: Vec<Request<'_>>, request: &Acquire, waits: bool) -> bool {
    let own = Request::of(request);
    let is_grouped = own.share.is_some() || others.iter().any(|other| other.share.is_some());
    if !is_grouped {
        return others.iter().any(|other| other.position.rank() < own.position.rank());
    }
    let of_group = |other: &&Request<'_>| other.group() == own.group();
    if others.iter().filter(of_group).any(|other| other.position.rank() < own.position.rank()) {
        return true;
    }
    let first_that_waits = others.iter().filter(of_group).min_by_key(|other| other.position.rank());
    let place = first_that_waits.filter(|_| !waits).unwrap_or(&own).clone();
    // A turn with the same position is of the same waiter, which has moved here. It still says since when its group has waited.
    let is_other = |other: &&Request<'_>| other.position != place.position || other.group() != place.group();
    let competing: Vec<Request<'_>> = others.iter().filter(is_other).chain([&place]).cloned().collect();
    let known: Vec<Request<'_>> = others.iter().chain([&place]).cloned().collect();
    first(state, &competing, &known).is_some_and(|first| first.order(state, &known) < place.order(state, &known))
}

/// A grant keeps the limit of its group, and says the group.
pub fn check_grant(broken: &mut Broken, request: &Acquire, lease: &latchgate_core::lock::Lease, context: &Context<'_>) {
    let share = request.lease.demand.share.as_ref();
    let is_of_group = lease.group.as_ref() == share.map(|share| &share.group);
    let limit = share.and_then(|share| share.limit);
    let is_within = limit.is_none_or(|limit| held(context.after, lease.group.as_ref()) <= limit);
    broken.expect(is_of_group && is_within, Promise::GroupWithinLimit, || context.describe());
}

/// No waiter of this node and no turn of another comes before a waiter that is granted the lock in turn. `attempted`: what was tried in
/// this evaluation before.
pub fn check_first(
    broken: &mut Broken,
    state: &LockState,
    queue: &WaitQueue<Client, Timestamp>,
    attempted: &[(LeaseId, Position, Outcome)],
    request: &Acquire,
    taken: &Taken,
) {
    // An owner that holds the lock nests whatever else waits.
    let holds = |owner: &Owner| state.holders().iter().any(|lease| lease.owner == *owner);
    let nests = request.lease.reentrant && request.lease.owner.as_ref().is_some_and(holds);
    if taken.grant.is_none() || request.queue_position != QueuePosition::First || request.lease.barge || nests {
        return;
    }
    let is_tried = |other: &Acquire, waits: bool| {
        attempted.iter().any(|(lease_id, position, outcome)| {
            let is_it = *lease_id == other.lease.lease_id && *position == other.position;
            is_it && (!waits || !matches!(outcome, Outcome::Refused(_)))
        })
    };
    let waiting = queue.iter().map(|(_, waiter)| waiter).filter(|waiter| !waiter.reply.is_gone);
    let waiting = waiting.filter(|waiter| !is_tried(&waiter.request, waiter.deadline.is_some()));
    // What does not wait counts for no group.
    let waiting = waiting.filter(|waiter| waiter.deadline.is_some()).map(|waiter| Request::of(&waiter.request));
    let elsewhere = state.turns().iter().filter(|turn| turn.node != request.node).map(Request::of_turn);
    let others = waiting.chain(elsewhere).collect();
    let waits = queue.iter().any(|(_, waiter)| {
        waiter.request.lease.lease_id == request.lease.lease_id
            && waiter.request.position == request.position
            && waiter.deadline.is_some()
    });
    broken.expect(!comes_before(state, others, request, waits), Promise::GroupsTakeTurns, || {
        format!("{request:?} was granted at {state:?} before others of {queue:?}")
    });
}
