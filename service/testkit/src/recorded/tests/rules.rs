//! Each rule with a short history that breaks it, and that is correct with one change.

use std::collections::BTreeSet;

use super::*;

/// A broken history, and the same with other answers, which is correct.
struct Example {
    rule: Rule,
    broken: Vec<Call>,
    correct: Vec<Call>,
}

fn example(rule: Rule, same: &[Call], broken: &[Call], correct: &[Call]) -> Example {
    Example { rule, broken: [same, broken].concat(), correct: [same, correct].concat() }
}

/// An acquire of permits that was granted at once.
fn permits(lease_id: &str, at_ms: (u64, u64), token: u64, slots: &[u64], limit: u64) -> Call {
    let grant = acquired(1, lease_id, at_ms, token);
    let asked = Asked { mode: Mode::Permits, permits: slots.len() as u64, limit, ..grant.asked.clone() };
    Call { asked, slots: slots.to_vec(), ..grant }
}

/// A grant to a group that may have one permit.
fn in_group(lease_id: &str, group: &str, at_ms: (u64, u64), token: u64, slot: u64) -> Call {
    let grant = permits(lease_id, at_ms, token, &[slot], 4);
    let asked = Asked { group: group.to_owned(), group_limit: 1, ..grant.asked.clone() };
    Call { asked, ..grant }
}

/// A grant at this time of the store's clock.
fn by_clock(grant: Call, granted_at_ms: u64) -> Call {
    Call { expires_at_ms: Some(granted_at_ms + TTL_MS), ..grant }
}

/// An acquire that waited in the queue.
fn waited(answer: Call, waited_ms: u64, priority: u64) -> Call {
    let asked = Asked { wait_ms: 1_000, priority, ..answer.asked.clone() };
    Call { asked, waited_ms: Some(waited_ms), ..answer }
}

fn timed_out(lease_id: &str, at_ms: (u64, u64), has_ticket: bool) -> Call {
    let code = Some("wait-timeout".to_owned());
    let refused = waited(call(1, Verb::Acquire, lease_id, at_ms, 423), 1_000, 1);
    let asked = Asked { ticket: has_ticket, ..refused.asked.clone() };
    Call { code, asked, ..refused }
}

fn refused_by(lease_id: &str, holder: &str, at_ms: (u64, u64)) -> Call {
    let holders = vec![holder.to_owned()];
    Call { code: Some("lock-held".to_owned()), holders, ..call(2, Verb::Acquire, lease_id, at_ms, 423) }
}

fn of_multilock(key: &str, call: Call) -> Call {
    let asked = Asked { multilock: true, ..call.asked.clone() };
    Call { key: key.to_owned(), asked, ..call }
}

fn revoked(at_ms: (u64, u64), grace_ms: u64) -> Call {
    let revocation = call(9, Verb::Revoke, "", at_ms, 200);
    Call { asked: Asked { grace_ms, ..Asked::default() }, ..revocation }
}

fn order(verb: Verb, at_ms: (u64, u64), ttl_ms: u64) -> Call {
    Call { asked: Asked { ttl_ms, ..Asked::default() }, ..call(9, verb, "", at_ms, 200) }
}

fn presented(token: u64, at_ms: (u64, u64), status: u16) -> Call {
    Call { token: Some(token), ..call(9, Verb::Fence, "", at_ms, status) }
}

fn look(holders: &[&str]) -> Call {
    let holders = holders.iter().map(ToString::to_string).collect();
    Call { holders, ..call(0, Verb::Look, "", (90_000, 90_001), 200) }
}

/// An attempt that may proceed.
fn go(attempt_id: &str, at_ms: (u64, u64), attempt: u64) -> Call {
    let answer = call(1, Verb::Pre, attempt_id, at_ms, 201);
    Call { stamp: Some(format!("p{attempt_id}")), attempt: Some(attempt), ttl_ms: Some(TTL_MS), ..answer }
}

