//! By the store's clock: no lease is granted before an expiry, and rates are kept. The expiry in the first answer, less the length
//! that the request asked for, is when the lease was granted.

use super::super::{Mode, Verb};
use super::lease::LeaseHistory;
use super::{Report, Rule};

pub(super) fn check(leases: &[LeaseHistory<'_>], report: &mut Report) {
    let mut granted: Vec<(&LeaseHistory<'_>, u64)> =
        leases.iter().filter_map(|lease| Some((lease, granted_at_ms(lease)?))).collect();
    granted.sort_by_key(|(lease, _)| lease.token());
    check_expiries(&granted, report);
    granted.sort_by_key(|(_, at_ms)| *at_ms);
    check_rates(&granted, report);
}

fn granted_at_ms(lease: &LeaseHistory<'_>) -> Option<u64> {
    let grant = lease.grant?;
    grant.expires_at_ms?.checked_sub(grant.asked.ttl_ms)
}

/// `granted` are in the order of their tokens.
fn check_expiries(granted: &[(&LeaseHistory<'_>, u64)], report: &mut Report) {
    // Those that end latest: of the exclusive ones, and of the others.
    let mut latest: [Option<(&LeaseHistory<'_>, u64)>; 2] = [None; 2];
    for &(lease, at_ms) in granted {
        for (other, expires_ms) in latest.into_iter().flatten() {
            if lease.excludes(other) && at_ms < expires_ms {
                report.violated(Rule::StoreClock, other.shown_with(lease));
            }
        }
        let Some(expires_ms) = expires_at_ms(lease) else { continue };
        let of_kind = &mut latest[usize::from(lease.is_exclusive())];
        if of_kind.is_none_or(|(_, other_ms)| other_ms < expires_ms) {
            *of_kind = Some((lease, expires_ms));
        }
    }
}

/// Unless the client or an operator may have ended it before.
fn expires_at_ms(lease: &LeaseHistory<'_>) -> Option<u64> {
    let is_left = lease.cut_us.is_none()
        && !lease.may_be_released
        && !lease.calls.iter().any(|call| call.verb == Verb::Release || call.is_lost());
    lease.calls.iter().filter(|call| is_left && call.is_success()).filter_map(|call| call.expires_at_ms).max()
}

/// `granted` are in the order of the store's clock.
fn check_rates(granted: &[(&LeaseHistory<'_>, u64)], report: &mut Report) {
    let is_rate = |lease: &LeaseHistory<'_>| lease.asked().mode == Mode::Permits && lease.asked().min_hold_ms > 0;
    let starts: Vec<_> = granted.iter().filter(|(lease, _)| is_rate(lease)).collect();
    for (index, (first, at_ms)) in starts.iter().enumerate() {
        let asked = first.asked();
        let window = starts[index..].iter().take_while(|(_, other_ms)| *other_ms < at_ms + asked.min_hold_ms);
        if window.clone().map(|(lease, _)| lease.asked().permits).sum::<u64>() > asked.limit {
            return report.violated(Rule::Rate, window.filter_map(|(lease, _)| lease.grant));
        }
    }
}
