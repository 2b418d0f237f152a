//! Lanes: the waiters of one node, by group, in the order in which they may be granted permits.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use super::command::Acquire;
use super::group::Group;
use super::lease::Mode;
use super::position::{NodeId, Position, Turn};
use super::queue::{Rank, ReplyHandle, WaitQueue, Waiter};
use super::shares::{FirstTurn, GroupOrder, Held, first_of_each};
use super::state::LockState;
use crate::time::Timestamp;

/// The first request of a lane.
#[derive(Clone, Copy, Debug)]
struct First {
    position: Position,
    mode: Mode,
    group_limit: Option<u32>,
    /// `None`: a turn of another node, or a reserved position. Waiters of this node must not take the lock before it.
    waiter: Option<Rank>,
}

impl First {
    fn of(request: &Acquire, waiter: Option<Rank>) -> Self {
        let Acquire { position, lease, .. } = request;
        Self { position: *position, mode: lease.demand.mode, group_limit: lease.demand.group_limit(), waiter }
    }

    fn of_turn(turn: &Turn) -> Self {
        let group_limit = turn.share.as_ref().and_then(|share| share.limit);
        Self { position: turn.position, mode: turn.mode, group_limit, waiter: None }
    }
}

/// The waiters of a group at this node by their arrival, from the first that may still be unanswered.
type Arrivals<'q> = Peekable<Box<dyn Iterator<Item = (Timestamp, Rank)> + 'q>>;

/// One group: the permits that it has, and its waiters.
struct Lane<'q> {
    group: Option<Group>,
    held: Held,
    /// When the group was last granted a permit, as far as this node remembers.
    served_here: Timestamp,
    /// The first turn of other nodes.
    elsewhere: Option<First>,
    /// When the earliest request of the group arrived, by the turns of other nodes, and by those of all nodes.
    earliest_elsewhere: Option<Timestamp>,
    earliest_published: Option<Timestamp>,
    arrivals: Arrivals<'q>,
    /// When the earliest of the reserved positions arrived.
    earliest_reserved: Option<Timestamp>,
    first: Option<First>,
}

/// The lanes of all groups that wait at this node or at others.
pub(super) struct Lanes<'q> {
    lanes: Vec<Lane<'q>>,
    order: BTreeSet<(GroupOrder, usize)>,
}

impl<'q> Lanes<'q> {
    /// `is_open` leaves out waiters that have been answered.
    pub(super) fn new<R: ReplyHandle, I: Copy + Ord>(
        state: &LockState,
        queue: &'q WaitQueue<R, I>,
        node: &NodeId,
        now: Timestamp,
        is_open: impl Fn(Rank, &Waiter<R, I>) -> bool,
    ) -> Self {
        let shares = state.shares();
        let elsewhere: BTreeMap<Option<&Group>, FirstTurn<'_>> = first_of_each(state.turns_of_others(node));
        let published = first_of_each(state.turns().iter());
        let groups = queue.groups().into_iter().chain(elsewhere.keys().copied()).collect::<BTreeSet<_>>();
        let lane = |group: Option<&Group>| {
            let other = elsewhere.get(&group);
            Lane {
                group: group.cloned(),
                held: shares.of(group),
                served_here: queue.served(group, now),
                elsewhere: other.map(|first| First::of_turn(first.turn)),
                earliest_elsewhere: other.map(|first| first.earliest),
                earliest_published: published.get(&group).map(|first| first.earliest),
                arrivals: queue.arrivals_of_group(group).peekable(),
                earliest_reserved: queue.earliest_reserved(group),
                first: None,
            }
        };
        let mut lanes = Self { lanes: groups.into_iter().map(lane).collect(), order: BTreeSet::new() };
        for index in 0..lanes.lanes.len() {
            lanes.advance(index, state, queue, None, &is_open);
        }
        lanes
    }

