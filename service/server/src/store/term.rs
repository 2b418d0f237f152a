//! Terms: what a store says of itself, besides the states, that a commit must agree with.

use latchgate_core::Timestamp;

/// A time in which one server is written to, under one rule about new grants. Another begins when the store finds itself
/// on another server, and when a hold-off is set or ended by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    pub id: TermId,
    /// Until then nothing new may be granted: leases that were acknowledged may be missing. The epoch: no hold-off.
    pub hold_off_until: Timestamp,
}

/// At random, so that two servers that were one never number their terms alike. A store that knows no terms has only the
/// default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TermId(u64);

impl TermId {
    pub(crate) fn fresh() -> Self {
        Self(super::random_number())
    }

    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

impl Term {
    /// The end of the hold-off, if it is still to come.
    pub fn hold_off(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.hold_off_until).filter(|until| *until > now)
    }
}
