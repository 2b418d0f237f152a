//! The clock of the stores that live in this process.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use latchgate_core::Timestamp;

/// The wall clock as it was at the start, carried on by the monotonic clock: setting the machine's time does not
/// shorten or lengthen a lease.
#[derive(Debug)]
pub(super) struct ProcessClock {
    started_at: Timestamp,
    started: Instant,
}

impl ProcessClock {
    #[allow(clippy::disallowed_methods, reason = "an embedded store's clock is this machine's")]
    pub(super) fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at: Timestamp::from_ms(ms(since_epoch)), started: Instant::now() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.started_at.plus_ms(ms(self.started.elapsed()))
    }
}

fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