fn blocking(go: Call) -> Call {
    Call { asked: Asked { blocks: true, ..go.asked.clone() }, ..go }
}

fn posted(attempt_id: &str, at_ms: (u64, u64), status: u16) -> Call {
    let report = call(1, Verb::Post, attempt_id, at_ms, status);
    let asked = Asked { outcome: Outcome::Success, retention_ms: 10_000, ..report.asked.clone() };
    Call { stamp: Some(format!("p{attempt_id}")), result: Some(7), asked, ..report }
}

fn duplicate(at_ms: (u64, u64), result: u64) -> Call {
    let code = Some("operation-duplicate".to_owned());
    Call { code, result: Some(result), ..call(2, Verb::Pre, "late", at_ms, 409) }
}

/// An event of a lease, as the reader 1 received it.
fn event(id: u64, kind: &str, lease_id: &str, at_ms: u64, token: u64) -> Call {
    let event = Some(Event { id: id.to_string(), kind: kind.to_owned() });
    let line = call(1, Verb::Event, "", (at_ms, at_ms), 0);
    Call { owner: lease_id.to_owned(), token: Some(token), event, status: None, ..line }
}

/// A line about the whole stream.
fn stream(kind: &str, at_ms: u64) -> Call {
    Call { key: String::new(), ..event(0, kind, "", at_ms, 0) }
}

fn about_holders() -> Vec<Example> {
    let first = acquired(1, "a", (0, 2), 10);
    let shared = |grant: Call| Call { asked: Asked { mode: Mode::Shared, ..grant.asked.clone() }, ..grant };
    vec![
        example(
            Rule::OneHolder,
            &[shared(first.clone())],
            &[acquired(2, "b", (5, 7), 11)],
            &[shared(acquired(2, "b", (5, 7), 11))],
        ),
        example(
            Rule::Permits,
            &[permits("a", (0, 2), 10, &[0, 1], 3)],
            &[permits("b", (3, 4), 11, &[2], 4)],
            &[permits("b", (3, 4), 11, &[2], 3)],
        ),
        example(
            Rule::Slots,
            &[permits("a", (0, 2), 10, &[0, 1], 3)],
            &[permits("b", (3, 4), 11, &[1], 3)],
            &[permits("b", (3, 4), 11, &[2], 3)],
        ),
        example(
            Rule::GroupLimit,
            &[in_group("a", "x", (0, 2), 10, 0)],
            &[in_group("b", "x", (3, 4), 11, 1)],
            &[in_group("b", "y", (3, 4), 11, 1)],
        ),
        example(
            Rule::StoreClock,
            // The second client got its answer so late that nothing else shows it.
            &[by_clock(first.clone(), 5_000)],
            &[by_clock(acquired(2, "b", (2_900, 9_000), 11), 7_999)],
            &[by_clock(acquired(2, "b", (2_900, 9_000), 11), 8_000)],
        ),
        example(
            Rule::Rate,
            &[by_clock(rated("a", (0, 2), 10), 5_000), released(1, "a", (3, 4))],
            &[by_clock(rated("b", (5, 400), 11), 5_299)],
            &[by_clock(rated("b", (5, 400), 11), 5_300)],
        ),
        example(
            Rule::TokensRise,
            &[first.clone(), released(1, "a", (3, 4))],
            &[acquired(2, "b", (5, 7), 9)],
            &[acquired(2, "b", (5, 7), 11)],
        ),
        example(
            Rule::OneClient,
            std::slice::from_ref(&first),
            &[renewed(2, "a", (3, 4), 10)],
            &[renewed(1, "a", (3, 4), 10)],
        ),
        example(Rule::WholeAnswer, &[], &[Call { token: None, ..first.clone() }], std::slice::from_ref(&first)),
    ]
}

