//! A record that was claimed in the fallback store meets what the primary store has of the same id.

use super::record::RETENTION_MS_DEFAULT;
use super::{EARLIER_MAX, Earlier, Ending, OperationRecord, Outcome, Phase, Step};
use crate::time::Timestamp;

/// Whose attempt has the record afterwards.
#[derive(Clone, Copy)]
enum Winner {
    Primary,
    Carried,
}

/// Puts `carried` into the primary's record. Done twice, it changes nothing the second time: the carrier may have to
/// repeat it, and a record that moved on between the carrying and its removal is carried once more.
///
/// Both histories are kept. If an attempt went in each of the stores, the stamp of the one that loses the record is remembered as
/// superseded. If it has reported a success, or reports one later, that counts as one suspected double run.
pub(super) fn carry_back(primary: OperationRecord, carried: OperationRecord, now: Timestamp) -> Step {
    let (mut record, loser) = match winner(&primary, &carried) {
        Winner::Primary => (primary.clone(), &carried),
        Winner::Carried => (taken_over(&primary, &carried), &primary),
    };
    // It cannot be given back any more: a caller may rely on it in the other store, or on the attempt that loses the record.
    if let Phase::Started(started) = &mut record.phase {
        started.replaced = None;
    }
    if let (Phase::Vacant { until }, Phase::Vacant { until: other }) = (&mut record.phase, &loser.phase) {
        *until = (*until).max(*other);
    }
    unite_histories(&mut record, &primary, &carried, now);
    let suspected = supersede(&mut record, loser, now);
    bound_history(&mut record, &carried);
    let changed = record != primary;
    Step { record: Some(record), outcome: Outcome::Carried { suspected }, changed, wakes: false }
}

/// Puts a record that was copied from another engine into this one's. A record of the fallback stays one until its store is the
/// active engine: if the switch is given up, the record must still be carried back.
pub(super) fn take_over(here: OperationRecord, copied: OperationRecord, now: Timestamp) -> Step {
    let before = here.clone();
    // A record that is here already is of the fallback, or an equal one by another copier.
    let step = carry_back(copied.settled(), here, now);
    let record = step.record.map(|record| OperationRecord { claimed_in: before.claimed_in, ..record });
    let changed = record.as_ref() != Some(&before);
    Step { record, changed, ..step }
}

/// Nothing of the id is in the primary.
pub(super) fn into_absent(carried: OperationRecord) -> Step {
    Step::changed(carried, Outcome::Carried { suspected: false })
}

fn winner(primary: &OperationRecord, carried: &OperationRecord) -> Winner {
    let is_carried = match (primary.stamp(), carried.stamp()) {
        // A claim of unknown outcome had reached the primary after all: one attempt, whose further end is the true one.
        (Some(holder), Some(stamp)) if holder == stamp => is_further(carried, primary),
        // The fallback has seen the holder end. A success that the primary has all the same stops further runs.
        (Some(holder), _) if carried.earlier(holder).is_some() => !has_succeeded(primary) || has_succeeded(carried),
        // No attempt holds the carried record: it only remembers earlier ones.
        (_, None) => false,
        // It was carried before it had ended, and is no attempt of the primary's any more; but its success stops further runs.
        (_, Some(stamp)) if primary.earlier(stamp).is_some() => has_succeeded(carried) && !has_succeeded(primary),
        (None, Some(_)) => true,
        (Some(_), Some(_)) => has_succeeded(carried) && !has_succeeded(primary),
    };
    if is_carried { Winner::Carried } else { Winner::Primary }
}

fn has_succeeded(record: &OperationRecord) -> bool {
    matches!(record.phase, Phase::Succeeded(_))
}

/// Of two records of one attempt: started, then unknown, then succeeded; of two started ones, that which was renewed.
fn is_further(carried: &OperationRecord, primary: &OperationRecord) -> bool {
    match (&carried.phase, &primary.phase) {
        (Phase::Started(carried), Phase::Started(primary)) => carried.lease_until > primary.lease_until,
        (Phase::Unknown { .. }, Phase::Started(_)) => true,
        (Phase::Succeeded(_), Phase::Started(_) | Phase::Unknown { .. }) => true,
        _ => false,
    }
}

