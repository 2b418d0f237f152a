//! The waiters of one key at one node, in the order in which they are served.
//!
//! A pure structure: it reads no clock and sends nothing. The server attaches to each waiter the handle that the reply
//! goes to, and passes instants of its own clock as deadlines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::command::Acquire;
use super::group::Group;
use super::lease::{LeaseId, Owner};
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// Identifies a waiter within one process.
pub type WaiterId = u64;

/// A waiter's place in the order of service: its [`Position`](super::Position), and a number that tells apart two waiters with the same
/// position, which a ticket that is presented twice creates.
pub type Rank = (Reverse<u8>, Timestamp, u64, u64);

/// What the server attaches to a waiter.
pub trait ReplyHandle {
    /// The client has gone: no reply can reach it.
    fn is_closed(&self) -> bool;
}

/// A request for the lock that has no reply yet. `R` is the reply handle, `I` an instant of the server's clock.
#[derive(Debug)]
pub struct Waiter<R, I> {
    pub id: WaiterId,
    pub request: Acquire,
    /// When the wait ends; `None` for a request that does not wait.
    pub deadline: Option<I>,
    /// The client resumed an earlier wait with a ticket, and may come back after this wait, too.
    pub is_returning: bool,
    /// A probe of a multilock: it is notified when its turn comes, and granted nothing.
    pub is_probe: bool,
    /// An earlier request may have been granted this lease: the client knows the lease id.
    pub may_be_granted: bool,
    pub reply: R,
}

/// The position of a waiter whose wait has ended and which may return within a moment. Until then the queue serves no
/// waiter behind it.
#[derive(Debug)]
struct Reserved<I> {
    id: WaiterId,
    request: Acquire,
    until: I,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Waiter(WaiterId),
    /// Several waiters share a lease id if a client repeats an acquire that still waits.
    Lease(LeaseId),
    /// An owner that may nest: it may hold the lock.
    Owner(Owner),
}

/// The waiters of one group.
#[derive(Debug, Default)]
struct GroupQueue {
    ranks: BTreeSet<Rank>,
    /// Those with a deadline, by their arrival.
    arrivals: BTreeSet<(Timestamp, Rank)>,
}

/// Before every other rank.
const FIRST: Rank = (Reverse(u8::MAX), Timestamp::from_ms(0), 0, 0);

#[derive(Debug)]
pub struct WaitQueue<R, I> {
    /// Boxed: a node of the map has room for eleven entries, and most queues have one waiter.
    waiters: BTreeMap<Rank, Box<Waiter<R, I>>>,
    /// Finds waiters by id, lease id or owner. One tree for all, because most queues have one waiter and live for one batch.
    index: BTreeSet<(Mark, Rank)>,
    deadlines: BTreeSet<(I, Rank)>,
    reserved: BTreeMap<Rank, Reserved<I>>,
    reserved_by_group: BTreeSet<(Option<Group>, Rank)>,
    /// The waiters by group, as soon as one names a group. Empty until then: all waiters are of the group without a name.
    groups: BTreeMap<Option<Group>, GroupQueue>,
    /// When each of the groups was last granted a permit, by the states that this node has seen. The state keeps it only in turns.
    served: BTreeMap<Option<Group>, Timestamp>,
    arrivals: u64,
    latest_arrival: Timestamp,
}

impl<R, I> Default for WaitQueue<R, I> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            index: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            reserved: BTreeMap::new(),
            reserved_by_group: BTreeSet::new(),
            groups: BTreeMap::new(),
            served: BTreeMap::new(),
            arrivals: 0,
            latest_arrival: Timestamp::default(),
        }
    }
}

/// Waiters.
impl<R: ReplyHandle, I: Copy + Ord> WaitQueue<R, I> {
    /// Whether the queue has neither a waiter nor a reserved position.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.reserved.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many waiters have a deadline. Requests that do not wait are not counted.
    pub fn waiting(&self) -> usize {
        self.deadlines.len()
    }

    /// Adds a waiter behind all earlier arrivals of its priority, even if the clock has gone back since. A returning
    /// waiter gets its old position back.
    pub fn insert(&mut self, mut waiter: Waiter<R, I>) -> Rank {
        self.arrivals += 1;
        if waiter.is_returning {
            let is_same = |request: &Acquire| {
                request.position == waiter.request.position && request.lease.lease_id == waiter.request.lease.lease_id
            };
            self.drop_reserved_if(|reserved| is_same(&reserved.request));
        }
        let position = &mut waiter.request.position;
        if !waiter.is_returning {
            self.latest_arrival = self.latest_arrival.max(position.arrival);
            position.arrival = self.latest_arrival;
        }
        let (priority, arrival, serial) = position.rank();
        let rank = (priority, arrival, serial, self.arrivals);
        if let Some(deadline) = waiter.deadline {
            self.deadlines.insert((deadline, rank));
        }
        self.index.extend(marks(&waiter).map(|mark| (mark, rank)));
        let names_group = waiter.request.lease.demand.share.is_some();
        self.waiters.insert(rank, Box::new(waiter));
        if names_group || self.is_grouped() {
            self.add_to_groups(rank);
        }
        rank
    }

