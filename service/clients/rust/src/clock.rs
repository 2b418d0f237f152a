//! A clock that cannot be set, and that goes on while the machine is suspended where the system has such a clock.

use std::time::Duration;

/// Longest sleep at a time: tokio's timers stand still while the machine is suspended, and this clock does not.
const SLICE: Duration = Duration::from_millis(250);

/// A point in time of this machine, since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    #[must_use]
    pub fn now() -> Self {
        Self(since_start())
    }

    #[must_use]
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    #[must_use]
    pub fn minus(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }

    /// Time from an earlier moment to this one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Time from now; zero if this moment has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_sub(since_start())
    }

    #[must_use]
    pub fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    #[must_use]
    pub fn elapsed(self) -> Duration {
        since_start().saturating_sub(self.0)
    }

    /// The same moment for another process of this machine.
    #[must_use]
    pub fn as_millis(self) -> u128 {
        self.0.as_millis()
    }

    #[must_use]
    pub fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }
}

/// Sleeps until `moment`. After a suspension of the machine it returns within a quarter of a second.
pub async fn sleep_until(moment: Moment) {
    while !moment.has_passed() {
        tokio::time::sleep(moment.left().min(SLICE)).await;
    }
}

#[cfg(unix)]
fn since_start() -> Duration {
    use nix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    clock_gettime(CLOCK).expect("the system has the clock").into()
}

#[cfg(not(unix))]
fn since_start() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}