/// The carried record in the primary's place. Waiters of the primary's record are still notified.
fn taken_over(primary: &OperationRecord, carried: &OperationRecord) -> OperationRecord {
    let runs = matches!(carried.phase, Phase::Started(_));
    OperationRecord {
        checked: carried.checked.or(primary.checked),
        awaited_until: primary.awaited_until.max(carried.awaited_until).filter(|_| runs),
        ..carried.clone()
    }
}

/// Both sides' earlier attempts, each with the further of its endings, and both sides' double runs: of the carried ones
/// those that the primary has not counted.
fn unite_histories(record: &mut OperationRecord, primary: &OperationRecord, carried: &OperationRecord, now: Timestamp) {
    let holder = record.stamp();
    let mut earlier = primary.earlier.clone();
    let mut uncounted = 0;
    for other in carried.earlier.iter().filter(|other| Some(other.stamp) != holder) {
        let known = earlier.iter_mut().find(|known| known.stamp == other.stamp);
        let counted = known.as_ref().is_some_and(|known| known.ending == Ending::SupersededSuccess);
        uncounted += u32::from(other.ending == Ending::SupersededSuccess && !counted);
        match known {
            Some(known) if reach(other.ending) > reach(known.ending) => known.ending = other.ending,
            Some(_) => {}
            None => earlier.push(*other),
        }
    }
    earlier.retain(|earlier| Some(earlier.stamp) != holder);
    record.earlier = earlier;
    // What an operator has forgotten is no longer in `double_runs`, though its stamps are remembered.
    let uncounted = uncounted.min(carried.double_runs);
    record.double_runs = primary.double_runs.saturating_add(uncounted).max(carried.double_runs);
    if record.double_runs > primary.double_runs
        && let Phase::Vacant { until } = &mut record.phase
    {
        *until = (*until).max(now.plus_ms(RETENTION_MS_DEFAULT));
    }
}

/// A failure is surer than a passed lease, and a success is never forgotten.
const fn reach(ending: Ending) -> u8 {
    match ending {
        Ending::Superseded => 0,
        Ending::Failed => 1,
        Ending::SupersededSuccess => 2,
    }
}

/// Remembers the loser's holder; returns whether its success has been counted just now.
fn supersede(record: &mut OperationRecord, loser: &OperationRecord, now: Timestamp) -> bool {
    let Some(stamp) = loser.stamp().filter(|stamp| record.stamp() != Some(*stamp)) else { return false };
    let ending = match record.earlier(stamp) {
        Some(known) => known.ending,
        None => {
            record.earlier.push(Earlier { stamp, attempt: loser.attempt, ending: Ending::Superseded });
            Ending::Superseded
        }
    };
    let counts = ending == Ending::Superseded && has_succeeded(loser);
    if counts {
        record.count_double_run(stamp, now);
    }
    counts
}

