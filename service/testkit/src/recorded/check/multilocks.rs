//! A multilock is granted whole or not at all, also if its answer did not say.

use std::collections::HashMap;

use super::super::{Call, Verb};
use super::lease::LeaseHistory;
use super::{Report, Rule};

/// Of each multilock: a call that shows that a key was granted, and one that shows that another was not.
#[derive(Default)]
pub(super) struct Multilocks(HashMap<String, (Option<Call>, Option<Call>)>);

impl Multilocks {
    /// Takes note of the leases of one key.
    pub fn note(&mut self, leases: &[LeaseHistory<'_>]) {
        for lease in leases.iter().filter(|lease| lease.calls.iter().any(|call| call.asked.multilock)) {
            // A grant that no client received is given back, one key after the other. Leases that were acknowledged, or refused, have
            // rules of their own.
            if lease.grant.is_some() || lease.acquires().any(|call| call.status.is_none()) {
                continue;
            }
            let until_us = lease.requested_us().saturating_add(lease.asked().ttl_ms * 1_000);
            let granted = lease.calls.iter().find(|call| call.is_success());
            let first = lease.calls.iter().find(|call| call.verb != Verb::Acquire);
            let is_absent =
                |call: &&&Call| call.is_lost() && call.why.as_deref() == Some("unknown") && call.received_us < until_us;
            let absent = first.filter(is_absent);
            if granted.is_none() && absent.is_none() {
                continue;
            }
            let seen = self.0.entry(lease.calls[0].lease_id.clone()).or_default();
            seen.0 = seen.0.take().or(granted.copied().cloned());
            seen.1 = seen.1.take().or(absent.copied().cloned());
        }
    }

    pub fn check(&self, report: &mut Report) {
        for seen in self.0.values() {
            if let (Some(granted), Some(absent)) = seen {
                report.violated(Rule::AllOrNone, [granted, absent]);
            }
        }
    }
}
