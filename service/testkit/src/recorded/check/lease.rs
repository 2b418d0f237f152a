//! A lease: when it was certainly held, and when it may have been.

use std::collections::HashMap;

use super::super::{Asked, Call, Mode, PAUSED_US, Verb};
use super::Loss;

/// A lease may end this much later than its expiry.
pub(super) const LATE_US: u64 = 300_000;
/// Nodes estimate the time of arrival, each with an error of the clock bound.
pub(super) const ARRIVAL_US: u64 = 250_000;

pub(super) struct LeaseHistory<'a> {
    /// In the order of their answers.
    pub calls: Vec<&'a Call>,
    /// The first answer that granted it.
    pub grant: Option<&'a Call>,
    /// The client relied on it from the answer that granted it ...
    pub from_us: u64,
    /// ... until the client or an operator ended it, the client learned of its loss, or could no longer rely on it. The interval is
    /// empty if that was before the answer.
    pub to_us: u64,
    /// Outside this interval it was certainly not held. `None`: it was never granted.
    pub may: Option<(u64, u64)>,
    /// A request without an answer may be carried out until then.
    pub may_appear_until_us: u64,
    /// An operator may have ended it by then.
    pub cut_us: Option<u64>,
    /// Its client may have released it after its last line.
    pub may_be_released: bool,
    /// The calls that show when it was held.
    shown_by: Vec<&'a Call>,
}

/// The recorder was killed: the last lease of each client may have been released after its last line.
pub(super) fn without_last_lines(leases: &mut [LeaseHistory<'_>]) {
    let last_us = |lease: &LeaseHistory<'_>| lease.calls.last().map_or(0, |call| call.received_us);
    let mut last: HashMap<u64, u64> = HashMap::new();
    for lease in &*leases {
        let known_us = last.entry(lease.client()).or_default();
        *known_us = last_us(lease).max(*known_us);
    }
    for lease in leases {
        let ended_us = last_us(lease);
        if last[&lease.client()] == ended_us {
            lease.may_be_released = true;
            lease.to_us = lease.to_us.min(ended_us);
        }
    }
}

impl<'a> LeaseHistory<'a> {
    /// All leases that the calls of one key are about.
    pub fn all(calls: &'a [Call], losses: &[Loss]) -> Vec<Self> {
        let mut of_leases: Vec<&Call> = calls.iter().filter(|call| call.is_about_a_lease()).collect();
        of_leases.sort_by_key(|call| call.received_us);
        let mut by_id: HashMap<(&str, u64), Vec<&Call>> = HashMap::new();
        // How often each id was granted again, and the last answer that granted or renewed it. A lease that ended long ago is forgotten, as is
        // one that a store has lost.
        let mut last: HashMap<&str, (u64, &Call)> = HashMap::new();
        for call in of_leases {
            let (times, kept) = last.entry(&call.lease_id).or_insert((0, call));
            let is_granted = matches!(call.verb, Verb::Acquire | Verb::Renew) && call.is_success();
            let is_forgotten = kept.expires_us() < call.received_us
                || losses.iter().any(|loss| loss.is_between(kept.sent_us, call.received_us));
            let is_another = kept.token.is_some() && call.token != kept.token;
            *times += u64::from(is_granted && call.verb == Verb::Acquire && is_another && is_forgotten);
            if is_granted {
                *kept = call;
            }
            by_id.entry((&*call.lease_id, *times)).or_default().push(call);
        }
        let revocations = revocations(calls);
        let mut leases: Vec<Self> = by_id.into_values().map(|calls| Self::of(calls, &revocations)).collect();
        leases.sort_by_key(|lease| (lease.from_us, lease.calls[0].sent_us, &lease.calls[0].lease_id));
        leases
    }

    fn of(mut calls: Vec<&'a Call>, revocations: &[(u64, &'a Call)]) -> Self {
        calls.sort_by_key(|call| (call.received_us, call.sent_us));
        let first = |verb: Verb| calls.iter().copied().find(|call| call.verb == verb && call.is_success());
        let (grant, released) = (first(Verb::Acquire), first(Verb::Release));
        let renews = |call: &&&Call| matches!(call.verb, Verb::Acquire | Verb::Renew) && call.is_success();
        let last = calls.iter().rfind(renews).copied();
        let given_up = calls.iter().filter(|call| call.verb == Verb::Release).min_by_key(|call| call.sent_us).copied();
        let lost = calls.iter().find(|call| call.is_lost()).copied();
        let began_us = calls.iter().map(|call| call.sent_us).min().unwrap_or(0);
        let later = revocations.partition_point(|(received_us, _)| *received_us < began_us);
        let cut = revocations.get(later).map(|(_, first)| *first);
        // The lease may have begun as early as its request was sent, so it is counted from there. A successful renewal or release
        // shows that it had not ended before.
        let expires_us = released.map_or(last.map_or(0, Call::expires_us), |_| u64::MAX);
        let given_up_us = given_up.map_or(u64::MAX, |call| call.sent_us);
        let lost_us = lost.map_or(u64::MAX, |call| call.received_us);
        let to_us = expires_us.min(given_up_us).min(lost_us).min(cut.map_or(u64::MAX, cut_us));
        let mut shown_by: Vec<&Call> = Vec::new();
        for call in [grant, last, given_up, released, lost, cut].into_iter().flatten() {
            if !shown_by.contains(&call) {
                shown_by.push(call);
            }
        }
        let (may, may_appear_until_us) = may_be_held(&calls, grant, released.or(lost));
        let from_us = grant.map_or(u64::MAX, |call| call.received_us);
        Self {
            grant,
            from_us,
            to_us,
            may,
            may_appear_until_us,
            cut_us: cut.map(cut_us),
            may_be_released: false,
            shown_by,
            calls,
        }
    }

    /// Whether it was certainly held for some time.
    pub fn is_held(&self) -> bool {
        self.from_us < self.to_us
    }

    pub fn client(&self) -> u64 {
        self.calls[0].client
    }

    pub fn owner(&self) -> &'a str {
        &self.calls[0].owner
    }

    pub fn asked(&self) -> &'a Asked {
        &self.grant.unwrap_or(self.calls[0]).asked
    }

    pub fn token(&self) -> Option<u64> {
        self.grant.and_then(|grant| grant.token)
    }

    /// The calls that acquire it, in the order of their answers.
    pub fn acquires(&self) -> impl DoubleEndedIterator<Item = &'a Call> {
        self.calls.iter().copied().filter(|call| call.verb == Verb::Acquire)
    }

    /// The answer said that other clients may hold the lock.
    pub fn is_warned(&self) -> bool {
        self.grant.is_some_and(|grant| grant.is_warned)
    }

    pub fn requested_us(&self) -> u64 {
        self.acquires().map(|call| call.sent_us).min().unwrap_or(u64::MAX)
    }

    pub fn is_exclusive(&self) -> bool {
        self.asked().mode == Mode::Exclusive
    }

    /// One of both was acquired by an owner that had the other.
    pub fn is_nested_with(&self, other: &Self) -> bool {
        (self.asked().reentrant || other.asked().reentrant) && self.owner() == other.owner()
    }

    pub fn excludes(&self, other: &Self) -> bool {
        let are_alike = self.asked().mode == other.asked().mode && !self.is_exclusive();
        !are_alike && !self.is_nested_with(other)
    }

    /// The calls that show when both were held.
    pub fn shown_with<'b>(&'b self, other: &'b Self) -> impl Iterator<Item = &'a Call> + 'b {
        self.shown_by.iter().chain(&other.shown_by).copied()
    }
}