    pub fn remove(&mut self, rank: Rank) -> Option<Waiter<R, I>> {
        let waiter = *self.waiters.remove(&rank)?;
        for mark in marks(&waiter) {
            self.index.remove(&(mark, rank));
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, rank));
        }
        if !self.groups.is_empty() {
            let group = waiter.request.lease.demand.group().cloned();
            if let Some(GroupQueue { ranks, arrivals }) = self.groups.get_mut(&group) {
                ranks.remove(&rank);
                arrivals.remove(&(waiter.request.position.arrival, rank));
                if ranks.is_empty() {
                    self.groups.remove(&group);
                }
            }
        }
        Some(waiter)
    }

    pub fn get(&self, rank: Rank) -> Option<&Waiter<R, I>> {
        self.waiters.get(&rank).map(|waiter| &**waiter)
    }

    pub fn reply_mut(&mut self, rank: Rank) -> Option<&mut R> {
        self.waiters.get_mut(&rank).map(|waiter| &mut waiter.reply)
    }

    pub fn rank_of(&self, id: WaiterId) -> Option<Rank> {
        self.marked(Mark::Waiter(id)).next()
    }

    /// All waiters in the order of service.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &Waiter<R, I>)> {
        self.waiters.iter().map(|(rank, waiter)| (*rank, &**waiter))
    }

    /// How many waiters come before `rank`.
    pub fn before(&self, rank: Rank) -> usize {
        self.waiters.range(..rank).count()
    }

    /// The waiters whose request has this lease id.
    pub fn waiters_for_lease(&self, lease_id: &LeaseId) -> impl Iterator<Item = Rank> {
        self.marked(Mark::Lease(lease_id.clone()))
    }

    /// The waiters of this owner that may take the lock again while it holds it.
    pub fn waiters_of_owner(&self, owner: &Owner) -> impl Iterator<Item = Rank> {
        self.marked(Mark::Owner(owner.clone()))
    }

    fn marked(&self, mark: Mark) -> impl Iterator<Item = Rank> {
        let marked = self.index.range((mark.clone(), FIRST)..);
        marked.take_while(move |(other, _)| *other == mark).map(|(_, rank)| *rank)
    }

    /// The request for which the node publishes its turn: that of the first live waiter with a deadline, or of the first
    /// reserved position, whichever comes first. `skip` leaves out waiters, and a reserved position is left out if its
    /// lease id is known to `state`.
    pub fn first_waiting(&self, skip: impl Fn(Rank) -> bool, state: &LockState) -> Option<&Acquire> {
        first(self.iter(), self.reserved(), skip, state)
    }

    /// The waiters whose deadline has passed, in the order of their deadlines.
    pub fn overdue(&self, now: I) -> Vec<Rank> {
        self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).map(|(_, rank)| *rank).collect()
    }

    /// All waiters that have a deadline, in the order of service.
    pub fn all_waiting(&self) -> Vec<Rank> {
        self.iter().filter(|(_, waiter)| waiter.deadline.is_some()).map(|(rank, _)| rank).collect()
    }

    /// Removes the waiters whose client has gone. Returns how many.
    pub fn remove_closed(&mut self) -> usize {
        let closed: Vec<Rank> =
            self.iter().filter(|(_, waiter)| waiter.reply.is_closed()).map(|(rank, _)| rank).collect();
        for rank in &closed {
            self.remove(*rank);
        }
        closed.len()
    }

    /// When the next wait or the next reservation ends.
    pub fn next_deadline(&self) -> Option<I> {
        let reserved = self.reserved.values().map(|reserved| reserved.until);
        self.deadlines.first().map(|(deadline, _)| *deadline).into_iter().chain(reserved).min()
    }
}

/// Groups.
impl<R: ReplyHandle, I: Copy + Ord> WaitQueue<R, I> {
    /// Whether a waiter or a reserved position has a group with a name.
    pub fn is_grouped(&self) -> bool {
        !self.groups.is_empty() || self.reserved_by_group.last().is_some_and(|(group, _)| group.is_some())
    }

