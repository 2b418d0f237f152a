//! Tokens rise in the order of real time.

use std::collections::HashMap;

use super::lease::LeaseHistory;
use super::{Report, Rule};

/// `leases` are in the order in which they were held.
pub(super) fn check(leases: &[LeaseHistory<'_>], report: &mut Report) {
    let mut granted: Vec<&LeaseHistory<'_>> =
        leases.iter().filter(|lease| lease.token().is_some() && !lease.is_warned()).collect();
    let mut by_token: HashMap<Option<u64>, &LeaseHistory<'_>> = HashMap::new();
    // Leases that exclude each other were granted in the order in which they were held.
    let mut highest_held: Option<&LeaseHistory<'_>> = None;
    let mut before: HashMap<(&str, Option<u64>), &LeaseHistory<'_>> = HashMap::new();
    for lease in granted.iter().copied() {
        if let Some(other) = by_token.insert(lease.token(), lease)
            && !other.is_nested_with(lease)
        {
            report.violated(Rule::TokensRise, other.grant.into_iter().chain(lease.grant));
        } else if let Some(highest) = highest_held.filter(|_| lease.is_held() && lease.is_exclusive()) {
            before.insert(name(lease), highest);
        }
        if lease.is_held() && lease.is_exclusive() && highest_held.is_none_or(|other| other.token() < lease.token()) {
            highest_held = Some(lease);
        }
    }
    // So were those of which one was answered before the other was requested.
    let answered = granted.clone();
    let mut answered = answered.into_iter().peekable();
    granted.sort_by_key(|lease| lease.requested_us());
    let mut highest: Option<&LeaseHistory<'_>> = None;
    for lease in granted {
        while let Some(other) = answered.next_if(|other| other.from_us < lease.requested_us()) {
            highest = Some(other).filter(|other| highest.is_none_or(|it| it.token() < other.token())).or(highest);
        }
        let earlier = before.get(&name(lease)).copied().into_iter().chain(highest);
        if let Some(higher) = earlier.into_iter().find(|it| it.token() > lease.token() && !it.is_nested_with(lease)) {
            report.violated(Rule::TokensRise, higher.grant.into_iter().chain(lease.grant));
        }
    }
}

/// A lease id that was forgotten may have been granted again, with another token.
fn name<'a>(lease: &LeaseHistory<'a>) -> (&'a str, Option<u64>) {
    (&lease.calls[0].lease_id, lease.token())
}
