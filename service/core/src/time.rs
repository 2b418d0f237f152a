//! Time as an argument: milliseconds of the store's clock.

use serde::{Deserialize, Serialize};

/// How far a node's estimate of the store's clock may be off, in ms. A commit that carries an estimate further off
/// than this is refused by the store, and a lease is only ended this long after its expiry, so never early.
pub const CLOCK_BOUND_MS: u64 = 100;

/// A point in time by the store's clock, in ms since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// This point `ms` later; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How many ms this point lies after `earlier`; 0 when it does not.
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How many ms lie between the two points, whichever comes first.
    pub const fn ms_apart(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }
}