    fn add_to_groups(&mut self, rank: Rank) {
        // With the first name, the waiters before it are added too.
        let ranks: Vec<Rank> = if self.groups.is_empty() { self.waiters.keys().copied().collect() } else { vec![rank] };
        for rank in ranks {
            let Some(waiter) = self.waiters.get(&rank) else { continue };
            let group = self.groups.entry(waiter.request.lease.demand.group().cloned()).or_default();
            group.ranks.insert(rank);
            if waiter.deadline.is_some() {
                group.arrivals.insert((waiter.request.position.arrival, rank));
            }
        }
    }

    /// The groups of waiters and reserved positions.
    pub(super) fn groups(&self) -> BTreeSet<Option<&Group>> {
        let reserved = self.reserved_by_group.iter().map(|(group, _)| group.as_ref());
        let plain = (self.groups.is_empty() && !self.waiters.is_empty()).then_some(None);
        self.groups.keys().map(Option::as_ref).chain(plain).chain(reserved).collect()
    }

    /// The waiters of a group behind `after`, in the order of the group.
    pub(super) fn of_group(
        &self,
        group: Option<&Group>,
        after: Option<Rank>,
    ) -> impl Iterator<Item = (Rank, &Waiter<R, I>)> {
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let ranks = self.groups.get(&group.cloned()).into_iter().flat_map(move |group| group.ranks.range(behind));
        let of_group = ranks.filter_map(|rank| Some((*rank, self.get(*rank)?)));
        let are_all = self.groups.is_empty() && group.is_none();
        let all = are_all.then(|| self.waiters.range(behind)).into_iter().flatten();
        of_group.chain(all.map(|(rank, waiter)| (*rank, &**waiter)))
    }

    /// How many waiters a group has.
    pub(super) fn len_of_group(&self, group: Option<&Group>) -> usize {
        if self.groups.is_empty() && group.is_none() {
            return self.len();
        }
        self.groups.get(&group.cloned()).map_or(0, |group| group.ranks.len())
    }

    /// The waiters of a group that have a deadline, by their arrival.
    pub(super) fn arrivals_of_group(&self, group: Option<&Group>) -> Box<dyn Iterator<Item = (Timestamp, Rank)> + '_> {
        if !self.groups.is_empty() || group.is_some() {
            let indexed = self.groups.get(&group.cloned()).into_iter().flat_map(|group| &group.arrivals);
            return Box::new(indexed.copied());
        }
        // Without an index, all waiters are of one group, and compared with others only while other nodes have groups.
        let waiting = self.iter().filter(|(_, waiter)| waiter.deadline.is_some());
        let mut all: Vec<_> = waiting.map(|(rank, waiter)| (waiter.request.position.arrival, rank)).collect();
        all.sort_unstable();
        Box::new(all.into_iter())
    }

    /// When the earliest of the waiters and reserved positions of a group arrived. `skip` leaves out waiters.
    pub(super) fn earliest_of_group(&self, group: Option<&Group>, skip: impl Fn(Rank) -> bool) -> Option<Timestamp> {
        let is_waiting = |rank: Rank| !skip(rank) && self.get(rank).is_some_and(|waiter| !waiter.reply.is_closed());
        let waiting = self.arrivals_of_group(group).find(|(_, rank)| is_waiting(*rank));
        waiting.map(|(arrival, _)| arrival).into_iter().chain(self.earliest_reserved(group)).min()
    }

    pub(super) fn earliest_reserved(&self, group: Option<&Group>) -> Option<Timestamp> {
        self.reserved_of_group(group).map(|(_, request)| request.position.arrival).min()
    }

    /// When a group was last granted a permit, as far as this node remembers. A time that is yet to come was noted before the store's
    /// clock went back: it does not count.
    pub(super) fn served(&self, group: Option<&Group>, now: Timestamp) -> Timestamp {
        let served = self.served.get(&group.cloned()).filter(|served| **served <= now.plus_ms(2 * CLOCK_BOUND_MS));
        served.copied().unwrap_or_default()
    }

    /// Remembers when the groups were last granted a permit, by a state that the store has. To be called after each evaluation.
    pub fn note_served(&mut self, state: &LockState) {
        if !self.is_grouped() && !state.has_grouped_turns() {
            self.served.clear();
            return;
        }
        let shares = state.shares();
        let latest = |group: Option<&Group>| {
            let known = self.served.get(&group.cloned()).copied().unwrap_or_default();
            let served = known.max(shares.of(group).served);
            (served > Timestamp::default()).then(|| (group.cloned(), served))
        };
        self.served = self.groups().into_iter().filter_map(latest).collect();
    }

    /// As [`WaitQueue::first_waiting`], of one group.
    pub(super) fn first_of_group(
        &self,
        group: Option<&Group>,
        skip: impl Fn(Rank) -> bool,
        state: &LockState,
    ) -> Option<&Acquire> {
        first(self.of_group(group, None), self.reserved_of_group(group), skip, state)
    }
}

