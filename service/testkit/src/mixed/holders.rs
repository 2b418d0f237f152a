//! What the clients of one process hold, each counted only while its client may rely on it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Violations that are kept for the report.
const SHOWN_MAX: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    Exclusive,
    Shared,
    Permits { permits: u64, limit: u64 },
}

#[derive(Clone)]
struct Holder {
    number: u64,
    /// Its lease id or stamp, for the report.
    lease: String,
    share: Share,
    until: Instant,
}

#[derive(Default)]
pub(super) struct Holders {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_name: HashMap<String, Vec<Holder>>,
    entered: u64,
    violations: Vec<String>,
}

impl Holders {
    /// Enters a holder that relies on its share until `until`. Returns a number for [`Holders::leave`].
    pub(super) fn enter(&self, name: &str, lease: &str, share: Share, until: Instant) -> u64 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { by_name, entered, violations } = &mut *inner;
        *entered += 1;
        let now = Instant::now();
        let holders = by_name.entry(name.to_owned()).or_default();
        holders.retain(|holder| holder.until > now);
        if until > now {
            holders.push(Holder { number: *entered, lease: lease.to_owned(), share, until });
            if !can_share(holders) && violations.len() < SHOWN_MAX {
                let held: Vec<String> =
                    holders.iter().map(|Holder { lease, share, .. }| format!("{lease} ({share:?})")).collect();
                violations.push(format!("{name} was held at once by {}", held.join(" and ")));
            }
        }
        *entered
    }

    /// Call it before the release is sent.
    pub(super) fn leave(&self, name: &str, number: u64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holders) = inner.by_name.get_mut(name) {
            holders.retain(|holder| holder.number != number);
            if holders.is_empty() {
                inner.by_name.remove(name);
            }
        }
    }

    pub(super) fn entered(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).entered
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).violations.clone()
    }
}

fn can_share(holders: &[Holder]) -> bool {
    let taken = |holder: &Holder| match holder.share {
        Share::Permits { permits, .. } => permits,
        Share::Exclusive | Share::Shared => 0,
    };
    match holders {
        [] | [_] => true,
        [Holder { share: Share::Permits { limit, .. }, .. }, ..] => {
            let same = |holder: &Holder| matches!(holder.share, Share::Permits { limit: other, .. } if other == *limit);
            holders.iter().all(same) && holders.iter().map(taken).sum::<u64>() <= *limit
        }
        _ => holders.iter().all(|holder| holder.share == Share::Shared),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn are_accepted(shares: &[Share]) -> bool {
        let holders = Holders::default();
        let until = Instant::now() + Duration::from_secs(60);
        for share in shares {
            holders.enter("k", "lease", *share, until);
        }
        holders.violations().is_empty()
    }

    #[test]
    fn holders_that_exclude_each_other_are_reported() {
        use Share::{Exclusive, Shared};
        let permits = |permits, limit| Share::Permits { permits, limit };
        assert!(are_accepted(&[Shared, Shared]));
        assert!(are_accepted(&[permits(1, 3), permits(2, 3)]));
        for shares in [
            [Exclusive, Exclusive],
            [Shared, Exclusive],
            [permits(2, 3), permits(2, 3)],
            [permits(1, 3), permits(1, 4)],
        ] {
            assert!(!are_accepted(&shares), "{shares:?}");
        }
    }

    #[test]
    fn a_holder_counts_until_it_leaves_or_its_time_is_over() {
        let (holders, now) = (Holders::default(), Instant::now());
        let number = holders.enter("k", "lease", Share::Exclusive, now + Duration::from_secs(60));
        holders.leave("k", number);
        holders.enter("k", "lease", Share::Exclusive, now);
        holders.enter("k", "lease", Share::Exclusive, now + Duration::from_secs(60));
        assert_eq!(holders.violations(), Vec::<String>::new());
    }
}
