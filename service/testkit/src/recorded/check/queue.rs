//! The queue of a key: no waiter is overtaken, where the history proves it.

use std::collections::HashMap;

use super::super::Call;
use super::lease::{ARRIVAL_US, LeaseHistory};
use super::{Loss, Options, Report, Rule};

/// A node's turn lasts longer than this without a refresh.
const TURN_US: u64 = 4_000_000;
/// A lease that was granted this long before a wait ended was granted during the wait.
const MARGIN_US: u64 = 50_000;

pub(super) fn check(
    leases: &[LeaseHistory<'_>],
    calls: &[Call],
    losses: &[Loss],
    options: &Options,
    report: &mut Report,
) {
    let mut granted: Vec<&LeaseHistory<'_>> =
        leases.iter().filter(|lease| lease.token().is_some() && is_queued(lease)).collect();
    granted.sort_by_key(|lease| lease.token());
    let answers = Answers::of(calls);
    for lease in leases.iter().filter(|lease| is_queued(lease)) {
        // A store that goes back loses the positions of waiters.
        let is_kept = |wait: &Wait<'_>| !losses.iter().any(|loss| loss.is_between(wait.from_us, wait.to_us));
        for wait in certain_waits(lease).into_iter().filter(is_kept) {
            // An answer of the same node, to a call of the same key, shows that the node has published what waits there.
            let Some(published_us) = answers.after(&wait.call.url, wait.from_us) else { continue };
            let grant_of_wait = wait.call.token;
            let end = match grant_of_wait {
                Some(token) => granted.partition_point(|other| other.token() < Some(token)),
                None => granted.partition_point(|other| other.from_us + MARGIN_US <= wait.to_us),
            };
            let during = granted[..end].iter().rev().take_while(|other| other.from_us >= published_us);
            // A switch leaves out what nodes have published, and counts arrivals with another clock.
            let is_comparable = |other: &LeaseHistory<'_>| {
                !options.clocks_differ || other.grant.is_some_and(|grant| grant.url == wait.call.url)
            };
            let overtakes = |other: &&&LeaseHistory<'_>| {
                is_comparable(other)
                    && other.requested_us() > wait.arrived_us + ARRIVAL_US
                    && other.may.is_some_and(|(from_us, _)| from_us > published_us)
                    && other.asked().priority.max(1) <= wait.call.asked.priority.max(1)
                    && (grant_of_wait.is_some() || other.from_us + MARGIN_US <= wait.to_us)
            };
            if let Some(other) = during.into_iter().find(overtakes) {
                let rule = if wait.is_resumed { Rule::TicketPosition } else { Rule::Order };
                report.violated(rule, lease.calls.iter().copied().chain(other.grant));
            }
        }
    }
}

/// A time in which a request was certainly in the queue of one node.
struct Wait<'a> {
    call: &'a Call,
    from_us: u64,
    to_us: u64,
    /// By when the first call had arrived.
    arrived_us: u64,
    is_resumed: bool,
}

/// Others may pass: a multilock waits at one key at a time, groups have an order of their own, and an owner may nest.
fn is_queued(lease: &LeaseHistory<'_>) -> bool {
    let asked = lease.asked();
    !asked.multilock && !asked.reentrant && !asked.barge && asked.group.is_empty() && asked.min_hold_ms == 0
}

fn certain_waits<'a>(lease: &LeaseHistory<'a>) -> Vec<Wait<'a>> {
    let acquires: Vec<&Call> = lease.acquires().collect();
    let Some(first) = acquires.first() else { return Vec::new() };
    // Only an answer says when the request arrived.
    let Some(waited_ms) = first.waited_ms else { return Vec::new() };
    let arrived_us = first.received_us.saturating_sub(waited_ms * 1_000);
    let mut waits = Vec::new();
    for (index, call) in acquires.iter().enumerate() {
        let is_timeout = call.code() == "wait-timeout";
        let is_first = index == 0;
        let is_known = is_timeout || is_first && call.is_success();
        let is_unbroken = acquires[..index].iter().all(|call| call.code() == "wait-timeout");
        if !is_known || !is_unbroken || call.asked.wait_ms == 0 || call.received_us - call.sent_us > TURN_US {
            continue;
        }
        let waited_us = if is_first { waited_ms } else { call.asked.wait_ms } * 1_000;
        let from_us = call.received_us.saturating_sub(waited_us);
        let is_resumed = !is_first && call.asked.ticket;
        if from_us >= call.sent_us && (is_first || is_resumed) {
            waits.push(Wait { call, from_us, to_us: call.received_us, arrived_us, is_resumed });
        }
    }
    waits
}

/// By URL, when calls were sent, and the first answer to one that was sent from then on.
struct Answers<'a>(HashMap<&'a str, Vec<(u64, u64)>>);

impl<'a> Answers<'a> {
    fn of(calls: &'a [Call]) -> Self {
        let mut by_url: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        let done = calls.iter().filter(|call| call.is_about_a_lease() && call.is_success());
        done.for_each(|call| by_url.entry(&call.url).or_default().push((call.sent_us, call.received_us)));
        for answers in by_url.values_mut() {
            answers.sort_unstable();
            for index in (1..answers.len()).rev() {
                answers[index - 1].1 = answers[index - 1].1.min(answers[index].1);
            }
        }
        Self(by_url)
    }

    fn after(&self, url: &str, sent_us: u64) -> Option<u64> {
        let answers = self.0.get(url)?;
        answers.get(answers.partition_point(|(other_us, _)| *other_us < sent_us)).map(|(_, received_us)| *received_us)
    }
}
