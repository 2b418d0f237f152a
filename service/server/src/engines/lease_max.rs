//! The longest lease that the cluster has needed so far. The engine record has it, because a hold-off lasts as long: it must be there,
//! and have reached replicas and other nodes, before the first lease of this length is granted.

use tokio::time::{Duration, Instant};

/// How long after a node has first read a raised number it counts on that. By then replicas have it, and every node has read it, or could
/// not reach the engine, or was stopped meanwhile and knows it: see [`super::decide::Known::has_slept`].
pub(super) const UNREAD_MAX: Duration = Duration::from_secs(3);
/// A number up to this is in the first record of a cluster, in ms.
pub const LEASE_MS_SHORT: u64 = 60_000;

/// The number as this node has read it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseMax {
    pub ms: u64,
    /// What this node counts on until `counts_from`, in ms.
    before_ms: u64,
    pub counts_from: Option<Instant>,
}

impl LeaseMax {
    pub(super) fn allowed_ms(self) -> u64 {
        if self.counts_from.is_some_and(|from| Instant::now() < from) { self.before_ms } else { self.ms }
    }

    pub(super) fn learn(&mut self, ms: u64, delay: Duration) {
        if ms == self.ms {
            return;
        }
        // A node that starts finds a number that may have been raised just before.
        let known_ms = if self.ms == 0 { LEASE_MS_SHORT } else { self.allowed_ms() };
        let is_raised = ms > known_ms && !delay.is_zero();
        *self = Self { ms, before_ms: known_ms.min(ms), counts_from: is_raised.then(|| Instant::now() + delay) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_raised_number_counts_for_each_node_a_delay_after_it_read_it() {
        let mut known = LeaseMax::default();
        known.learn(60_000, UNREAD_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
        known.learn(600_000, UNREAD_MAX);
        tokio::time::advance(Duration::from_millis(2_999)).await;
        // Reading it again changes nothing.
        known.learn(600_000, UNREAD_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(known.allowed_ms(), 600_000);
        known.learn(60_000, UNREAD_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_starts_does_not_count_at_once_on_a_number_that_may_have_just_been_raised() {
        let mut known = LeaseMax::default();
        known.learn(600_000, UNREAD_MAX);
        assert_eq!(known.allowed_ms(), 60_000);
        tokio::time::advance(UNREAD_MAX).await;
        assert_eq!(known.allowed_ms(), 600_000);
    }
}
