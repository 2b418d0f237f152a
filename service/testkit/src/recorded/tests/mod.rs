//! Each rule is reported when it is broken, and only then.

mod rules;

use super::*;

const KEY: &str = "k";
const TTL_MS: u64 = 3_000;

/// A call that was sent and answered at these times, in ms.
fn call(client: u64, verb: Verb, lease_id: &str, (sent_ms, received_ms): (u64, u64), status: u16) -> Call {
    Call {
        client,
        verb,
        key: KEY.to_owned(),
        lease_id: lease_id.to_owned(),
        owner: lease_id.to_owned(),
        url: "http://127.0.0.1:1".to_owned(),
        sent_us: sent_ms * 1_000,
        received_us: received_ms * 1_000,
        asked: Asked { ttl_ms: TTL_MS, ..Asked::default() },
        status: Some(status),
        ..Call::default()
    }
}

fn acquired(client: u64, lease_id: &str, at_ms: (u64, u64), token: u64) -> Call {
    let granted = call(client, Verb::Acquire, lease_id, at_ms, 200);
    Call { token: Some(token), ttl_ms: Some(TTL_MS), ..granted }
}

fn renewed(client: u64, lease_id: &str, at_ms: (u64, u64), token: u64) -> Call {
    Call { verb: Verb::Renew, ..acquired(client, lease_id, at_ms, token) }
}

fn released(client: u64, lease_id: &str, at_ms: (u64, u64)) -> Call {
    call(client, Verb::Release, lease_id, at_ms, 200)
}

fn lost(client: u64, verb: Verb, lease_id: &str, at_ms: (u64, u64)) -> Call {
    Call { code: Some("lease-lost".to_owned()), ..call(client, verb, lease_id, at_ms, 410) }
}

fn unanswered(client: u64, verb: Verb, lease_id: &str, at_ms: (u64, u64)) -> Call {
    let error = Some("connection reset".to_owned());
    Call { status: None, error, ..call(client, verb, lease_id, at_ms, 0) }
}

/// The rules that a history breaks, but for leases that were lost. Each violation must name the calls that show it.
fn broken(calls: &[Call]) -> Vec<Rule> {
    let rules = broken_with(calls, &Options::default());
    rules.into_iter().filter(|rule| *rule != Rule::Survives).collect()
}

fn broken_with(calls: &[Call], options: &Options) -> Vec<Rule> {
    let report = check_with(calls, options);
    let is_told = |violation: &Violation| violation.calls.iter().all(|call| calls.contains(call));
    assert!(report.violations.iter().all(|violation| !violation.calls.is_empty() && is_told(violation)));
    report.violations.iter().map(|violation| violation.rule).collect()
}

/// Two clients take turns; one renews, one lets its lease expire, one answer is lost.
fn correct() -> Vec<Call> {
    vec![
        acquired(1, "a", (0, 2), 10),
        call(2, Verb::Acquire, "b", (1, 101), 423),
        renewed(1, "a", (1_000, 1_001), 10),
        released(1, "a", (1_200, 1_203)),
        // Granted before the answer to the release arrived.
        acquired(2, "b", (102, 1_202), 11),
        // The lease ended 3 000 ms after its request, and the next one began at that moment.
        acquired(1, "c", (1_300, 3_102), 12),
        unanswered(1, Verb::Release, "c", (3_200, 3_300)),
        released(1, "c", (3_320, 3_330)),
        unanswered(2, Verb::Acquire, "d", (3_210, 3_220)),
        acquired(2, "d", (3_230, 3_240), 13),
        lost(2, Verb::Renew, "d", (3_250, 3_260)),
        acquired(1, "e", (3_240, 3_260), 14),
    ]
}

#[test]
fn a_correct_history_passes_whatever_the_order_of_its_lines() {
    let mut calls = correct();
    assert_eq!(broken(&calls), []);
    calls.reverse();
    assert_eq!(broken(&calls), []);
}

#[test]
fn a_lease_that_expired_or_was_released_is_not_lost_early() {
    let expired = [acquired(1, "a", (0, 2), 10), lost(1, Verb::Renew, "a", (2_990, 3_000))];
    let released =
        [acquired(1, "b", (0, 2), 11), unanswered(1, Verb::Release, "b", (3, 4)), lost(1, Verb::Release, "b", (5, 6))];
    let never_granted = [unanswered(1, Verb::Acquire, "c", (0, 1)), lost(1, Verb::Acquire, "c", (2, 3))];
    for calls in [&expired[..], &released, &never_granted] {
        assert_eq!(check(calls).lost_early, 0, "{calls:?}");
    }
}

