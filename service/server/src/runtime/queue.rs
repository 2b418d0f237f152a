//! The waiters of one key at this node, in the order in which they are served.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use latchgate_core::Timestamp;
use latchgate_core::lock::{Acquire, LeaseId, LockState, Owner};

use super::call::{AcquireReply, WaiterId};

/// Queue order: that of the places; the last part tells apart two waiters with one place, as a repeated ticket makes them.
pub(super) type Rank = (Reverse<u8>, Timestamp, u64, u64);

/// Somebody who has asked for the lock and has not been answered.
pub(super) struct Waiter {
    pub id: WaiterId,
    pub ask: Acquire,
    /// `None`: does not wait, only asks.
    pub deadline: Option<Instant>,
    pub asked: Instant,
    /// It has come back with a ticket, and may do so again.
    pub is_returning: bool,
    /// It only wants to be called when its turn comes.
    pub is_scout: bool,
    pub reply: AcquireReply,
}

/// A place whose waiter is away for a moment: nobody behind it is served meanwhile.
struct Kept {
    id: WaiterId,
    ask: Acquire,
    until: Instant,
}

impl Waiter {
    /// Nobody is there any more to be answered.
    pub(super) fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.asked)
    }
}

#[derive(Default)]
pub(super) struct WaitQueue {
    /// Boxed: a node of the map has room for eleven of them, and most queues have one.
    waiters: BTreeMap<Rank, Box<Waiter>>,
    ranks: HashMap<WaiterId, Rank>,
    /// More than one, where a client repeats its acquire while the first still waits.
    leases: HashMap<LeaseId, BTreeSet<Rank>>,
    /// Who asks under a name of its own and may hold the lock already.
    owners: HashMap<Owner, BTreeSet<Rank>>,
    deadlines: BTreeSet<(Instant, Rank)>,
    kept: BTreeMap<Rank, Kept>,
    arrivals: u64,
    latest: Timestamp,
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.kept.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many wait, those left out that only ask.
    pub(super) fn waiting(&self) -> usize {
        self.deadlines.len()
    }

    /// Stands behind all of its priority who came before, even if the clock has gone back since; or where it stood
    /// before, if it has come back.
    pub(super) fn insert(&mut self, mut waiter: Waiter) -> Rank {
        self.arrivals += 1;
        if waiter.is_returning {
            let is_its = |ask: &Acquire| ask.place == waiter.ask.place && ask.lease_id == waiter.ask.lease_id;
            self.kept.retain(|_, kept| !is_its(&kept.ask));
        }
        let place = &mut waiter.ask.place;
        if !waiter.is_returning {
            self.latest = self.latest.max(place.arrival);
            place.arrival = self.latest;
        }
        let (priority, arrival, serial) = place.rank();
        let rank = (priority, arrival, serial, self.arrivals);
        if let Some(deadline) = waiter.deadline {
            self.deadlines.insert((deadline, rank));
        }
        self.ranks.insert(waiter.id, rank);
        self.leases.entry(waiter.ask.lease_id.clone()).or_default().insert(rank);
        if let Some(owner) = waiter.ask.owner.as_ref().filter(|_| may_nest(&waiter.ask)) {
            self.owners.entry(owner.clone()).or_default().insert(rank);
        }
        self.waiters.insert(rank, Box::new(waiter));
        rank
    }

