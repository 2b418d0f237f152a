//! Where states live.

mod clock;
mod connections;
pub mod gate;

use latchgate_core::Timestamp;

/// Which commit wrote a state. Versions of a key never repeat, even when its row is collected and made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// The store broke. Contention is not an error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// A commit may or may not have happened.
    #[error("the outcome of a commit is unknown: {0}")]
    OutcomeUnknown(String),
}

/// How many wake-ups may be under way to one node; when there are more, the rest count as lost.
pub(crate) const WAKE_UPS_MAX: usize = 10_000;

/// The store's clock as it answers, beside a time that a caller believes.
pub(crate) fn is_off(store_now: Timestamp, now: Timestamp) -> bool {
    store_now.ms_apart(now) > latchgate_core::CLOCK_BOUND_MS
}
