//! The events of streams tell the same story as the clients.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::{Call, Event, Verb};
use super::lease::{LATE_US, LeaseHistory};
use super::{Loss, Report, Rule};

#[derive(Default)]
struct Stream {
    opened_us: Option<u64>,
    complete_us: Option<u64>,
    has_dropped: bool,
}

/// By reader.
#[derive(Default)]
pub(super) struct Streams(BTreeMap<u64, Stream>);

impl Streams {
    /// Takes note of when streams were opened, and whether they are complete.
    pub fn open<'a>(&mut self, lines: impl Iterator<Item = &'a Call>) {
        for line in lines {
            let stream = self.0.entry(line.client).or_default();
            match line.event.as_ref().map(|event| &*event.kind) {
                Some(Event::OPENED) => stream.opened_us = Some(line.received_us),
                Some(Event::COMPLETE) => stream.complete_us = Some(line.received_us),
                _ => stream.has_dropped = true,
            }
        }
    }

    /// Checks what each stream has of one key, until a store has lost data: later events may tell of the same time once more.
    pub fn check(&self, leases: &[LeaseHistory<'_>], calls: &[Call], losses: &[Loss], report: &mut Report) {
        let mut by_reader: BTreeMap<u64, Vec<&Call>> = BTreeMap::new();
        let events = calls.iter().filter(|call| call.verb == Verb::Event);
        events.for_each(|event| by_reader.entry(event.client).or_default().push(event));
        report.events += by_reader.values().map(Vec::len).sum::<usize>();
        let story = Story::of(leases);
        for (reader, stream) in &self.0 {
            let mut events = by_reader.remove(reader).unwrap_or_default();
            let later = losses.iter().filter(|loss| stream.opened_us.is_none_or(|opened_us| opened_us < loss.to_us));
            let lost_us = later.map(|loss| loss.from_us).min();
            events.retain(|event| lost_us.is_none_or(|lost_us| event.received_us < lost_us));
            if !stream.has_dropped {
                check_order(&events, report);
            }
            if !stream.has_dropped && lost_us.is_none() {
                check_missing(stream, leases, &events, report);
            }
            events.iter().for_each(|event| story.check(event, report));
        }
    }
}

fn kind(event: &Call) -> &str {
    event.event.as_ref().map_or("", |event| &event.kind)
}

fn is_end(event: &Call) -> bool {
    matches!(kind(event), "released" | "expired" | "revoked" | "forced" | "given_back")
}

/// Each event once; tokens rise; each lease ends after its grant, and once.
fn check_order(events: &[&Call], report: &mut Report) {
    let (mut ids, mut highest) = (HashMap::new(), None::<&Call>);
    let mut held: HashMap<u64, (usize, &Call)> = HashMap::new();
    for event in events {
        let id = event.event.as_ref().map_or("", |event| &event.id);
        if let Some(first) = ids.insert(id, *event) {
            report.violated(Rule::EventTwice, [first, *event]);
            continue;
        }
        let token = event.token.unwrap_or(0);
        if kind(event) == "granted" {
            let nests = held.get(&token).is_some_and(|(count, first)| *count > 0 && first.owner == event.owner);
            if let Some(higher) = highest.filter(|higher| higher.token >= event.token && !nests) {
                report.violated(Rule::EventOrder, [higher, *event]);
            }
            highest = Some(*event).filter(|it| highest.is_none_or(|other| other.token < it.token)).or(highest);
            held.entry(token).or_insert((0, *event)).0 += 1;
        } else if is_end(event) {
            match held.get_mut(&token).filter(|(count, _)| *count > 0) {
                Some((count, _)) => *count -= 1,
                None => report.violated(Rule::EventOrder, [*event]),
            }
        }
    }
}

/// A complete stream has every grant that was answered, and the end of every lease that was released.
fn check_missing(stream: &Stream, leases: &[LeaseHistory<'_>], events: &[&Call], report: &mut Report) {
    let (Some(opened_us), Some(_)) = (stream.opened_us, stream.complete_us) else { return };
    let of = |is_kind: fn(&Call) -> bool| {
        let events = events.iter().filter(|event| is_kind(event));
        events.map(|event| (&*event.owner, event.token)).collect::<HashSet<_>>()
    };
    let (granted, ended) = (of(|event| kind(event) == "granted"), of(is_end));
    for lease in leases.iter().filter(|lease| lease.requested_us() > opened_us) {
        let Some(grant) = lease.grant else { continue };
        let name = (lease.owner(), grant.token);
        let released = lease.calls.iter().find(|call| call.verb == Verb::Release && call.is_success());
        if !granted.contains(&name) || released.is_some() && !ended.contains(&name) {
            report.violated(Rule::EventMissing, [grant].into_iter().chain(released.copied()));
        }
    }
}

/// What the clients know, by owner.
struct Story<'a, 'b>(HashMap<&'a str, Vec<&'b LeaseHistory<'a>>>);

impl<'a, 'b> Story<'a, 'b> {
    fn of(leases: &'b [LeaseHistory<'a>]) -> Self {
        let mut by_owner: HashMap<&str, Vec<&LeaseHistory<'_>>> = HashMap::new();
        leases.iter().for_each(|lease| by_owner.entry(lease.owner()).or_default().push(lease));
        Self(by_owner)
    }

    fn check(&self, event: &Call, report: &mut Report) {
        if kind(event) != "granted" && !is_end(event) {
            return;
        }
        let of_owner = self.0.get(&*event.owner).map(Vec::as_slice).unwrap_or_default();
        let is_possible = |lease: &&&LeaseHistory<'_>| match lease.token() {
            Some(token) if Some(token) == event.token => !contradicts(lease, event),
            // The grant of a request without an answer, or of an earlier one with the same lease id.
            _ => {
                kind(event) != "released" && lease.acquires().any(Call::is_outcome_unknown) || is_released(lease, event)
            }
        };
        if !of_owner.iter().any(|lease| is_possible(&lease)) {
            let calls = of_owner.iter().flat_map(|lease| &lease.calls).copied();
            report.violated(Rule::TrueEvent, [event].into_iter().chain(calls));
        }
    }
}

fn is_released(lease: &LeaseHistory<'_>, event: &Call) -> bool {
    let mut releases = lease.calls.iter().filter(|call| call.verb == Verb::Release && call.may_count());
    lease.acquires().any(Call::is_outcome_unknown) && releases.any(|call| call.sent_us < event.received_us)
}

/// The client of the lease has seen something else. The event has the token of the lease.
fn contradicts(lease: &LeaseHistory<'_>, event: &Call) -> bool {
    let expires_us = || {
        let kept = lease.calls.iter().filter(|call| call.is_success() && call.verb != Verb::Release);
        kept.map(|call| call.expires_us()).max().unwrap_or(0)
    };
    match kind(event) {
        "released" => {
            let mut releases = lease.calls.iter().filter(|call| call.verb == Verb::Release);
            !lease.may_be_released && !releases.any(|call| call.sent_us < event.received_us)
        }
        "expired" => event.received_us + LATE_US < expires_us(),
        "revoked" | "forced" => lease.cut_us.is_none_or(|cut_us| event.received_us < cut_us),
        "given_back" => true,
        _ => false,
    }
}
