//! A refusal is true at some moment of its call: each holder that it names may have held the lock then.

use std::collections::HashMap;

use super::super::{Call, Verb};
use super::lease::LeaseHistory;
use super::{Report, Rule};

pub(super) fn check(leases: &[LeaseHistory<'_>], calls: &[Call], report: &mut Report) {
    let refused = calls.iter().filter(|call| call.verb == Verb::Acquire && call.status == Some(423));
    let mut refused = refused.filter(|call| !call.holders.is_empty()).peekable();
    if refused.peek().is_none() {
        return;
    }
    let mut by_owner: HashMap<&str, Vec<&LeaseHistory<'_>>> = HashMap::new();
    leases.iter().for_each(|lease| by_owner.entry(lease.owner()).or_default().push(lease));
    for call in refused {
        let is_possible = |lease: &&LeaseHistory<'_>| {
            lease
                .may
                .is_some_and(|(from_us, _)| from_us <= call.received_us && lease.may_appear_until_us >= call.sent_us)
        };
        let is_true = |owner: &String| by_owner.get(&**owner).is_some_and(|leases| leases.iter().any(is_possible));
        if let Some(named) = call.holders.iter().find(|owner| !is_true(owner)) {
            let of_owner = by_owner.get(&**named).into_iter().flatten().flat_map(|lease| &lease.calls);
            report.violated(Rule::TrueRefusal, [call].into_iter().chain(of_owner.copied()));
        }
    }
}
