//! The waiters of one key at this node, in the order in which they are served.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use latchgate_core::Timestamp;
use latchgate_core::lock::{Acquire, LeaseId};

use super::call::{AcquireReply, WaiterId};

/// Queue order: higher priority, then earlier arrival; the last part tells apart those that came in the same ms.
pub(super) type Rank = (Reverse<u8>, Timestamp, u64);

/// Somebody who has asked for the lock and has not been answered.
pub(super) struct Waiter {
    pub id: WaiterId,
    pub ask: Acquire,
    /// `None`: does not wait, only asks.
    pub deadline: Option<Instant>,
    pub asked: Instant,
    pub reply: AcquireReply,
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
    deadlines: BTreeSet<(Instant, Rank)>,
    arrivals: u64,
    latest: Timestamp,
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// How many wait, those left out that only ask.
    pub(super) fn waiting(&self) -> usize {
        self.deadlines.len()
    }

    /// Stands behind all of its priority who came before, even if the clock has gone back since.
    pub(super) fn insert(&mut self, mut waiter: Waiter) -> Rank {
        self.arrivals += 1;
        self.latest = self.latest.max(waiter.ask.place.arrival);
        waiter.ask.place.arrival = self.latest;
        waiter.ask.place.serial = self.arrivals;
        let rank = waiter.ask.place.rank();
        if let Some(deadline) = waiter.deadline {
            self.deadlines.insert((deadline, rank));
        }
        self.ranks.insert(waiter.id, rank);
        self.leases.entry(waiter.ask.lease_id.clone()).or_default().insert(rank);
        self.waiters.insert(rank, Box::new(waiter));
        rank
    }

    pub(super) fn remove(&mut self, rank: Rank) -> Option<Waiter> {
        let waiter = *self.waiters.remove(&rank)?;
        self.ranks.remove(&waiter.id);
        if let Some(ranks) = self.leases.get_mut(&waiter.ask.lease_id) {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.leases.remove(&waiter.ask.lease_id);
            }
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, rank));
        }
        Some(waiter)
    }

    pub(super) fn remove_by_id(&mut self, id: WaiterId) -> Option<Waiter> {
        let rank = *self.ranks.get(&id)?;
        self.remove(rank)
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&Waiter> {
        self.waiters.get(&rank).map(|waiter| &**waiter)
    }

    /// Those who ask for this lease.
    pub(super) fn asking_for(&self, lease_id: &LeaseId) -> impl Iterator<Item = Rank> {
        self.leases.get(lease_id).into_iter().flatten().copied()
    }

    /// In the order of service.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, &Waiter)> {
        self.waiters.iter().map(|(rank, waiter)| (*rank, &**waiter))
    }

    /// The first that waits, from the front, leaving out those that `skip` names.
    pub(super) fn best_waiting(&self, skip: impl Fn(Rank) -> bool) -> Option<&Acquire> {
        let mut waiting =
            self.iter().filter(|(rank, waiter)| waiter.deadline.is_some() && !waiter.is_gone() && !skip(*rank));
        waiting.next().map(|(_, waiter)| &waiter.ask)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
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
        let ranks: Vec<Rank> = self.deadlines.iter().map(|(_, rank)| *rank).collect();
        let place = |rank| (self.before(rank), rank);
        let places: Vec<(usize, Rank)> = ranks.into_iter().map(place).collect();
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
