//! What time alone does to a state.

use super::lease::EndReason;
use super::state::LockState;
use crate::time::Timestamp;

impl LockState {
    /// Ends the leases and lapses the turns whose time has come. Returns whether there were any.
    ///
    /// Every step begins with it, so a stored state may be behind the time without anyone being wronged.
    pub fn settle(&mut self, now: Timestamp) -> bool {
        let mut changed = self.lapse_turns(now);
        while let Some(index) = self.holders.iter().position(|lease| lease.has_expired(now)) {
            let at = self.holders[index].expires_at;
            self.end(index, EndReason::Expired, at);
            changed = true;
        }
        changed
    }
}
