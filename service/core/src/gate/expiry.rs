//! When leases have passed and when records may go. Never early: `now` is an estimate of the store's clock.

use super::record::RETENTION_MS_DEFAULT;
use super::{Ending, OnExpiry, OperationRecord, Phase, Stamp, Started};
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// How long a vacant record is kept to answer repeated and late posts, in ms.
const VACANT_MS: u64 = 10 * 60 * 1000;
/// How long a started record outlives its lease, in ms. Until then a late post gets a true answer.
const STARTED_KEEP_MS: u64 = RETENTION_MS_DEFAULT;
/// To what the end of a started record is rounded up, in ms: a heartbeat then rarely moves the column that stores index.
const STARTED_GRAIN_MS: u64 = 60 * 60 * 1000;

impl Started {
    /// Whether other attempts may act on the lease's end: it has certainly passed by the store's clock.
    pub fn has_passed(&self, now: Timestamp) -> bool {
        now >= self.passes_at()
    }

    /// Whether the owner still holds the lease.
    pub fn is_held(&self, now: Timestamp) -> bool {
        now < self.lease_until
    }

    /// How long until other attempts may act on the lease's end, in ms.
    pub fn passes_in_ms(&self, now: Timestamp) -> u64 {
        self.passes_at().ms_since(now)
    }

    fn passes_at(&self) -> Timestamp {
        self.lease_until.plus_ms(CLOCK_BOUND_MS)
    }
}

impl OperationRecord {
    /// From when the store may drop the record. None: never by itself, because dropping it would let an operation run
    /// again that is done for good, or whose outcome is unknown and whose contents still name it.
    pub fn goes_at(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Started(started) if self.on_expiry == OnExpiry::Block => {
                self.ends_at.map(|at| at.max(started.lease_until))
            }
            Phase::Started(started) => {
                let end_ms = started.lease_until.plus_ms(STARTED_KEEP_MS).as_ms();
                Some(Timestamp::from_ms(end_ms.div_ceil(STARTED_GRAIN_MS).saturating_mul(STARTED_GRAIN_MS)))
            }
            Phase::Succeeded(succeeded) => succeeded.keep_until,
            Phase::Unknown { .. } => self.ends_at,
            Phase::Vacant { until } => Some(*until),
        }
    }

    /// Whether the record counts as absent, though the store may not have dropped it yet.
    pub fn is_gone(&self, now: Timestamp) -> bool {
        self.goes_at().is_some_and(|at| now >= at.plus_ms(CLOCK_BOUND_MS))
    }

    /// Leaves the record vacant. A suspected double run stays visible as long as a result would; of any other, nothing is shown, so
    /// its description goes.
    pub(super) fn vacate(&mut self, now: Timestamp) {
        self.description.take_if(|_| self.double_runs == 0);
        let keep_ms = if self.is_suspect() { RETENTION_MS_DEFAULT } else { VACANT_MS };
        self.phase = Phase::Vacant { until: now.plus_ms(keep_ms) };
        self.awaited_until = None;
    }

    /// A superseded attempt reported a success: counted once, and kept in sight as long as a result would be.
    pub(super) fn count_double_run(&mut self, stamp: Stamp, now: Timestamp) {
        self.double_runs = self.double_runs.saturating_add(1);
        for earlier in self.earlier.iter_mut().filter(|earlier| earlier.stamp == stamp) {
            earlier.ending = Ending::SupersededSuccess;
        }
        if let Phase::Vacant { until } = &mut self.phase {
            *until = (*until).max(now.plus_ms(RETENTION_MS_DEFAULT));
        }
    }
}