/// A grant of the only permit, of which one begins in 300 ms.
fn rated(lease_id: &str, at_ms: (u64, u64), token: u64) -> Call {
    let grant = permits(lease_id, at_ms, token, &[0], 1);
    Call { asked: Asked { min_hold_ms: 300, ..grant.asked.clone() }, ..grant }
}

fn about_effects() -> Vec<Example> {
    let first = acquired(1, "a", (0, 2), 10);
    let refused = call(1, Verb::Acquire, "a", (0, 2), 423);
    let unknown = |key, lease_id, at_ms| {
        let answer = Call { code: Some("outcome-unknown".to_owned()), ..call(1, Verb::Acquire, lease_id, at_ms, 503) };
        of_multilock(key, answer)
    };
    let absent = Call { why: Some("unknown".to_owned()), ..lost(1, Verb::Release, "a", (3, 4)) };
    vec![
        example(Rule::GrantedFirst, &[refused], &[renewed(1, "a", (3, 4), 10)], &[lost(1, Verb::Renew, "a", (3, 4))]),
        example(
            Rule::EndedStays,
            &[first.clone(), lost(1, Verb::Renew, "a", (3_100, 3_101))],
            &[renewed(1, "a", (3_200, 3_201), 10)],
            &[lost(1, Verb::Renew, "a", (3_200, 3_201))],
        ),
        example(
            Rule::RevokedEnds,
            &[first.clone(), revoked((5, 6), 100)],
            &[renewed(1, "a", (500, 501), 10)],
            &[renewed(1, "a", (50, 51), 10)],
        ),
        example(
            Rule::Survives,
            std::slice::from_ref(&first),
            &[lost(1, Verb::Renew, "a", (1_000, 1_001))],
            &[lost(1, Verb::Renew, "a", (3_000, 3_001))],
        ),
        example(
            Rule::TrueRefusal,
            &[first.clone(), released(1, "a", (3, 4))],
            &[refused_by("b", "a", (5, 6))],
            &[refused_by("b", "a", (3, 6))],
        ),
        example(
            Rule::AllOrNone,
            &[unknown("k", "a", (0, 2)), unknown("l", "a", (0, 2)), of_multilock("k", released(1, "a", (3, 4)))],
            &[of_multilock("l", absent)],
            &[of_multilock("l", released(1, "a", (3, 4)))],
        ),
        example(
            Rule::Closed,
            &[order(Verb::Close, (0, 1), 60_000)],
            &[acquired(1, "a", (2, 3), 10)],
            &[order(Verb::Open, (2, 3), 0), acquired(1, "a", (2, 3), 10)],
        ),
        example(
            Rule::Fence,
            &[first.clone(), released(1, "a", (3, 4)), acquired(2, "b", (5, 6), 11)],
            &[presented(10, (7, 8), 200)],
            &[presented(10, (7, 8), 409), presented(11, (9, 10), 200)],
        ),
        example(
            Rule::Repeats,
            std::slice::from_ref(&first),
            &[call(1, Verb::Acquire, "a", (5, 6), 423)],
            &[call(1, Verb::Acquire, "a", (3_005, 3_006), 423)],
        ),
        example(Rule::Quiet, &[first.clone(), released(1, "a", (3, 4))], &[look(&["a"])], &[look(&[])]),
    ]
}

fn about_the_queue() -> Vec<Example> {
    let holder = [acquired(1, "a", (0, 2), 10), released(1, "a", (3_000, 3_002))];
    // An answer of the same node, which shows that it has published its waiters.
    let witness = renewed(1, "a", (1_000, 1_001), 10);
    vec![
        example(
            Rule::Order,
            &[holder.as_slice(), &[witness.clone(), waited(acquired(2, "b", (500, 3_900), 12), 3_399, 1)]].concat(),
            &[waited(acquired(3, "c", (1_100, 3_100), 11), 2_000, 1), released(3, "c", (3_110, 3_120))],
            &[waited(acquired(3, "c", (1_100, 3_100), 11), 2_000, 2), released(3, "c", (3_110, 3_120))],
        ),
        example(
            Rule::TicketPosition,
            &[
                acquired(1, "a", (0, 2), 10),
                renewed(1, "a", (2_200, 2_201), 10),
                released(1, "a", (2_210, 2_211)),
                timed_out("b", (500, 1_501), false),
                timed_out("b", (1_600, 2_700), true),
                released(3, "c", (2_595, 2_596)),
            ],
            &[waited(acquired(3, "c", (1_000, 2_590), 11), 1_580, 1)],
            &[waited(acquired(3, "c", (700, 2_590), 11), 1_880, 1)],
        ),
    ]
}