    pub(super) fn remove(&mut self, rank: Rank) -> Option<Waiter> {
        let waiter = *self.waiters.remove(&rank)?;
        self.ranks.remove(&waiter.id);
        forget(&mut self.leases, &waiter.ask.lease_id, rank);
        if let Some(owner) = &waiter.ask.owner {
            forget(&mut self.owners, owner, rank);
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, rank));
        }
        Some(waiter)
    }

    /// Returns whether anybody was there, and whether it was a waiter and not a kept place.
    pub(super) fn remove_by_id(&mut self, id: WaiterId) -> Option<bool> {
        if let Some(rank) = self.ranks.get(&id) {
            return self.remove(*rank).map(|_| true);
        }
        let before = self.kept.len();
        self.kept.retain(|_, kept| kept.id != id);
        (self.kept.len() != before).then_some(false)
    }

    /// Keeps the place of a waiter that has been taken out.
    pub(super) fn keep(&mut self, rank: Rank, waiter: &Waiter, until: Instant) {
        self.kept.insert(rank, Kept { id: waiter.id, ask: waiter.ask.clone(), until });
    }

    pub(super) fn kept_len(&self) -> usize {
        self.kept.len()
    }

    /// Kept places, in queue order.
    pub(super) fn kept(&self) -> impl Iterator<Item = (Rank, &Acquire)> {
        self.kept.iter().map(|(rank, kept)| (*rank, &kept.ask))
    }

    /// Gives up the kept places that nobody came back to. Returns whether there were any.
    pub(super) fn give_up_kept(&mut self, now: Instant) -> bool {
        let before = self.kept.len();
        self.kept.retain(|_, kept| kept.until > now);
        self.kept.len() != before
    }

    /// Gives up the kept places whose waiter has been served elsewhere.
    pub(super) fn give_up_served(&mut self, state: &LockState) {
        self.kept.retain(|_, kept| !state.knows(&kept.ask.lease_id));
    }

    /// Gives up all kept places. Returns whether there were any.
    pub(super) fn give_up_all_kept(&mut self) -> bool {
        !std::mem::take(&mut self.kept).is_empty()
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&Waiter> {
        self.waiters.get(&rank).map(|waiter| &**waiter)
    }

    /// Those who ask for this lease.
    pub(super) fn asking_for(&self, lease_id: &LeaseId) -> impl Iterator<Item = Rank> {
        self.leases.get(lease_id).into_iter().flatten().copied()
    }

    /// Those who ask as this owner.
    pub(super) fn asking_as(&self, owner: &Owner) -> impl Iterator<Item = Rank> {
        self.owners.get(owner).into_iter().flatten().copied()
    }

    /// In the order of service.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, &Waiter)> {
        self.waiters.iter().map(|(rank, waiter)| (*rank, &**waiter))
    }

    /// The first that waits, from the front, or whose place is kept; `skip` leaves out waiters, `is_over` kept places.
    pub(super) fn best_waiting(
        &self,
        skip: impl Fn(Rank) -> bool,
        is_over: impl Fn(&Acquire) -> bool,
    ) -> Option<&Acquire> {
        let mut waiting =
            self.iter().filter(|(rank, waiter)| waiter.deadline.is_some() && !waiter.is_gone() && !skip(*rank));
        let waiting = waiting.next().map(|(rank, waiter)| (rank, &waiter.ask));
        let kept = self.kept().find(|(_, ask)| !is_over(ask));
        waiting.into_iter().chain(kept).min_by_key(|(rank, _)| *rank).map(|(_, ask)| ask)
    }

    /// When somebody's patience, or the keeping of a place, next ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let kept = self.kept.values().map(|kept| kept.until);
        self.deadlines.first().map(|(deadline, _)| *deadline).into_iter().chain(kept).min()
    }

    /// Takes out whoever's time is up, with how many stood before each.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<(usize, Rank, Waiter)> {
        let mut overdue = Vec::new();
        while let Some(&(deadline, rank)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            let before = self.before(rank);
            overdue.extend(self.remove(rank).map(|waiter| (before, rank, waiter)));
        }
        overdue
    }

    /// Takes out everybody who waits.
    pub(super) fn take_waiting(&mut self) -> Vec<(usize, Rank, Waiter)> {
        let places = self.waiters.iter().enumerate().filter(|(_, (_, waiter))| waiter.deadline.is_some());
        let places: Vec<(usize, Rank)> = places.map(|(before, (rank, _))| (before, *rank)).collect();
        places.into_iter().filter_map(|(before, rank)| Some((before, rank, self.remove(rank)?))).collect()
    }

    /// Drops those whose client has gone unnoticed. Returns how many.
    pub(super) fn drop_gone(&mut self) -> usize {
        let gone: Vec<Rank> = self.iter().filter(|(_, waiter)| waiter.is_gone()).map(|(rank, _)| rank).collect();
        for rank in &gone {
            self.remove(*rank);
        }
        gone.len()
    }

    /// How many stand before `rank`.
    pub(super) fn before(&self, rank: Rank) -> usize {
        self.waiters.range(..rank).count()
    }
}

/// Permits are counted anew, whoever has them.
fn may_nest(ask: &Acquire) -> bool {
    ask.reentrant && ask.mode.permits() == 0
}

fn forget<K: Hash + Eq>(index: &mut HashMap<K, BTreeSet<Rank>>, key: &K, rank: Rank) {
    let Some(ranks) = index.get_mut(key) else { return };
    ranks.remove(&rank);
    if ranks.is_empty() {
        index.remove(key);
    }
}
