//! The clock of the store in a file.

use std::time::{SystemTime, UNIX_EPOCH};

use latchgate_core::Timestamp;
use tokio::time::Instant;

use crate::format::ms;

/// The wall clock at the start plus the monotonic time since then, so that setting the machine's clock does not change the
/// length of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessClock {
    started_at: Timestamp,
    started: Instant,
}

/// The machine's time, where no store has answered yet.
pub fn machine_time() -> Timestamp {
    ProcessClock::start().now()
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
