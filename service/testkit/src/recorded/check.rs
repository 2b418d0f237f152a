//! Checks the promises of a lock, from the recorded calls alone.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;

use super::{Call, Verb};

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub calls: usize,
    /// Leases with an answer that granted them.
    pub grants: usize,
    /// How often a lock passed from one client to another.
    pub handovers: usize,
    /// Calls that may or may not have been carried out: their client cannot know.
    pub unknown_outcomes: usize,
    /// Grants whose lease had ended, counted from the request, when the answer arrived. They show nothing about holders.
    pub stale_grants: usize,
    /// Leases that a client lost although they had not expired and the client had not released them. Only a store that loses
    /// acknowledged commits, or an operator, does that.
    pub lost_early: usize,
    #[serde(skip)]
    pub violations: Vec<Violation>,
}

/// A broken rule, with the calls that show it.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub calls: Vec<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Two leases of one key are never held at once.
    OneHolder,
    /// The tokens of a key rise from lease to lease; a lease keeps its token.
    TokensRise,
    /// A lease that was released or renewed had been granted, or may have been.
    GrantedFirst,
    /// A lease id belongs to one client and one key. The check does not cover other histories.
    OneClient,
    /// A grant or renewal has its token and its length.
    WholeAnswer,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneHolder => "two leases of one key were held at once",
            Self::TokensRise => "a token did not rise from one lease to the next, or changed within one",
            Self::GrantedFirst => "a lease was released or renewed that had not been granted",
            Self::OneClient => "a lease id was used by two clients or for two keys",
            Self::WholeAnswer => "an answer lacks its token or its length",
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.rule)?;
        let lines = self.calls.iter().map(|call| serde_json::to_string(call).map_err(|_| fmt::Error));
        lines.into_iter().try_for_each(|line| write!(f, "\n  {}", line?))
    }
}

/// Looks for broken rules. The calls may be in any order.
pub fn check(calls: &[Call]) -> Report {
    let mut report = Report {
        calls: calls.len(),
        unknown_outcomes: calls.iter().filter(|call| call.is_outcome_unknown()).count(),
        ..Report::default()
    };
    let mut by_id: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    calls.iter().for_each(|call| by_id.entry(&call.lease_id).or_default().push(call));
    let mut by_key: BTreeMap<&str, Vec<Lease<'_>>> = BTreeMap::new();
    for mut calls in by_id.into_values() {
        calls.sort_by_key(|call| (call.received_us, call.sent_us));
        check_calls(&calls, &mut report);
        if let Some(lease) = Lease::of(&calls) {
            report.grants += 1;
            report.lost_early += usize::from(is_lost_early(&calls));
            by_key.entry(&lease.grant.key).or_default().push(lease);
        }
    }
    for leases in by_key.into_values() {
        let (mut counted, stale): (Vec<_>, Vec<_>) = leases.into_iter().partition(|lease| lease.from_us < lease.to_us);
        counted.sort_by_key(|lease| lease.from_us);
        report.stale_grants += stale.len();
        report.handovers += counted.windows(2).filter(|pair| pair[0].grant.client != pair[1].grant.client).count();
        check_holders(&counted, &mut report);
        check_tokens(&counted, &stale, &mut report);
    }
    report
}

impl Report {
    fn violated<'a>(&mut self, rule: Rule, calls: impl IntoIterator<Item = &'a Call>) {
        self.violations.push(Violation { rule, calls: calls.into_iter().cloned().collect() });
    }
}

/// A lease that was granted, and when its client relied on it.
struct Lease<'a> {
    grant: &'a Call,
    /// From the answer that granted it ...
    from_us: u64,
    /// ... until the client released the lease, learned of its loss, or could no longer rely on it. The interval is empty if that
    /// was before the answer.
    to_us: u64,
    /// The calls that show this.
    shown_by: Vec<&'a Call>,
}

