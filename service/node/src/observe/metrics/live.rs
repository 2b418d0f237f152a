//! How many leases are live, without a list of them.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use latchgate_core::Timestamp;
use latchgate_core::lock::LockState;

/// Seconds in which a lease may expire; one that expires later counts as one that expires in the last of them.
const SECONDS: usize = 2 * 3_600;

/// For each second, how many leases expire in it. A commit takes away the leases of the state before it and adds those of the state
/// after it, whichever node granted them. So the sum over all nodes is the number of live leases, one node alone may be below zero,
/// and what a node that has ended had counted is forgotten when those leases would have expired.
#[derive(Debug)]
pub struct LiveLeases {
    expiring: Box<[AtomicI64]>,
    /// All seconds up to this one have been emptied.
    emptied: AtomicU64,
}

impl Default for LiveLeases {
    fn default() -> Self {
        Self { expiring: (0..SECONDS).map(|_| AtomicI64::new(0)).collect(), emptied: AtomicU64::new(0) }
    }
}

impl LiveLeases {
    pub fn changed(&self, before: &LockState, after: &LockState, now: Timestamp) {
        self.empty_until(now);
        self.count(before, -1, now);
        self.count(after, 1, now);
    }

    pub fn get(&self, now: Timestamp) -> i64 {
        self.empty_until(now);
        self.expiring.iter().map(|second| second.load(Ordering::Relaxed)).sum()
    }

    fn count(&self, state: &LockState, by: i64, now: Timestamp) {
        let (first, last) = (second_of(now), second_of(now) + SECONDS as u64 - 1);
        for lease in state.holders() {
            let second = second_of(lease.expires_at);
            if second > first {
                self.at(second.min(last)).fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    fn at(&self, second: u64) -> &AtomicI64 {
        &self.expiring[(second % SECONDS as u64) as usize]
    }

    fn empty_until(&self, now: Timestamp) {
        let now = second_of(now);
        let emptied = self.emptied.fetch_max(now, Ordering::Relaxed);
        for second in emptied.max(now.saturating_sub(SECONDS as u64)) + 1..=now {
            self.at(second).store(0, Ordering::Relaxed);
        }
    }
}

fn second_of(at: Timestamp) -> u64 {
    at.as_ms() / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(expires_s: &[u64]) -> LockState {
        let lease = |at: &u64| {
            serde_json::json!({ "lease_id": format!("l{at}"), "owner": "o", "token": 1, "ttl_ms": 1,
                                "granted_at": 0, "expires_at": at * 1_000 })
        };
        let holders: Vec<_> = expires_s.iter().map(lease).collect();
        serde_json::from_value(serde_json::json!({ "token": 1, "holders": holders })).unwrap()
    }

    #[test]
    fn nodes_together_count_each_lease_until_it_ends_or_expires_at_any_node() {
        let at = |second: u64| Timestamp::from_ms(1_000_000_000 + second * 1_000);
        let until = |seconds: &[u64]| state(&seconds.iter().map(|second| 1_000_000 + second).collect::<Vec<_>>());
        let (granting, ending) = (LiveLeases::default(), LiveLeases::default());
        granting.changed(&until(&[]), &until(&[30]), at(0));
        granting.changed(&until(&[]), &until(&[40, 50]), at(0));
        assert_eq!(granting.get(at(1)), 3);
        // Renewed here, ended there.
        granting.changed(&until(&[30]), &until(&[60]), at(20));
        ending.changed(&until(&[40, 50]), &until(&[50]), at(21));
        assert_eq!((granting.get(at(39)), ending.get(at(39))), (3, -1));
        assert_eq!((granting.get(at(45)), ending.get(at(45))), (2, 0));
        assert_eq!(granting.get(at(60)), 0);
        // Long after, the same seconds are used again.
        granting.changed(&until(&[]), &until(&[1_000_000]), at(20_000));
        assert_eq!(granting.get(at(20_001)), 1);
        assert_eq!(granting.get(at(40_000)), 0);
    }
}
