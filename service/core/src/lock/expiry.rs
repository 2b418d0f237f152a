//! What time alone does to a state.

use super::event::{Event, EventKind};
use super::state::LockState;
use crate::time::Timestamp;

impl LockState {
    /// Ends the leases and lapses the turns whose time has come. Returns whether there were any, and what is to be told.
    ///
    /// Every step begins with it, so a stored state may be behind the time without anyone being wronged.
    pub fn settle(&mut self, now: Timestamp) -> (bool, Vec<Event>) {
        let mut changed = self.lapse_turns(now);
        let mut events = Vec::new();
        for lease in &mut self.holders {
            if let Some(at) = lease.warns_at().filter(|at| *at <= now) {
                lease.warned = true;
                events.push(Event::of_lease(EventKind::HeldTooLong, lease, at));
            }
        }
        while let Some(index) = self.holders.iter().position(|lease| lease.has_expired(now)) {
            let lease = &self.holders[index];
            let (at, why) = (lease.expires_at, lease.runs_out_as());
            if lease.delay_ms > 0 {
                // Whoever held it may be at work still. Like the lease, the delay is over for no node too early.
                self.delay_until = self.delay_until.max(Some(lease.ends_at().plus_ms(lease.delay_ms)));
            }
            events.push(self.end(index, why, at));
        }
        changed |= !events.is_empty();
        (changed, events)
    }

    /// The end of the lock-delay, if it is still to come.
    pub fn delayed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.delay_until.filter(|until| *until > now)
    }
}