impl<'a> Lease<'a> {
    /// `None` if no answer granted it. `calls` are the calls of one lease, in the order of their answers.
    fn of(calls: &[&'a Call]) -> Option<Self> {
        let is_held = |call: &&&Call| call.verb != Verb::Release && call.is_success();
        let grant = *calls.iter().find(|call| call.verb == Verb::Acquire && call.is_success())?;
        let last = *calls.iter().rfind(is_held)?;
        let given_up = calls.iter().filter(|call| call.verb == Verb::Release).min_by_key(|call| call.sent_us).copied();
        let released = calls.iter().find(|call| call.verb == Verb::Release && call.is_success()).copied();
        let lost = calls.iter().find(|call| call.is_lost()).copied();
        // The lease may have begun as early as its request was sent, so it is counted from there. A successful renewal or release
        // shows that it had not ended before.
        let expires_us = match released {
            Some(_) => u64::MAX,
            None => last.sent_us.saturating_add(last.expires_in_ms.unwrap_or(0).saturating_mul(1_000)),
        };
        let given_up_us = given_up.map_or(u64::MAX, |call| call.sent_us);
        let lost_us = lost.map_or(u64::MAX, |call| call.received_us);
        let mut shown_by = vec![grant];
        let ends = [Some(last), given_up, released, lost];
        shown_by.extend(ends.into_iter().flatten().filter(|call| *call != grant));
        shown_by.dedup();
        Some(Self { grant, from_us: grant.received_us, to_us: expires_us.min(given_up_us).min(lost_us), shown_by })
    }
}

/// `calls` are the calls of one lease, in the order of their answers.
fn is_lost_early(calls: &[&Call]) -> bool {
    let Some(lost) = calls.iter().position(|call| call.is_lost()) else { return false };
    let (before, lost) = (&calls[..lost], calls[lost]);
    // The lease may have begun as early as its request was sent.
    let expires_us = |call: &&Call| call.sent_us.saturating_add(call.expires_in_ms.unwrap_or(0).saturating_mul(1_000));
    let is_released = before.iter().any(|call| call.verb == Verb::Release);
    !is_released && before.iter().filter(|call| call.is_success()).any(|call| lost.received_us < expires_us(call))
}

/// The rules for the calls of one lease id.
fn check_calls(calls: &[&Call], report: &mut Report) {
    let Some(first) = calls.first() else { return };
    if let Some(other) = calls.iter().find(|call| call.client != first.client || call.key != first.key) {
        report.violated(Rule::OneClient, [*first, *other]);
    }
    let may_grant = |call: &&&Call| call.verb == Verb::Acquire && (call.is_success() || call.is_outcome_unknown());
    let requested_us = calls.iter().filter(may_grant).map(|call| call.sent_us).min();
    let mut grant = None;
    for call in calls.iter().filter(|call| call.is_success()) {
        if call.verb != Verb::Acquire && requested_us.is_none_or(|requested_us| requested_us >= call.sent_us) {
            report.violated(Rule::GrantedFirst, calls.iter().copied());
        }
        if call.verb == Verb::Release {
            continue;
        }
        if call.token.is_none() || call.expires_in_ms.is_none() {
            report.violated(Rule::WholeAnswer, [*call]);
        }
        let grant = *grant.get_or_insert(*call);
        if call.token != grant.token {
            report.violated(Rule::TokensRise, [grant, *call]);
        }
    }
}

/// `leases` are in the order of their grants.
fn check_holders(leases: &[Lease<'_>], report: &mut Report) {
    for (index, earlier) in leases.iter().enumerate() {
        for later in leases[index + 1..].iter().take_while(|later| later.from_us < earlier.to_us) {
            report.violated(Rule::OneHolder, earlier.shown_by.iter().chain(&later.shown_by).copied());
        }
    }
}

/// `stale` leases had ended when their answers arrived, so their order is unknown: only that no other lease has their token can
/// be checked.
fn check_tokens(leases: &[Lease<'_>], stale: &[Lease<'_>], report: &mut Report) {
    let mut highest: Option<&Call> = None;
    for lease in leases {
        match highest {
            Some(highest) if highest.token >= lease.grant.token => {
                report.violated(Rule::TokensRise, [highest, lease.grant]);
            }
            _ => highest = Some(lease.grant),
        }
    }
    let mut by_token: HashMap<Option<u64>, &Call> =
        leases.iter().map(|lease| (lease.grant.token, lease.grant)).collect();
    for Lease { grant, .. } in stale {
        if let Some(other) = by_token.insert(grant.token, grant) {
            report.violated(Rule::TokensRise, [other, *grant]);
        }
    }
}
