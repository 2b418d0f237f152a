use std::future::Future;
use std::time::{Duration, Instant};

const POLL_EVERY: Duration = Duration::from_millis(10);

/// Polls `condition` until it is true or `timeout` has passed; says which it was.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// assert!(latchgate_testkit::eventually(Duration::from_secs(1), || async { true }).await);
/// # });
/// ```
#[must_use = "a condition that never came true must fail the test"]
pub async fn eventually<C, F>(timeout: Duration, mut condition: C) -> bool
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    let deadline = Instant::now() + timeout;
    loop {
        // A condition that hangs, say on a paused server, must not outlive the deadline.
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
    async fn a_condition_that_turns_true_is_seen() {
        let mut calls = 0;
        assert!(
            eventually(Duration::from_secs(20), || {
                calls += 1;
                std::future::ready(calls == 3)
            })
            .await
        );
        assert_eq!(calls, 3);
    }

    #[tokio::test]
    async fn a_condition_that_hangs_is_given_up() {
        assert!(!eventually(Duration::from_millis(30), std::future::pending).await);
    }
}