/// Drops the oldest first, but what the carried record brings last: dropped, it would be counted when carried again.
fn bound_history(record: &mut OperationRecord, carried: &OperationRecord) {
    while record.earlier.len() > EARLIER_MAX {
        let is_carried =
            |earlier: &Earlier| carried.stamp() == Some(earlier.stamp) || carried.earlier(earlier.stamp).is_some();
        let at = record
            .earlier
            .iter()
            .position(|earlier| !is_carried(earlier))
            .or_else(|| record.earlier.iter().position(|earlier| earlier.ending != Ending::SupersededSuccess));
        record.earlier.remove(at.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::time::{CLOCK_BOUND_MS, Timestamp};

    const NOW: Timestamp = Timestamp::from_ms(1_000_000);
    const X: Stamp = Stamp::from_bits(1);
    const Y: Stamp = Stamp::from_bits(2);
    const Z: Stamp = Stamp::from_bits(3);
    const LEASE_MS: u64 = 60_000;

    fn claim(stamp: Stamp) -> Command {
        Command::Pre(Claim {
            operation: OperationName::parse("charge").unwrap(),
            sha256: Sha256Digest::of(b"contents"),
            checked: None,
            stamp,
            attempt_id: None,
            lease_ms: LEASE_MS,
            on_expiry: OnExpiry::Retry,
            durability: Durability::Fast,
            retention: Retention::default(),
            store: StoreRole::Fallback,
            description: None,
            waits_until: None,
            hold_off: HoldOff::default(),
        })
    }

    fn post(stamp: Stamp, report: Report) -> Command {
        Command::Post(Post::new(stamp, report))
    }

    fn then(record: Option<OperationRecord>, commands: &[Command]) -> OperationRecord {
        commands.iter().fold(record, |record, command| step(record, command.clone(), NOW).record).unwrap()
    }

    /// A client has its stamp.
    fn started(stamp: Stamp) -> OperationRecord {
        then(None, &[claim(stamp), Command::Heartbeat { stamp, lease_ms: None }])
    }

    fn ended(stamp: Stamp, report: Report) -> OperationRecord {
        then(None, &[claim(stamp), post(stamp, report)])
    }

    /// `first` was superseded by `second`, which still runs.
    fn reentered(first: Stamp, second: Stamp) -> OperationRecord {
        let later = NOW.plus_ms(LEASE_MS + CLOCK_BOUND_MS);
        step(Some(started(first)), claim(second), later).record.unwrap()
    }

    /// Carries twice: the second time changes nothing.
    fn carry(primary: &OperationRecord, carried: &OperationRecord) -> (OperationRecord, bool) {
        let carry = || Command::CarryBack(Box::new(carried.clone()));
        let once = step(Some(primary.clone()), carry(), NOW);
        assert_eq!(once.changed, once.record.as_ref() != Some(primary));
        let Outcome::Carried { suspected } = once.outcome else { panic!("{:?}", once.outcome) };
        let twice = step(once.record.clone(), carry(), NOW.plus_ms(5_000));
        assert!(!twice.changed, "{once:?} and then {twice:?}");
        assert_eq!(twice.record, once.record);
        assert_eq!(twice.outcome, Outcome::Carried { suspected: false });
        (once.record.unwrap(), suspected)
    }

    #[test]
    fn a_success_in_the_fallback_is_still_carried_back_after_a_copy_that_was_given_up() {
        let of_primary = started(X).settled();
        let copied = step(Some(ended(Y, Report::Success)), Command::Move(Box::new(of_primary.clone())), NOW);
        let in_fallback = copied.record.unwrap();
        assert_eq!(in_fallback.claimed_in, StoreRole::Fallback, "nodes carry back only such records");
        let (primary, _) = carry(&of_primary, &in_fallback);
        assert_eq!(primary.state(), State::Succeeded);
    }

    #[test]
    fn in_a_copy_an_attempt_of_the_fallback_that_has_not_ended_yields_to_the_attempt_of_the_primary() {
        let moved = Command::Move(Box::new(started(X).settled()));
        let record = then(Some(started(Y)), std::slice::from_ref(&moved));
        assert_eq!((record.stamp(), ending_of(&record, Y)), (Some(X), Some(Ending::Superseded)));
        let again = step(Some(record), moved, NOW.plus_ms(5_000));
        assert!(!again.changed, "all copiers write the same: {again:?}");
    }

    #[test]
    fn a_success_in_the_fallback_is_not_lost_if_its_attempt_was_carried_back_before() {
        for primary in [started(X), ended(X, Report::Unknown), ended(X, Report::Failure)] {
            let (before, _) = carry(&primary, &started(Y));
            let (record, suspected) = carry(&before, &ended(Y, Report::Success));
            assert_eq!((record.stamp(), record.state(), suspected), (Some(Y), State::Succeeded, false));
            if before.stamp() == Some(X) {
                let failed = then(Some(before), &[post(X, Report::Failure)]);
                assert_eq!(carry(&failed, &ended(Y, Report::Success)).0.state(), State::Succeeded);
            }
        }
    }

    fn ending_of(record: &OperationRecord, stamp: Stamp) -> Option<Ending> {
        record.earlier(stamp).map(|earlier| earlier.ending)
    }

    #[test]
    fn of_one_attempt_the_further_end_counts_on_whichever_side() {
        let in_order = [started(X), ended(X, Report::Unknown), ended(X, Report::Success)];
        for (at, one) in in_order.iter().enumerate() {
            for other in &in_order[at..] {
                for (primary, carried) in [(one, other), (other, one)] {
                    let (record, suspected) = carry(primary, carried);
                    assert_eq!((&record.phase, record.double_runs, suspected), (&other.phase, 0, false));
                }
            }
        }
    }

    #[test]
    fn a_claim_that_is_in_both_stores_or_has_superseded_another_is_not_given_back() {
        let Command::Pre(given_back) = claim(X) else { panic!() };
        let unanswered = || then(None, &[claim(X)]);
        for (primary, carried) in [
            (unanswered(), started(Y)),
            (unanswered(), ended(Y, Report::Unknown)),
            (started(X), unanswered()),
            (unanswered(), started(X)),
        ] {
            let (record, _) = carry(&primary, &carried);
            assert_eq!(record.stamp(), Some(X));
            assert_eq!(then(Some(record.clone()), &[Command::GiveBack(Box::new(given_back.clone()))]), record);
        }
    }

    #[test]
    fn of_one_running_attempt_the_renewed_lease_counts() {
        let beat = Command::Heartbeat { stamp: X, lease_ms: Some(2 * LEASE_MS) };
        let renewed = then(Some(started(X)), &[beat]);
        assert_eq!(carry(&started(X), &renewed).0.phase, renewed.phase);
        assert_eq!(carry(&renewed, &started(X)).0.phase, renewed.phase);
    }

    #[test]
    fn a_claim_that_reached_the_primary_after_all_ends_with_its_failure_in_the_fallback() {
        for primary in [started(X), ended(X, Report::Unknown)] {
            let (record, _) = carry(&primary, &ended(X, Report::Failure));
            assert_eq!((record.state(), ending_of(&record, X)), (State::Vacant, Some(Ending::Failed)));
        }
        let (record, _) = carry(&ended(X, Report::Success), &ended(X, Report::Failure));
        assert_eq!(record.state(), State::Succeeded, "a success is not run again");
    }

    #[test]
    fn who_followed_the_primarys_holder_in_the_fallback_has_the_record() {
        let (record, suspected) = carry(&started(X), &reentered(X, Y));
        assert_eq!((record.stamp(), record.attempt, suspected), (Some(Y), 2, false));
        assert_eq!(ending_of(&record, X), Some(Ending::Superseded));

        let failed = then(Some(reentered(X, Y)), &[post(Y, Report::Failure)]);
        let (record, _) = carry(&started(X), &failed);
        assert_eq!(record.state(), State::Vacant);

        let succeeded = then(Some(reentered(X, Y)), &[post(Y, Report::Success)]);
        let (record, suspected) = carry(&ended(X, Report::Success), &succeeded);
        assert_eq!((record.stamp(), record.double_runs, suspected), (Some(Y), 1, true));
    }

    #[test]
    fn a_post_between_the_carrying_and_the_removal_is_counted_once() {
        let (record, suspected) = carry(&ended(Z, Report::Success), &started(Y));
        assert_eq!((record.stamp(), ending_of(&record, Y), suspected), (Some(Z), Some(Ending::Superseded), false));
        let (record, suspected) = carry(&record, &ended(Y, Report::Success));
        assert_eq!((record.stamp(), record.double_runs, suspected), (Some(Z), 1, true));
        assert_eq!(ending_of(&record, Y), Some(Ending::SupersededSuccess));
        let told = step(Some(record), post(Y, Report::Success), NOW).outcome;
        assert!(matches!(told, Outcome::Superseded { double_runs: 1, counted: false, .. }), "{told:?}");
    }

    #[test]
    fn an_attempt_that_has_failed_in_the_primary_does_not_come_back() {
        let failed = ended(Y, Report::Failure);
        let (record, suspected) = carry(&failed, &started(Y));
        assert_eq!((record, suspected), (failed, false));
    }

    #[test]
    fn a_success_takes_over_from_who_has_not_ended() {
        for primary in [started(X), ended(X, Report::Unknown)] {
            let (record, suspected) = carry(&primary, &ended(Y, Report::Success));
            assert_eq!((record.stamp(), record.state(), suspected), (Some(Y), State::Succeeded, false));
            assert_eq!(ending_of(&record, X), Some(Ending::Superseded));
            let told = step(Some(record), post(X, Report::Success), NOW).outcome;
            assert!(matches!(told, Outcome::Superseded { double_runs: 1, counted: true, .. }), "{told:?}");
        }
    }

    #[test]
    fn two_successes_are_suspected() {
        let (record, suspected) = carry(&ended(X, Report::Success), &ended(Y, Report::Success));
        assert_eq!((record.stamp(), record.double_runs, suspected), (Some(X), 1, true));
    }

    #[test]
    fn who_has_not_ended_yields_to_whoever_holds_the_primarys_record() {
        for primary in [started(X), ended(X, Report::Unknown), ended(X, Report::Success)] {
            for carried in [started(Y), ended(Y, Report::Unknown)] {
                let (record, suspected) = carry(&primary, &carried);
                assert_eq!((&record.phase, suspected), (&primary.phase, false));
                assert_eq!(ending_of(&record, Y), Some(Ending::Superseded));
            }
        }
    }

    #[test]
    fn a_vacant_primary_takes_what_is_carried_and_keeps_its_own_history() {
        let (record, _) = carry(&ended(X, Report::Failure), &started(Y));
        assert_eq!((record.stamp(), ending_of(&record, X)), (Some(Y), Some(Ending::Failed)));
    }

    #[test]
    fn carried_double_runs_are_added_to_the_primarys_and_stay_in_sight() {
        let suspect = then(Some(reentered(X, Y)), &[post(X, Report::Success)]);
        let failed = then(Some(suspect.clone()), &[post(Y, Report::Failure)]);
        let other = Stamp::from_bits(4);
        let primaries = [started(Z), ended(Z, Report::Success), ended(Z, Report::Failure)];
        for (primary, carried) in primaries.iter().flat_map(|primary| [(primary, &suspect), (primary, &failed)]) {
            let (record, _) = carry(primary, carried);
            assert_eq!(record.double_runs, 1);
            assert_eq!(ending_of(&record, X), Some(Ending::SupersededSuccess));
            if record.state() == State::Vacant {
                assert!(!record.is_gone(NOW.plus_ms(RETENTION_MS_DEFAULT)));
            }
        }
        let own = then(Some(reentered(Z, other)), &[post(Z, Report::Success)]);
        assert_eq!(carry(&own, &suspect).0.double_runs, 2);
    }

    #[test]
    fn long_histories_stay_bounded_and_are_counted_once() {
        let long = |from: u128| {
            let mut record = started(Stamp::from_bits(from));
            for number in 1..=EARLIER_MAX as u128 {
                let last = Stamp::from_bits(from + number - 1);
                let later = NOW.plus_ms(u64::try_from(number).unwrap() * (LEASE_MS + CLOCK_BOUND_MS));
                record = step(Some(record), claim(Stamp::from_bits(from + number)), later).record.unwrap();
                record = step(Some(record), post(last, Report::Success), later).record.unwrap();
            }
            record
        };
        let most = u32::try_from(EARLIER_MAX).unwrap();
        let (record, _) = carry(&long(1_000), &ended(X, Report::Success));
        assert_eq!((record.earlier.len(), record.double_runs), (EARLIER_MAX, most));
        let (record, _) = carry(&ended(X, Report::Unknown), &long(2_000));
        assert_eq!((record.earlier.len(), record.double_runs), (EARLIER_MAX, most));
    }
}
