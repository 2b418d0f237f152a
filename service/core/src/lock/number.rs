//! A waiter's number in the queue, as its client is told: 1 is next.

use super::command::Acquire;
use super::group::{Group, first_of_each};
use super::position::Turn;
use super::queue::{Rank, ReplyHandle, WaitQueue};
use super::state::LockState;

/// The number of a request among the waiters of this node, `queue`, and those of others, as of their last commits. `rank` is that of
/// the request, if it stands in the queue.
///
/// Among groups it is the number that the request has if each waiter takes one permit and none is given back meanwhile.
pub fn queue_number<R: ReplyHandle, I: Copy + Ord>(
    queue: &WaitQueue<R, I>,
    rank: Option<Rank>,
    request: &Acquire,
    state: &LockState,
) -> u64 {
    let others = || state.turns_of_others(&request.node);
    let is_before = |turn: &&Turn| turn.position.rank() < request.position.rank();
    let waiting = |turn: &Turn| u64::from(turn.waiting);
    if !queue.is_grouped() && !state.has_grouped_turns() && request.lease.share.is_none() {
        let here = rank.map_or(0, |rank| queue.before(rank));
        return others().filter(is_before).map(waiting).sum::<u64>() + here as u64 + 1;
    }
    let shares = state.shares();
    let group = request.lease.group();
    let of_group = |group| move |turn: &&Turn| turn.group() == group;
    let here = rank.map_or(0, |rank| queue.of_group(group, None).take_while(|(other, _)| *other < rank).count());
    let in_group = others().filter(of_group(group)).filter(is_before).map(waiting).sum::<u64>() + here as u64;
    // Permits that its group has once it is granted its own, less its own.
    let (own, since) = shares.of(group).order(request.lease.mode, request.position.arrival);
    let level = u64::from(own) + in_group;
    let mut number = in_group + 1;
    let firsts = first_of_each(others());
    let groups: std::collections::BTreeSet<Option<&Group>> =
        queue.groups().into_iter().chain(firsts.keys().copied()).collect();
    for other in groups.into_iter().filter(|other| *other != group) {
        let elsewhere = firsts.get(&other).map(|first| first.turn);
        let elsewhere = elsewhere.map(|turn| (turn.position, turn.mode, turn.share.as_ref().and_then(|it| it.limit)));
        let here = queue.first_of_group(other, |_| false, state);
        let here = here.map(|first| (first.position, first.lease.mode, first.lease.group_limit()));
        let first = elsewhere.into_iter().chain(here).min_by_key(|(position, ..)| position.rank());
        let Some((position, mode, limit)) = first else { continue };
        let held = shares.of(other);
        if held.is_at_limit(mode, limit) {
            continue;
        }
        let (permits, other_since) = held.order(mode, position.arrival);
        let is_earlier = other_since < since && u64::from(permits) <= level;
        let before = level.saturating_sub(permits.into()) + u64::from(is_earlier);
        let count = queue.len_of_group(other) as u64 + others().filter(of_group(other)).map(waiting).sum::<u64>();
        number += before.min(count);
    }
    number
}
