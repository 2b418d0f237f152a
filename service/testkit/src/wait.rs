//! Waiting for a condition.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

/// Long enough for a condition that must come true, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Polls `condition` until it is true.
///
/// # Panics
/// When it is not true within a minute; with `what` was expected.
pub async fn until<C, F>(what: impl Display, condition: C)
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    assert!(eventually(PATIENCE, condition).await, "not within {PATIENCE:?}: {what}");
}

/// Polls `condition` until it is true or `timeout` has passed; returns whether it was true.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// assert!(latchgate_testkit::eventually(Duration::from_secs(1), || async { true }).await);
/// # });
/// ```
#[must_use = "a condition that has not become true must fail the test"]
pub async fn eventually<C, F>(timeout: Duration, mut condition: C) -> bool
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    let deadline = Instant::now() + timeout;
    loop {
        // A condition that hangs, for example on a paused server, must not outlive the deadline.
        let left = deadline.saturating_duration_since(Instant::now());
        if let Ok(true) = tokio::time::timeout(left, condition()).await {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn eventually_gives_up_a_condition_that_hangs() {
        assert!(!eventually(Duration::from_millis(30), std::future::pending).await);
    }
}
