//! A node's right to use the active engine: for a short while after it has seen that the record in force says so.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use tokio::time::Instant;

/// Whoever waits for rights to end waits longer than any node relies on one: for clocks of unequal speed.
pub(super) const GUARD: Duration = Duration::from_millis(2 * CLOCK_BOUND_MS);

/// It ends by this node's clock and by the engine's, whichever comes first. Each alone would do if clocks were never set
/// and nodes never stood still: the engine's goes on while a node is frozen, and tells so with its next answer.
#[derive(Debug, Default)]
pub(super) struct Right(Mutex<Option<Until>>);

#[derive(Clone, Copy, Debug)]
struct Until {
    here: Instant,
    there: Timestamp,
}

impl Right {
    /// The record was in force at `began`, and the engine's clock showed `shown` after that, at or before `answered`.
    pub(super) fn extend(&self, length: Duration, began: Instant, answered: Instant, shown: Timestamp) {
        let length = length.saturating_sub(GUARD);
        let there = length.saturating_sub(answered.saturating_duration_since(began));
        let there = shown.plus_ms(u64::try_from(there.as_millis()).unwrap_or(u64::MAX));
        *self.lock() = Some(Until { here: began + length, there });
    }

    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    /// How long it lasts yet by this node's clock.
    pub(super) fn left(&self) -> Duration {
        self.lock().map_or(Duration::ZERO, |until| until.here.saturating_duration_since(Instant::now()))
    }

    pub(super) fn holds(&self) -> bool {
        !self.left().is_zero()
    }

    /// Whether what the engine did when its clock showed `shown` was done by right.
    pub(super) fn covers(&self, shown: Timestamp) -> bool {
        self.holds() && self.lock().is_some_and(|until| shown < until.there)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Until>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(3);
    const SHOWN: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    #[tokio::test(start_paused = true)]
    async fn it_ends_by_either_clock_before_others_stop_waiting_for_it() {
        let right = Right::default();
        assert!(!right.holds() && !right.covers(SHOWN));
        let began = Instant::now();
        right.extend(LENGTH, began, began + Duration::from_millis(500), SHOWN);
        assert!(right.covers(SHOWN) && right.covers(SHOWN.plus_ms(2_200)));
        assert!(!right.covers(SHOWN.plus_ms(2_300)), "by the engine's clock it is over");
        tokio::time::advance(Duration::from_millis(2_700)).await;
        assert!(right.covers(SHOWN));
        tokio::time::advance(Duration::from_millis(100)).await;
        assert!(!right.covers(SHOWN), "by this node's clock it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn it_can_be_given_up() {
        let right = Right::default();
        right.extend(LENGTH, Instant::now(), Instant::now(), SHOWN);
        right.end();
        assert!(!right.holds() && !right.covers(SHOWN));
    }
}