fn about_the_gate() -> Vec<Example> {
    vec![
        example(Rule::OneGo, &[go("a", (0, 2), 1)], &[go("b", (2_000, 2_999), 2)], &[go("b", (2_000, 3_000), 2)]),
        example(
            Rule::SameStamp,
            &[go("a", (0, 2), 1), posted("a", (50, 51), 503)],
            &[Call { stamp: Some("other".to_owned()), ..go("a", (60, 61), 2) }],
            &[go("a", (60, 61), 1)],
        ),
        example(Rule::AttemptsRise, &[go("a", (0, 2), 1)], &[go("b", (3, 3_200), 1)], &[go("b", (3, 3_200), 2)]),
        example(
            Rule::Blocked,
            &[blocking(go("a", (0, 2), 1))],
            &[blocking(go("b", (3_100, 3_200), 2))],
            &[Call { code: Some("operation-unknown".to_owned()), ..call(2, Verb::Pre, "b", (3_100, 3_200), 409) }],
        ),
        example(
            Rule::DoneStays,
            &[go("a", (0, 2), 1), posted("a", (3, 4), 200)],
            &[go("b", (5, 9_000), 1)],
            &[go("b", (5, 10_003), 1)],
        ),
        example(
            Rule::StableResult,
            &[go("a", (0, 2), 1), posted("a", (3, 4), 200)],
            &[duplicate((5, 6), 8)],
            &[duplicate((5, 6), 7)],
        ),
        example(
            Rule::Superseded,
            &[go("a", (0, 2), 1), go("b", (3_100, 3_200), 2)],
            &[posted("a", (3_300, 3_400), 200)],
            &[posted("a", (3_300, 3_400), 409)],
        ),
    ]
}

fn about_events() -> Vec<Example> {
    let (opened, complete) = (stream(Event::OPENED, 0), stream(Event::COMPLETE, 90));
    let leases = [acquired(1, "a", (1, 2), 10), released(1, "a", (3, 4)), acquired(2, "b", (5, 6), 11)];
    let same = [&[opened, complete], &leases[..]].concat();
    let (granted, ended, next) =
        (event(1, "granted", "a", 2, 10), event(2, "released", "a", 4, 10), event(3, "granted", "b", 6, 11));
    let told = [granted.clone(), ended.clone(), next.clone()];
    vec![
        example(Rule::EventMissing, &same, &told[..2], &told),
        example(Rule::EventTwice, &same, &[&told[..], &told[2..]].concat(), &told),
        example(Rule::EventOrder, &same, &[next.clone(), granted.clone(), ended], &told),
        example(Rule::TrueEvent, &same, &[granted, event(2, "expired", "a", 4, 10), next], &told),
    ]
}

#[test]
fn each_rule_is_fired_by_a_history_that_breaks_it_and_by_nothing_else() {
    let examples =
        [about_holders(), about_effects(), about_the_queue(), about_the_gate(), about_events()].into_iter().flatten();
    let options = Options::default();
    let mut fired = BTreeSet::new();
    for Example { rule, broken, correct } in examples {
        assert_eq!(broken_with(&correct, &options), [], "{rule}");
        let rules = broken_with(&broken, &options);
        assert!(!rules.is_empty() && rules.iter().all(|other| *other == rule), "{rule}: {rules:?}");
        fired.insert(rule.to_string());
    }
    let all: BTreeSet<String> = Rule::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(fired, all);
}