    /// The lane whose first request comes first of all, and the waiter, if it is one of this node. The lane is taken out.
    pub(super) fn pop(&mut self) -> Option<(usize, Option<Rank>)> {
        loop {
            let (_, index) = self.order.pop_first()?;
            let Lane { held, first, .. } = &self.lanes[index];
            let Some(first) = first else { continue };
            // Of a waiter, the step finds that out, and with it the reason of the refusal.
            if first.waiter.is_none() && held.is_at_limit(first.mode, first.group_limit) {
                continue;
            }
            return Some((index, first.waiter));
        }
    }

    /// Notes that the lane was granted permits.
    pub(super) fn granted(&mut self, index: usize, permits: u32, now: Timestamp) {
        if permits == 0 {
            return;
        }
        let held = &mut self.lanes[index].held;
        held.permits = held.permits.saturating_add(permits);
        held.served = now;
    }

    /// Puts the lane back with its first request behind `after`.
    pub(super) fn advance<R: ReplyHandle, I: Copy + Ord>(
        &mut self,
        index: usize,
        state: &LockState,
        queue: &WaitQueue<R, I>,
        after: Option<Rank>,
        is_open: impl Fn(Rank, &Waiter<R, I>) -> bool,
    ) {
        let lane = &mut self.lanes[index];
        let group = lane.group.as_ref();
        let open = || queue.of_group(group, after).filter(|(rank, waiter)| is_open(*rank, waiter));
        let own = open().next();
        let is_before = |(rank, _): &(Rank, _)| own.is_none_or(|(own, _)| *rank < own);
        let reserved = queue.reserved_of_group(group).find(|reserved| {
            is_before(reserved)
                && own.is_none_or(|(_, waiter)| blocks(reserved.1.lease.demand.mode, waiter))
                && !state.knows(&reserved.1.lease.lease_id)
        });
        let reserved = reserved.map(|(_, request)| First::of(request, None));
        // A turn with the same position belongs to the same waiter, which has moved here.
        let others = reserved.into_iter().chain(lane.elsewhere).min_by_key(|first| first.position.rank());
        let first_with = |own: Option<(Rank, &Waiter<R, I>)>| {
            let own = own.map(|(rank, waiter)| First::of(&waiter.request, Some(rank)));
            match (own, others) {
                (Some(own), Some(other)) if reserved.is_none() && other.position.rank() >= own.position.rank() => {
                    Some(own)
                }
                (own, None) => own,
                (_, other) => other,
            }
        };
        lane.first = first_with(own);
        // A request that does not wait is served in the place of its group, which the first request that waits decides.
        let Some(first) = first_with(open().find(|(_, waiter)| waiter.deadline.is_some())).or(lane.first) else {
            return;
        };
        let is_answered = |rank: Rank| queue.get(rank).is_none_or(|waiter| !is_open(rank, waiter));
        while lane.arrivals.next_if(|(_, rank)| is_answered(*rank)).is_some() {}
        let order = if first.waiter.is_none() && reserved.is_none() {
            // The other node must find the same order, or each of two nodes waits for the other: so by the turns alone. A waiter of this
            // node may have arrived earlier and have no turn.
            lane.held.order(first.mode, lane.earliest_published.unwrap_or(first.position.arrival))
        } else {
            let here = lane.arrivals.peek().map(|(arrival, _)| *arrival).into_iter().chain(lane.earliest_reserved);
            let earliest = here.chain(lane.earliest_elsewhere).min().unwrap_or(first.position.arrival);
            lane.held.served_at(lane.served_here).order(first.mode, earliest)
        };
        self.order.insert((order, index));
    }
}

/// Whether a reserved position of its group blocks a waiter behind it. Shared requests do not block each other; a probe is always
/// blocked, because the multilock that tries its keys next respects the published turn of the reserved position.
pub(super) fn blocks<R, I>(reserved: Mode, waiter: &Waiter<R, I>) -> bool {
    let is_shared = waiter.request.lease.demand.mode == Mode::Shared && !waiter.is_probe;
    !(is_shared && reserved == Mode::Shared)
}
