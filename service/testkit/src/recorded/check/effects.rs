//! What was answered is so: a refusal had no effect, an end stays, and what was acknowledged survives.

use super::super::{Call, Verb};
use super::lease::{LATE_US, LeaseHistory};
use super::{Loss, Report, Rule};

/// A holder may be told this much before its expiry that its lease has ended.
const EARLY_US: u64 = 100_000;

pub(super) fn check(leases: &[LeaseHistory<'_>], calls: &[Call], losses: &[Loss], report: &mut Report) {
    for lease in leases {
        check_answers(lease, report);
        check_end(lease, losses, report);
    }
    check_revocations(leases, calls, losses, report);
    let last = calls.iter().filter(|call| call.verb == Verb::Look && call.is_success()).max_by_key(|call| call.sent_us);
    if let Some(look) = last.filter(|look| look.waiters > 0 || !look.holders.is_empty()) {
        report.violated(Rule::Quiet, [look]);
    }
}

fn check_answers(lease: &LeaseHistory<'_>, report: &mut Report) {
    let first = lease.calls[0];
    if let Some(other) = lease.calls.iter().find(|call| call.client != first.client) {
        report.violated(Rule::OneClient, [first, *other]);
    }
    let requested_us = lease.acquires().filter(|call| call.may_count()).map(|call| call.sent_us).min();
    for call in lease.calls.iter().filter(|call| call.is_success()) {
        if call.verb != Verb::Acquire && requested_us.is_none_or(|requested_us| requested_us > call.sent_us) {
            report.violated(Rule::GrantedFirst, lease.calls.iter().copied());
        }
        if !matches!(call.verb, Verb::Acquire | Verb::Renew) {
            continue;
        }
        if call.ttl_ms.is_none() || call.token.is_none() && call.verb == Verb::Acquire {
            report.violated(Rule::WholeAnswer, [*call]);
        }
        if let (Some(grant), Some(_)) = (lease.grant, call.token)
            && call.token != grant.token
        {
            report.violated(Rule::TokensRise, [grant, *call]);
        }
    }
}

fn check_end(lease: &LeaseHistory<'_>, losses: &[Loss], report: &mut Report) {
    let ended = lease.calls.iter().find(|call| call.is_lost() || call.verb == Verb::Release && call.is_success());
    let Some(ended) = ended else { return };
    let is_renewed = |call: &&&Call| call.verb == Verb::Renew && call.is_success() && call.sent_us > ended.received_us;
    let is_kept = |call: &&&Call| !losses.iter().any(|loss| loss.is_between(ended.sent_us, call.received_us));
    if let Some(renewed) = lease.calls.iter().filter(is_renewed).find(is_kept) {
        report.violated(Rule::EndedStays, [*ended, *renewed]);
    }
}

fn check_revocations(leases: &[LeaseHistory<'_>], calls: &[Call], losses: &[Loss], report: &mut Report) {
    let of_key = calls.iter().filter(|call| matches!(call.verb, Verb::Revoke | Verb::Force) && call.is_success());
    for revocation in of_key {
        let deadline_us = revocation.received_us + revocation.asked.grace_ms * 1_000 + LATE_US;
        let first = leases.partition_point(|lease| lease.from_us < revocation.sent_us.saturating_sub(LEASE_US_MAX));
        let held = leases[first..].iter().take_while(|lease| lease.from_us < revocation.sent_us);
        let renewals = held.flat_map(|lease| &lease.calls).filter(|call| call.verb == Verb::Renew && call.is_success());
        let is_kept = |call: &Call| !losses.iter().any(|loss| loss.is_between(revocation.sent_us, call.received_us));
        if let Some(late) = renewals.into_iter().find(|call| call.sent_us > deadline_us && is_kept(call)) {
            report.violated(Rule::RevokedEnds, [revocation, *late]);
        }
    }
}

/// Leases that began longer ago are not looked at.
const LEASE_US_MAX: u64 = 60_000_000;

pub(super) fn check_losses(leases: &[LeaseHistory<'_>], losses: &[Loss], report: &mut Report) {
    for lease in leases.iter().filter(|lease| lease.grant.is_some()) {
        let Some((lost, kept)) = lost_early(lease) else { continue };
        report.lost_early += 1;
        if !losses.iter().any(|loss| loss.is_between(kept.sent_us, lost.received_us)) {
            report.violated(Rule::Survives, [kept, lost]);
        }
    }
}

/// The answer that the lease has ended, and the earlier one that it has not.
fn lost_early<'a>(lease: &LeaseHistory<'a>) -> Option<(&'a Call, &'a Call)> {
    let index = lease.calls.iter().position(|call| call.is_lost())?;
    let (before, lost) = (&lease.calls[..index], lease.calls[index]);
    let is_ended = before.iter().any(|call| call.verb == Verb::Release)
        || lease.cut_us.is_some_and(|cut_us| cut_us <= lost.received_us + EARLY_US);
    let outlives = |call: &&&Call| call.is_success() && lost.received_us + EARLY_US < call.expires_us();
    before.iter().filter(|_| !is_ended).find(outlives).map(|kept| (lost, *kept))
}