#[test]
fn more_permits_than_the_limit_are_found_whatever_their_numbers() {
    let calls = [permits("a", (0, 2), 10, &[0, 1], 3), permits("b", (3, 4), 11, &[2, 3], 3)];
    assert_eq!(broken(&calls), [Rule::Permits, Rule::Slots]);
}

/// A store lost what it acknowledged in this time.
fn lose(at_ms: (u64, u64)) -> Call {
    Call { key: String::new(), ..call(0, Verb::Lose, "", at_ms, 0) }
}

#[test]
fn a_loss_that_the_history_admits_is_no_violation() {
    let calls = [acquired(1, "a", (0, 2), 10), lost(1, Verb::Renew, "a", (1_000, 1_001))];
    let with = |more: &[Call]| broken_with(&[&calls, more].concat(), &Options::default());
    assert_eq!(with(&[]), [Rule::Survives]);
    assert_eq!(with(&[lose((500, 510))]), []);
}

#[test]
fn a_loss_excuses_nothing_acknowledged_after_it_or_lost_before_it() {
    let calls = [acquired(1, "a", (1_000, 1_002), 10), lost(1, Verb::Renew, "a", (2_000, 2_001))];
    for (at_ms, rules) in
        [((500, 510), vec![Rule::Survives]), ((2_500, 2_510), vec![Rule::Survives]), ((0, 1_500), vec![])]
    {
        assert_eq!(broken_with(&[&calls[..], &[lose(at_ms)]].concat(), &Options::default()), rules, "{at_ms:?}");
    }
}

#[test]
fn a_loss_excuses_the_gate_and_the_events_only_across_it() {
    let again = [go("a", (0, 2), 1), posted("a", (3, 4), 200), go("b", (1_000, 1_002), 1)];
    assert_eq!(broken(&again), [Rule::DoneStays]);
    assert_eq!(broken(&[&again[..], &[lose((500, 510))]].concat()), []);
    assert_eq!(broken(&[&again[..], &[lose((2_000, 2_010))]].concat()), [Rule::DoneStays]);
    let (grant, told) = (acquired(1, "a", (1, 2), 10), event(1, "granted", "a", 50, 10));
    let twice = [stream(Event::OPENED, 0), stream(Event::COMPLETE, 90), grant, told.clone(), told];
    assert_eq!(broken(&twice), [Rule::EventTwice]);
    assert_eq!(broken(&[&twice[..], &[lose((10, 20))]].concat()), []);
    assert_eq!(broken(&[&twice[..], &[lose((60, 70))]].concat()), [Rule::EventTwice]);
}

#[test]
fn an_owner_may_nest() {
    let (outer, inner) = (acquired(1, "a", (0, 2), 10), acquired(1, "b", (3, 4), 10));
    let asked = Asked { reentrant: true, ..inner.asked.clone() };
    let inner = Call { owner: "a".to_owned(), asked, ..inner };
    assert_eq!(broken(&[outer.clone(), inner.clone()]), []);
    assert_eq!(broken(&[outer, Call { owner: "b".to_owned(), ..inner }]), [Rule::OneHolder, Rule::TokensRise]);
}

#[test]
fn a_stream_that_says_that_it_dropped_events_need_not_have_all() {
    let lines = |kind| [stream(Event::OPENED, 0), stream(kind, 1), stream(Event::COMPLETE, 90)];
    let grant = acquired(1, "a", (2, 3), 10);
    assert_eq!(broken(&[&lines(Event::DROPPED)[..], std::slice::from_ref(&grant)].concat()), []);
    assert_eq!(broken(&[&lines(Event::OPENED)[..], &[grant]].concat()), [Rule::EventMissing]);
}