/// Reserved positions.
impl<R: ReplyHandle, I: Copy + Ord> WaitQueue<R, I> {
    /// Reserves the position of a waiter that leaves the queue for a moment.
    pub fn reserve(&mut self, rank: Rank, until: I) {
        let Some(waiter) = self.waiters.get(&rank) else { return };
        let reserved = Reserved { id: waiter.id, request: waiter.request.clone(), until };
        self.reserved_by_group.insert((reserved.request.lease.demand.group().cloned(), rank));
        self.reserved.insert(rank, reserved);
    }

    pub fn reserved_len(&self) -> usize {
        self.reserved.len()
    }

    /// Reserved positions in queue order.
    pub fn reserved(&self) -> impl Iterator<Item = (Rank, &Acquire)> {
        self.reserved.iter().map(|(rank, reserved)| (*rank, &reserved.request))
    }

    /// The reserved positions of a group, in queue order.
    pub(super) fn reserved_of_group(&self, group: Option<&Group>) -> impl Iterator<Item = (Rank, &Acquire)> {
        let group = group.cloned();
        let of_group =
            self.reserved_by_group.range((group.clone(), FIRST)..).take_while(move |(other, _)| *other == group);
        of_group.filter_map(|(_, rank)| Some((*rank, &self.reserved.get(rank)?.request)))
    }

    /// Drops the reservation of this waiter. Returns whether there was one.
    pub fn drop_reserved(&mut self, id: WaiterId) -> bool {
        self.drop_reserved_if(|reserved| reserved.id == id)
    }

    /// Drops the reservations that have ended. Returns whether there were any.
    pub fn drop_ended_reservations(&mut self, now: I) -> bool {
        self.drop_reserved_if(|reserved| reserved.until <= now)
    }

    /// Drops the reservations of waiters that have been granted their lease at another node.
    pub fn drop_granted_reservations(&mut self, state: &LockState) {
        self.drop_reserved_if(|reserved| state.knows(&reserved.request.lease.lease_id));
    }

    /// Drops all reservations. Returns whether there were any.
    pub fn drop_all_reservations(&mut self) -> bool {
        self.drop_reserved_if(|_| true)
    }

    fn drop_reserved_if(&mut self, is_over: impl Fn(&Reserved<I>) -> bool) -> bool {
        let before = self.reserved.len();
        self.reserved.retain(|_, reserved| !is_over(reserved));
        let has_dropped = self.reserved.len() != before;
        if has_dropped {
            self.reserved_by_group.retain(|(_, rank)| self.reserved.contains_key(rank));
        }
        has_dropped
    }
}

/// See [`WaitQueue::first_waiting`].
fn first<'q, R: ReplyHandle + 'q, I: 'q>(
    mut waiters: impl Iterator<Item = (Rank, &'q Waiter<R, I>)>,
    mut reserved: impl Iterator<Item = (Rank, &'q Acquire)>,
    skip: impl Fn(Rank) -> bool,
    state: &LockState,
) -> Option<&'q Acquire> {
    let is_waiting =
        |rank: Rank, waiter: &Waiter<R, I>| waiter.deadline.is_some() && !waiter.reply.is_closed() && !skip(rank);
    let waiting = waiters.find(|(rank, waiter)| is_waiting(*rank, waiter));
    let waiting = waiting.map(|(rank, waiter)| (rank, &waiter.request));
    let reserved = reserved.find(|(_, request)| !state.knows(&request.lease.lease_id));
    waiting.into_iter().chain(reserved).min_by_key(|(rank, _)| *rank).map(|(_, request)| request)
}

fn marks<R, I>(Waiter { id, request, .. }: &Waiter<R, I>) -> impl Iterator<Item = Mark> {
    let lease = &request.lease;
    // Permits never nest: the same owner takes more of them.
    let may_nest = lease.reentrant && lease.demand.mode.permits() == 0;
    let owner = lease.owner.clone().filter(|_| may_nest).map(Mark::Owner);
    [Mark::Waiter(*id), Mark::Lease(lease.lease_id.clone())].into_iter().chain(owner)
}
