//! A store as the rules see it: one state under a version, and the clock that counts.

use latchgate_core::lock::LockState;
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub version: u64,
    pub state: LockState,
}

pub struct Store {
    pub now: Timestamp,
    pub stored: Stored,
    /// Every state that was committed, and when.
    pub committed: Vec<(Timestamp, LockState)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    Done,
    /// Another node has changed the state.
    Stale,
    /// The committer's clock is off by more than the bound.
    ClockOff,
}

impl Store {
    pub fn new() -> Self {
        let now = Timestamp::from_ms(1_700_000_000_000);
        Self { now, stored: Stored::default(), committed: Vec::new() }
    }

    pub fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    pub fn commit(&mut self, estimate: Timestamp, expected: u64, state: &LockState) -> Committed {
        if self.now.ms_apart(estimate) > CLOCK_BOUND_MS {
            return Committed::ClockOff;
        }
        if self.stored.version != expected {
            return Committed::Stale;
        }
        self.stored = Stored { version: expected + 1, state: state.clone() };
        self.committed.push((self.now, state.clone()));
        Committed::Done
    }
}