#[test]
fn a_report_counts_grants_handovers_and_unknown_outcomes() {
    let report = check(&correct());
    let seen = (report.calls, report.grants, report.handovers, report.unknown_outcomes, report.stale_grants);
    assert_eq!(seen, (12, 5, 4, 2, 0));
    // The lease of `d`.
    assert_eq!(report.lost_early, 1);
    let nothing = check(&[]);
    assert_eq!((nothing.grants, nothing.handovers), (0, 0));
}

#[test]
fn a_long_lease_overlaps_every_lease_within_it() {
    let long = Call { ttl_ms: Some(60_000), ..acquired(1, "a", (0, 2), 10) };
    let calls = [
        long,
        acquired(2, "b", (5, 7), 11),
        released(2, "b", (8, 9)),
        acquired(3, "c", (50_000, 50_001), 12),
        released(3, "c", (50_002, 50_003)),
    ];
    assert_eq!(broken(&calls), [Rule::OneHolder, Rule::OneHolder]);
}

#[test]
fn a_lease_counts_from_its_request() {
    let first = acquired(1, "a", (0, 900), 10);
    assert_eq!(broken(&[first.clone(), acquired(2, "b", (2_000, 3_000), 11)]), []);
    assert_eq!(broken(&[first, acquired(2, "b", (2_000, 2_999), 11)]), [Rule::OneHolder]);
}

#[test]
fn a_renewal_makes_a_lease_longer_or_shorter() {
    let first = acquired(1, "a", (0, 2), 10);
    let next = acquired(2, "b", (3_000, 3_400), 11);
    assert_eq!(broken(&[first.clone(), next.clone()]), []);
    let longer = renewed(1, "a", (500, 501), 10);
    assert_eq!(broken(&[first.clone(), longer, next]), [Rule::OneHolder]);
    let shorter = Call { ttl_ms: Some(100), ..renewed(1, "a", (500, 501), 10) };
    assert_eq!(broken(&[first, shorter, acquired(2, "b", (600, 601), 11)]), []);
}

#[test]
fn a_late_successful_renewal_shows_that_the_lease_had_not_ended() {
    let (first, late) = (acquired(1, "a", (0, 2), 10), renewed(1, "a", (2_500, 5_000), 10));
    let next = acquired(2, "b", (3_100, 3_200), 11);
    assert_eq!(broken(&[first.clone(), late, next.clone()]), [Rule::OneHolder]);
    assert_eq!(broken(&[first, lost(1, Verb::Renew, "a", (2_500, 5_000)), next]), []);
}

#[test]
fn a_late_successful_release_shows_that_the_lease_had_not_ended() {
    // Both leases had ended when their answers arrived: the waits were longer than the leases.
    let (first, next) = (acquired(1, "a", (0, 4_000), 10), acquired(2, "b", (0, 4_100), 11));
    let (release, next_release) = (released(1, "a", (4_200, 4_201)), released(2, "b", (4_300, 4_301)));
    assert_eq!(broken(&[first.clone(), next.clone(), release, next_release.clone()]), [Rule::OneHolder]);
    assert_eq!(broken(&[first, next, lost(1, Verb::Release, "a", (4_200, 4_201)), next_release]), []);
}

#[test]
fn a_lease_counts_until_its_client_sends_a_release_or_learns_of_the_loss() {
    let first = acquired(1, "a", (0, 2), 10);
    let next = acquired(2, "b", (5, 100), 11);
    for end in [
        released(1, "a", (100, 110)),
        unanswered(1, Verb::Release, "a", (100, 110)),
        lost(1, Verb::Renew, "a", (90, 100)),
        call(1, Verb::Renew, "a", (90, 100), 404),
    ] {
        assert_eq!(broken(&[first.clone(), end.clone(), next.clone()]), [], "{end:?}");
        let sooner = acquired(2, "b", (5, 99), 11);
        assert_eq!(broken(&[first.clone(), end, sooner]), [Rule::OneHolder]);
    }
}

#[test]
fn a_lease_id_that_was_forgotten_may_be_granted_again_with_a_higher_token() {
    let calls = [acquired(1, "a", (0, 2), 10), acquired(2, "b", (3_010, 3_020), 11), released(2, "b", (3_030, 3_040))];
    let with = |token| broken(&[&calls[..], &[acquired(1, "a", (3_050, 3_060), token)]].concat());
    assert_eq!(with(12), []);
    assert_eq!(with(9), [Rule::TokensRise]);
}

