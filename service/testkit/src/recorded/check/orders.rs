//! A closed key is not granted, the fence lets no old token pass, and a holder that repeats its request is not refused.

use super::super::{Call, Verb};
use super::lease::LeaseHistory;
use super::{Loss, Report, Rule};

/// A closing ends by the store's clock, which may be replaced by another one.
const OPENS_EARLY_US: u64 = 1_500_000;
/// A node may take a lease for ended so much before its expiry.
const EARLY_US: u64 = 500_000;

pub(super) fn check(leases: &[LeaseHistory<'_>], calls: &[Call], losses: &[Loss], report: &mut Report) {
    let is_kept = |from_us, to_us| !losses.iter().any(|loss| loss.is_between(from_us, to_us));
    check_closings(leases, calls, is_kept, report);
    check_fence(leases, calls, is_kept, report);
    for lease in leases.iter().filter(|lease| lease.is_held()) {
        let is_sure = |call: &Call| lease.from_us <= call.sent_us && call.received_us + EARLY_US < lease.to_us;
        let is_refused = |call: &&Call| matches!(call.status, Some(402..500)) && !call.asked.multilock && is_sure(call);
        if let Some(refused) = lease.acquires().filter(is_refused).find(|call| is_kept(lease.from_us, call.received_us))
        {
            report.violated(Rule::Repeats, lease.calls.iter().copied().chain([refused]));
        }
    }
}

fn check_closings(
    leases: &[LeaseHistory<'_>],
    calls: &[Call],
    is_kept: impl Fn(u64, u64) -> bool,
    report: &mut Report,
) {
    let orders: Vec<&Call> =
        calls.iter().filter(|call| matches!(call.verb, Verb::Close | Verb::Open) && call.may_count()).collect();
    for close in orders.iter().filter(|call| call.verb == Verb::Close && call.is_success()) {
        let others = orders.iter().filter(|other| *other != close && other.may_come_until_us() > close.sent_us);
        let ends_us = (close.sent_us + close.asked.ttl_ms * 1_000).saturating_sub(OPENS_EARLY_US);
        let until_us = others.map(|other| other.sent_us).chain([ends_us]).min().unwrap_or(0);
        let is_inside = |lease: &&LeaseHistory<'_>| {
            let answered_us = lease.grant.map_or(u64::MAX, |grant| grant.received_us);
            lease.requested_us() > close.received_us && answered_us < until_us && is_kept(close.sent_us, answered_us)
        };
        if let Some(lease) = leases.iter().find(is_inside) {
            report.violated(Rule::Closed, [*close].into_iter().chain(lease.grant));
        }
    }
}

fn check_fence(leases: &[LeaseHistory<'_>], calls: &[Call], is_kept: impl Fn(u64, u64) -> bool, report: &mut Report) {
    let are_exclusive = leases.iter().all(LeaseHistory::is_exclusive);
    let granted = || leases.iter().filter(|lease| are_exclusive && !lease.is_warned()).filter_map(|lease| lease.grant);
    for call in calls.iter().filter(|call| call.verb == Verb::Fence) {
        let is_higher = |other: &&Call| other.token > call.token;
        let mut before = granted().filter(is_higher).filter(|other| other.received_us < call.sent_us);
        let higher = before.find(|other| is_kept(other.sent_us, call.received_us));
        if let Some(higher) = higher.filter(|_| call.is_success()) {
            report.violated(Rule::Fence, [higher, call]);
        }
        let is_own = |lease: &&LeaseHistory<'_>| {
            let is_sure = lease.from_us <= call.sent_us && call.received_us + EARLY_US < lease.to_us;
            lease.token() == call.token && is_sure && is_kept(lease.from_us, call.received_us)
        };
        let refused = Some(call).filter(|call| call.code() == "stale-token");
        if let Some(lease) = leases.iter().find(is_own).filter(|_| refused.is_some()) {
            report.violated(Rule::Fence, lease.grant.into_iter().chain(refused));
        }
    }
}