/// Until when each revocation could be carried out, in this order, and the one with the first deadline from it on.
fn revocations(calls: &[Call]) -> Vec<(u64, &Call)> {
    let of_key = calls.iter().filter(|call| matches!(call.verb, Verb::Revoke | Verb::Force) && call.may_count());
    let mut revocations: Vec<(u64, &Call)> = of_key.map(|call| (call.may_come_until_us(), call)).collect();
    revocations.sort_by_key(|(received_us, _)| *received_us);
    for index in (1..revocations.len()).rev() {
        let next = revocations[index].1;
        let before = &mut revocations[index - 1].1;
        if cut_us(next) < cut_us(before) {
            *before = next;
        }
    }
    revocations
}

fn cut_us(revocation: &Call) -> u64 {
    revocation.sent_us.saturating_add(revocation.asked.grace_ms.saturating_mul(1_000))
}

/// Outside the interval, the lease was certainly not held; and until when a lost request may still be carried out.
fn may_be_held(calls: &[&Call], grant: Option<&Call>, ended: Option<&Call>) -> (Option<(u64, u64)>, u64) {
    // A grant may end before its answer.
    let may_grant = |call: &&&Call| call.verb == Verb::Acquire && (call.may_count() || call.is_lost());
    let Some(earliest_us) = calls.iter().filter(may_grant).map(|call| call.sent_us).min() else { return (None, 0) };
    let requested_us = calls.iter().map(|call| call.sent_us).min().unwrap_or(0);
    // A wait that is longer than the call was measured by a clock that has jumped.
    let waited_until = |grant: &Call| requested_us.checked_add(grant.waited_ms?.checked_mul(1_000)?);
    let waited_until_us = grant.and_then(|grant| waited_until(grant).filter(|us| *us <= grant.received_us));
    let from_us = earliest_us.max(waited_until_us.unwrap_or(0).saturating_sub(ARRIVAL_US));
    let length_us = |call: &Call| {
        let Asked { ttl_ms, wait_ms, .. } = call.asked;
        match call.is_success() {
            true => call.ttl_ms.unwrap_or(0) * 1_000,
            false => (wait_ms + ttl_ms) * 1_000,
        }
    };
    let prolongs = |call: &&&Call| call.verb == Verb::Renew && call.may_count() || may_grant(call);
    let expires_us = calls.iter().filter(prolongs).map(|call| call.received_us + length_us(call) + LATE_US).max();
    let expires_us = expires_us.unwrap_or(0);
    let to_us = ended.map_or(expires_us, |call| call.received_us.min(expires_us.max(call.sent_us)));
    let unanswered = calls.iter().filter(|call| call.verb == Verb::Acquire && call.is_outcome_unknown());
    let appears_us = unanswered.map(|call| call.received_us + length_us(call) + PAUSED_US).max().unwrap_or(0);
    (Some((from_us, to_us)), to_us.max(appears_us))
}