#[test]
fn a_lease_keeps_its_token() {
    assert_eq!(broken(&[acquired(1, "a", (0, 2), 10), renewed(1, "a", (3, 4), 11)]), [Rule::TokensRise]);
}

#[test]
fn a_grant_answered_too_late_is_not_in_the_order_but_its_token_is_unique() {
    let late = acquired(1, "a", (0, 4_000), 10);
    let next = acquired(2, "b", (3_300, 3_400), 11);
    assert_eq!(broken(&[late.clone(), next.clone()]), []);
    assert_eq!(check(&[late.clone(), next.clone()]).stale_grants, 1);
    assert_eq!(broken(&[Call { token: Some(11), ..late }, next]), [Rule::TokensRise]);
}

#[test]
fn a_release_of_a_lease_that_was_never_granted_is_found() {
    let refused = call(1, Verb::Acquire, "a", (0, 2), 423);
    let refused_503 = Call { code: Some("store-unavailable".to_owned()), status: Some(503), ..refused.clone() };
    let release = released(1, "a", (3, 4));
    assert_eq!(broken(std::slice::from_ref(&release)), [Rule::GrantedFirst]);
    assert_eq!(broken(&[refused.clone(), release.clone()]), [Rule::GrantedFirst]);
    assert_eq!(broken(&[refused_503, release.clone()]), [Rule::GrantedFirst]);
    assert_eq!(broken(&[release.clone(), acquired(1, "a", (10, 12), 10)]), [Rule::GrantedFirst]);
    assert_eq!(broken(&[refused, renewed(1, "a", (3, 4), 10)]), [Rule::GrantedFirst]);
    // It may have been granted although the answer was lost.
    assert_eq!(broken(&[unanswered(1, Verb::Acquire, "a", (0, 2)), release.clone()]), []);
    let unknown = Call { code: Some("outcome-unknown".to_owned()), ..call(1, Verb::Acquire, "a", (0, 2), 503) };
    assert_eq!(broken(&[unknown, release]), []);
    // A release that finds no lease shows nothing.
    assert_eq!(broken(&[lost(1, Verb::Release, "a", (3, 4))]), []);
}

#[test]
fn a_lease_is_of_one_client_and_of_the_keys_that_it_was_granted_for() {
    let first = acquired(1, "a", (0, 2), 10);
    assert_eq!(broken(&[first.clone(), renewed(2, "a", (3, 4), 10)]), [Rule::OneClient]);
    let elsewhere = Call { key: "other".to_owned(), ..renewed(1, "a", (3, 4), 10) };
    assert_eq!(broken(&[first, elsewhere]), [Rule::GrantedFirst]);
}

#[test]
fn lines_are_read_as_they_were_written_and_a_broken_one_is_refused() {
    let calls = correct();
    let lines: Vec<String> = calls.iter().map(|call| serde_json::to_string(call).unwrap()).collect();
    assert_eq!(read(lines.join("\n").as_bytes()).unwrap(), calls);
    let cut = &lines.join("\n")[..200];
    assert!(read(cut.as_bytes()).unwrap_err().to_string().starts_with("line 2: "), "{cut}");
}

#[test]
fn a_violation_is_shown_with_its_lines() {
    let calls = [acquired(1, "a", (0, 2), 10), acquired(2, "b", (5, 7), 11)];
    let text = check(&calls).violations[0].to_string();
    assert!(text.starts_with("two leases of one key were held at once:\n  {\"client\":1,"), "{text}");
    assert!(text.contains("\n  {\"client\":2,\"verb\":\"acquire\",\"key\":\"k\",\"lease_id\":\"b\","), "{text}");
}

#[test]
fn of_a_recorder_that_was_killed_the_last_release_may_be_missing() {
    let one = by_clock_of(acquired(1, "a", (0, 10), 1), 5);
    let other = by_clock_of(acquired(2, "b", (20, 30), 2), 25);
    let history = [one.clone(), other.clone()];
    let options = Options { killed: true, ..Options::default() };
    assert!(broken(&history).contains(&Rule::OneHolder));
    assert_eq!(broken_with(&history, &options), []);
    // These clients went on: they had not released their leases.
    let went_on = [one, other, renewed(1, "a", (40, 50), 1), renewed(2, "b", (40, 50), 2)];
    assert!(broken_with(&went_on, &options).contains(&Rule::OneHolder));
}

fn by_clock_of(grant: Call, granted_at_ms: u64) -> Call {
    Call { expires_at_ms: Some(granted_at_ms + TTL_MS), ..grant }
}
