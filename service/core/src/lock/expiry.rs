//! The changes of a state that time alone causes.

use super::event::{Event, EventKind};
use super::lease::Lost;
use super::state::LockState;
use crate::time::Timestamp;

impl LockState {
    /// Ends the leases that have expired, frees permits and opens the key when their time has come, and removes the turns that
    /// have lapsed. Leases end `late_ms` later than they say: see [`Terms::late_ms`](super::Terms). Returns whether the state changed, and the events.
    ///
    /// Every step begins with it, so a stored state may be out of date without harm.
    pub fn settle(&mut self, now: Timestamp, late_ms: u64) -> (bool, Vec<Event>) {
        let then = Timestamp::from_ms(now.as_ms().saturating_sub(late_ms));
        let mut changed = self.lapse_turns(now);
        let mut events = Vec::new();
        for lease in &mut self.holders {
            if let Some(at) = lease.warns_at().filter(|at| *at <= now) {
                lease.warned = true;
                events.push(Event::of_lease(EventKind::HeldTooLong, lease, at));
            }
        }
        while let Some(index) = self.holders.iter().position(|lease| lease.has_expired(then)) {
            let lease = &self.holders[index];
            let (at, why) = (lease.expires_at, lease.expiry_reason());
            let delay_until = lease.delay_until().map(|until| until.plus_ms(late_ms));
            self.start_lock_delay(delay_until);
            events.push(self.end(index, why, at, now));
        }
        changed |= self.free_kept(now);
        events.extend(self.end_closing(now));
        changed |= !events.is_empty();
        (changed, events)
    }

    /// Ends a lease because its holder is answered that its time is over. Nodes with a slower clock do not end it yet, so until
    /// they do, the lock is granted to no client.
    pub(super) fn end_expired(&mut self, index: usize, now: Timestamp) -> (Lost, Event) {
        let lease = &self.holders[index];
        let (at, why, until) = (lease.expires_at, lease.expiry_reason(), lease.live_until().plus_ms(lease.delay_ms));
        self.start_lock_delay(Some(until));
        (Lost { why: Some(why), at: Some(at) }, self.end(index, why, at, now))
    }
}
