//! The promises of the gate, for one operation.

use std::collections::HashMap;

use super::super::{Call, Outcome, Verb};
use super::{Loss, Report, Rule, Violation};

/// An attempt that was let proceed, and its posts.
struct Attempt<'a> {
    go: &'a Call,
    posts: Vec<&'a Call>,
    /// Until when its client relied on it.
    to_us: u64,
}

/// `calls` are those of one key, which need not be an operation. What a store has lost is not known to later calls.
pub(super) fn check(calls: &[Call], losses: &[Loss], report: &mut Report) {
    if !calls.iter().any(|call| call.verb == Verb::Pre) {
        return;
    }
    let mut of_key = Report::default();
    let attempts = attempts(calls, &mut of_key);
    report.attempts += attempts.len();
    let entered = |call: &&Call| call.verb == Verb::Enter && call.may_count();
    let entered: Vec<&Call> = calls.iter().filter(entered).collect();
    check_attempts(&attempts, &entered, &mut of_key);
    check_results(calls, &attempts, &entered, &mut of_key);
    // One that finds no record may have deleted it, and lost the answer to that.
    let forgotten = calls.iter().filter(|call| call.verb == Verb::Forget);
    let forgotten = forgotten.map(|call| Loss { from_us: call.sent_us, to_us: call.may_come_until_us() });
    let losses: Vec<Loss> = losses.iter().copied().chain(forgotten).collect();
    let found = of_key.violations.iter().filter(|found| !losses.iter().any(|loss| is_of(loss, found)));
    found.for_each(|found| report.violated(found.rule, &found.calls));
}

fn is_of(loss: &Loss, violation: &Violation) -> bool {
    let first_us = violation.calls.iter().map(|call| call.sent_us).min();
    let last_us = violation.calls.iter().map(|call| call.received_us).max();
    first_us.zip(last_us).is_some_and(|(first_us, last_us)| loss.is_between(first_us, last_us))
}

/// In the order of their answers.
fn attempts<'a>(calls: &'a [Call], report: &mut Report) -> Vec<Attempt<'a>> {
    let mut goes: Vec<&Call> = calls.iter().filter(|call| call.verb == Verb::Pre && call.is_success()).collect();
    goes.sort_by_key(|call| call.received_us);
    let mut by_id: HashMap<&str, &Call> = HashMap::new();
    let mut by_stamp: HashMap<&str, Attempt<'_>> = HashMap::new();
    for go in goes {
        let (Some(stamp), Some(_), Some(_)) = (go.stamp.as_deref(), go.attempt, go.ttl_ms) else {
            report.violated(Rule::WholeAnswer, [go]);
            continue;
        };
        if let Some(first) = by_id.insert(&go.lease_id, go)
            && first.stamp != go.stamp
            && go.received_us < first.expires_us()
        {
            report.violated(Rule::SameStamp, [first, go]);
        }
        by_stamp.entry(stamp).or_insert(Attempt { go, posts: Vec::new(), to_us: go.expires_us() });
    }
    for call in calls {
        let Some(attempt) = call.stamp.as_deref().and_then(|stamp| by_stamp.get_mut(stamp)) else { continue };
        match call.verb {
            Verb::Heartbeat if call.is_success() => attempt.to_us = attempt.to_us.max(call.expires_us()),
            Verb::Post => attempt.posts.push(call),
            _ => {}
        }
    }
    let mut attempts: Vec<Attempt<'_>> = by_stamp.into_values().collect();
    for attempt in &mut attempts {
        attempt.posts.sort_by_key(|post| post.sent_us);
        attempt.to_us = attempt.posts.first().map_or(attempt.to_us, |post| attempt.to_us.min(post.sent_us));
    }
    attempts.sort_by_key(|attempt| attempt.go.received_us);
    attempts
}

fn check_attempts(attempts: &[Attempt<'_>], entered: &[&Call], report: &mut Report) {
    let mut longest: Option<&Attempt<'_>> = None;
    for (index, attempt) in attempts.iter().enumerate() {
        let is_certain = !attempt.go.is_warned;
        if let Some(other) = longest.filter(|other| is_certain && attempt.go.received_us < other.to_us) {
            report.violated(Rule::OneGo, [other.go, attempt.go].into_iter().chain(other.posts.iter().copied()));
        }
        if longest.is_none_or(|other| other.to_us < attempt.to_us) && attempt.go.received_us < attempt.to_us {
            longest = Some(attempt);
        }
        let first_post = attempt.posts.first().filter(|post| post.is_success());
        let run = entered.iter().find(|run| run.is_success() && run.sent_us > attempt.go.received_us);
        if let Some((post, run)) = first_post.zip(run).filter(|(post, run)| post.sent_us > run.received_us) {
            report.violated(Rule::Superseded, [attempt.go, run, post]);
        }
        let Some(before) = attempts[..index].last().filter(|_| is_certain) else { continue };
        check_next(before, attempt, entered, report);
        let first_post = before.posts.first().filter(|post| post.sent_us > attempt.go.received_us && post.is_success());
        if let Some(post) = first_post.filter(|_| attempt.go.attempt > before.go.attempt) {
            report.violated(Rule::Superseded, [before.go, attempt.go, post]);
        }
    }
}

/// The next attempt after one that has posted nothing.
fn check_next(before: &Attempt<'_>, next: &Attempt<'_>, entered: &[&Call], report: &mut Report) {
    let ends = before.posts.iter().chain(entered);
    let is_over = ends.filter(|call| call.may_count()).any(|call| call.sent_us < next.go.received_us);
    if is_over || before.go.received_us >= next.go.sent_us {
        return;
    }
    if next.go.attempt <= before.go.attempt {
        report.violated(Rule::AttemptsRise, [before.go, next.go]);
    }
    if before.go.asked.blocks && next.go.asked.blocks {
        report.violated(Rule::Blocked, [before.go, next.go]);
    }
}

/// Successes are kept for their retention, with their results.
fn check_results(calls: &[Call], attempts: &[Attempt<'_>], entered: &[&Call], report: &mut Report) {
    let successes = attempts.iter().flat_map(|attempt| &attempt.posts).chain(entered).copied();
    let mut successes: Vec<&Call> =
        successes.filter(|post| post.asked.outcome == Outcome::Success && post.may_count()).collect();
    successes.sort_by_key(|post| post.sent_us);
    // A run beside a success that was known changes nothing.
    let mut done: Vec<&Call> = successes.iter().copied().filter(|post| post.is_success() && !post.is_warned).collect();
    done.sort_by_key(|post| post.received_us);
    for call in calls.iter().filter(|call| call.verb == Verb::Pre && !call.is_outcome_unknown()) {
        let before = done[..done.partition_point(|post| post.received_us < call.sent_us)].last();
        // The record is kept from the first of equal posts, at whichever moment of its call.
        let kept = before.filter(|post| {
            let same = successes.iter().filter(|other| other.stamp == post.stamp);
            let first_us = same.map(|other| other.sent_us).min().unwrap_or(post.sent_us);
            call.received_us < first_us + post.asked.retention_ms * 1_000
        });
        if let Some(post) = kept.filter(|_| call.is_success() && !call.is_warned) {
            report.violated(Rule::DoneStays, [*post, call]);
        }
        if call.code() != "operation-duplicate" {
            continue;
        }
        let is_posted = match kept {
            Some(post) if entered.is_empty() => post.result == call.result,
            _ => successes.iter().rev().any(|post| post.sent_us < call.received_us && post.result == call.result),
        };
        if !is_posted {
            report.violated(Rule::StableResult, kept.copied().into_iter().chain([call]));
        }
    }
}
