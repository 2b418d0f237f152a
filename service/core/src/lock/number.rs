//! A waiter's number in the queue, as its client is told: 1 is next.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::command::Acquire;
use super::group::Group;
use super::position::{NodeId, Turn};
use super::queue::{Rank, ReplyHandle, WaitQueue};
use super::shares::{GroupOrder, Shares, first_of_each};
use super::state::LockState;

/// The numbers of requests among the waiters of a node and those of others, as of their last commits. What groups have is found once, for
/// all requests of a batch.
///
/// Among groups it is the number that the request has if each waiter takes one permit and none is given back meanwhile.
pub struct QueueNumbers<'s> {
    state: &'s LockState,
    node: &'s NodeId,
    groups: OnceCell<(Shares<'s>, Vec<Other>)>,
}

/// A group that waits, and that its limit does not keep back.
struct Other {
    group: Option<Group>,
    order: GroupOrder,
    waiting: u64,
}

impl<'s> QueueNumbers<'s> {
    pub fn new(state: &'s LockState, node: &'s NodeId) -> Self {
        Self { state, node, groups: OnceCell::new() }
    }

    /// The number of a request. `queue` has the waiters of the node, and may lose some between the calls. `rank` is that of the request, if
    /// it stands in the queue.
    pub fn of<R: ReplyHandle, I: Copy + Ord>(
        &self,
        queue: &WaitQueue<R, I>,
        rank: Option<Rank>,
        request: &Acquire,
    ) -> u64 {
        let is_before = |turn: &&Turn| turn.position.rank() < request.position.rank();
        let waiting = |turn: &Turn| u64::from(turn.waiting);
        let others = || self.state.turns_of_others(self.node);
        let is_grouped = queue.is_grouped() || self.state.has_grouped_turns() || self.groups.get().is_some();
        if !is_grouped && request.lease.demand.share.is_none() {
            let here = rank.map_or(0, |rank| queue.before(rank));
            return others().filter(is_before).map(waiting).sum::<u64>() + here as u64 + 1;
        }
        let (shares, groups) = self.groups.get_or_init(|| self.groups(queue));
        let group = request.lease.demand.group();
        let here = rank.map_or(0, |rank| queue.of_group(group, None).take_while(|(other, _)| *other < rank).count());
        let in_group = others().filter(|turn| turn.group() == group).filter(is_before).map(waiting).sum::<u64>();
        let in_group = in_group + here as u64;
        // Permits that its group has once it is granted its own, less its own.
        let (own, since) = shares.of(group).order(request.lease.demand.mode, request.position.arrival);
        let level = u64::from(own) + in_group;
        let before = |other: &Other| {
            let (permits, other_since) = other.order;
            let is_earlier = other_since < since && u64::from(permits) <= level;
            (level.saturating_sub(permits.into()) + u64::from(is_earlier)).min(other.waiting)
        };
        groups.iter().filter(|other| other.group.as_ref() != group).map(before).sum::<u64>() + in_group + 1
    }

    fn groups<R: ReplyHandle, I: Copy + Ord>(&self, queue: &WaitQueue<R, I>) -> (Shares<'s>, Vec<Other>) {
        let shares = self.state.shares();
        let firsts = first_of_each(self.state.turns_of_others(self.node));
        let mut elsewhere: BTreeMap<Option<&Group>, u64> = BTreeMap::new();
        for turn in self.state.turns_of_others(self.node) {
            *elsewhere.entry(turn.group()).or_default() += u64::from(turn.waiting);
        }
        let names: BTreeSet<Option<&Group>> = queue.groups().into_iter().chain(firsts.keys().copied()).collect();
        let other = |group: Option<&Group>| {
            let turn = firsts.get(&group).map(|first| first.turn);
            let turn = turn.map(|turn| (turn.position, turn.mode, turn.share.as_ref().and_then(|share| share.limit)));
            let here = queue.first_of_group(group, |_| false, self.state);
            let here = here.map(|first| (first.position, first.lease.demand.mode, first.lease.demand.group_limit()));
            let first = turn.into_iter().chain(here).min_by_key(|(position, ..)| position.rank());
            let (position, mode, limit) = first?;
            let held = shares.of(group);
            let waiting = queue.len_of_group(group) as u64 + elsewhere.get(&group).copied().unwrap_or_default();
            let is_kept_back = held.is_at_limit(mode, limit);
            let order = held.order(mode, position.arrival);
            (!is_kept_back).then(|| Other { group: group.cloned(), order, waiting })
        };
        let others = names.into_iter().filter_map(other).collect();
        (shares, others)
    }
}
