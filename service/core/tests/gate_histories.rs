//! Histories at random: several callers, each between loading a record and committing what `step` made of it, with
//! clocks that are off by all they may be, leases that pass, late posts and calls repeated.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::HashSet;
use std::sync::Arc;

use latchgate_core::gate::{
    AttemptId, Claim, Command, Description, Durability, Go, HoldOff, Label, OnExpiry, OperationName, OperationRecord,
    Outcome, Phase, Post, Replaced, Report, Resolution, Resolve, Retention, Sha256Digest, Stamp, Started, Step, step,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use proptest::prelude::*;

const CALLERS: usize = 4;
const DAY_MS: u64 = 86_400_000;
const START_MS: u64 = 1_700_000_000_000;

/// What a caller wants. Stamps are named by which go they came from, so that a shrunk history still makes sense.
#[derive(Clone, Copy, Debug)]
enum Wish {
    /// `is_unanswered`: its caller has gone, or its batch is refused.
    Pre {
        lease_ms: u64,
        on_expiry: OnExpiry,
        attempt: Option<u8>,
        waits: bool,
        is_unanswered: bool,
    },
    GiveBack {
        claim: usize,
    },
    Post {
        go: usize,
        report: Report,
        retention_ms: Option<u64>,
    },
    Heartbeat {
        go: usize,
        lease_ms: Option<u64>,
    },
    Forget {
        force: bool,
    },
    Resolve {
        has_succeeded: bool,
    },
    Enter {
        attempt: u8,
    },
    Await,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A caller loads the record and decides, its clock off by `skew_ms`; a decision to write waits for its commit.
    Ask {
        caller: usize,
        skew_ms: i64,
        wish: Wish,
    },
    /// The caller commits what it decided, unless the record or the time has moved on.
    Commit {
        caller: usize,
    },
    Pass {
        ms: u64,
    },
}

fn wish() -> impl Strategy<Value = Wish> {
    let report = || prop_oneof![3 => Just(Report::Success), 2 => Just(Report::Failure), 1 => Just(Report::Unknown)];
    let on_expiry = prop_oneof![4 => Just(OnExpiry::Retry), 1 => Just(OnExpiry::Block)];
    let lease_ms = prop_oneof![Just(100), Just(1_000), Just(60_000)];
    let attempt = prop_oneof![2 => Just(None), 1 => (0..2_u8).prop_map(Some)];
    let retention_ms = prop_oneof![2 => Just(Some(86_400_000)), 2 => Just(Some(1_000)), 1 => Just(None)];
    let is_unanswered = prop_oneof![5 => Just(false), 2 => Just(true)];
    prop_oneof![
        6 => (lease_ms, on_expiry, attempt, any::<bool>(), is_unanswered).prop_map(
            |(lease_ms, on_expiry, attempt, waits, is_unanswered)| Wish::Pre { lease_ms, on_expiry, attempt, waits, is_unanswered },
        ),
        2 => (0..3_usize).prop_map(|claim| Wish::GiveBack { claim }),
        5 => (0..4_usize, report(), retention_ms)
            .prop_map(|(go, report, retention_ms)| Wish::Post { go, report, retention_ms }),
        2 => (0..4_usize, prop_oneof![Just(None), Just(Some(100))])
            .prop_map(|(go, lease_ms)| Wish::Heartbeat { go, lease_ms }),
        1 => any::<bool>().prop_map(|force| Wish::Forget { force }),
        2 => any::<bool>().prop_map(|has_succeeded| Wish::Resolve { has_succeeded }),
        1 => (0..8_u8).prop_map(|attempt| Wish::Enter { attempt }),
        1 => Just(Wish::Await),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let bound = i64::try_from(CLOCK_BOUND_MS).unwrap();
    let skew_ms = prop_oneof![2 => Just(0), 1 => Just(-bound), 1 => Just(bound), 2 => -bound..=bound];
    let ms = prop_oneof![2 => 1..100_u64, 2 => 100..1_300_u64, 1 => 980..1_100_u64, 1 => 50_000..70_000_u64, 1 => Just(100_000_000)];
    prop_oneof![
        5 => (0..CALLERS, skew_ms, wish()).prop_map(|(caller, skew_ms, wish)| Event::Ask { caller, skew_ms, wish }),
        5 => (0..CALLERS).prop_map(|caller| Event::Commit { caller }),
        2 => ms.prop_map(|ms| Event::Pass { ms }),
    ]
}

/// A go that was given, as its holder knows it.
#[derive(Debug)]
struct Held {
    stamp: Stamp,
    attempt_id: Option<AttemptId>,
    lease_until: Timestamp,
    ended: bool,
}

struct Success {
    result: Option<Arc<str>>,
    keep_until: Option<Timestamp>,
}

struct Pending {
    command: Command,
    is_unanswered: bool,
    now: Timestamp,
    version: u64,
}

/// The store, the true time, and what the callers have been told.
#[derive(Default)]
struct World {
    record: Option<OperationRecord>,
    version: u64,
    time: Timestamp,
    pending: [Option<Pending>; CALLERS],
    gos: Vec<Held>,
    /// Claims whose callers have gone, or whose batches were refused. No caller has their stamps.
    refused: Vec<Claim>,
    /// A caller was told to go, and no attempt has reported an end since.
    may_have_run: bool,
    success: Option<Success>,
    counted: HashSet<Stamp>,
    stamps: u128,
}

impl World {
    fn new() -> Self {
        Self { time: Timestamp::from_ms(START_MS), ..Self::default() }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Pass { ms } => self.time = self.time.plus_ms(ms),
            Event::Ask { caller, skew_ms, wish } => {
                let now = Timestamp::from_ms(self.time.as_ms().checked_add_signed(skew_ms).unwrap());
                let command = self.command(wish, now);
                let is_unanswered = matches!(wish, Wish::Pre { is_unanswered: true, .. });
                let done = step(self.record.clone(), command.clone(), now);
                if let (Command::Pre(claim), true, Outcome::Go(Go { repeated: false, .. })) =
                    (&command, is_unanswered, &done.outcome)
                {
                    // It may be given back before it reaches the store.
                    self.refused.push(claim.clone());
                }
                if done.changed {
                    self.pending[caller] = Some(Pending { command, is_unanswered, now, version: self.version });
                } else {
                    self.told(&command, is_unanswered, &done, now);
                }
            }
            Event::Commit { caller } => {
                let Some(Pending { command, is_unanswered, now, version }) = self.pending[caller].take() else {
                    return;
                };
                if version == self.version && now.ms_apart(self.time) <= CLOCK_BOUND_MS {
                    let before = self.record.clone();
                    let done = step(before.clone(), command.clone(), now);
                    survives_json(done.record.as_ref());
                    a_second_time_changes_nothing(&done, &command, now);
                    a_superseded_call_moves_nothing(before.as_ref(), &done);
                    if before.as_ref().is_some_and(|before| !before.is_gone(now)) {
                        a_claim_given_back_leaves_what_it_replaced(before.as_ref(), &command, &done);
                    }
                    // The record's time is over, or an operator has deleted it.
                    self.may_have_run &= before.as_ref().is_some_and(|before| !before.is_gone(now));
                    self.a_run_is_not_forgotten(&done);
                    if done.outcome == Outcome::GivenBack {
                        // Vacant: the time of the attempt before is over.
                        self.may_have_run &= done.record.as_ref().is_some_and(|record| record.stamp().is_some());
                    }
                    self.record.clone_from(&done.record);
                    self.version += 1;
                    self.told(&command, is_unanswered, &done, now);
                }
            }
        }
    }

    fn command(&mut self, wish: Wish, now: Timestamp) -> Command {
        self.stamps += 1;
        let stranger = Stamp::from_bits(u128::MAX);
        // 0 is the latest go, 1 the one before it, and so on.
        let stamp_of = |go: usize| self.gos.iter().rev().nth(go).map_or(stranger, |held| held.stamp);
        match wish {
            Wish::Pre { lease_ms, on_expiry, attempt, waits, .. } => {
                let waits_until = waits.then(|| now.plus_ms(5_000));
                Command::Pre(Claim { lease_ms, on_expiry, waits_until, ..self.claim(attempt) })
            }
            Wish::Enter { attempt } => {
                let claim = self.claim(Some(attempt));
                let stamp = claim.attempt_id.as_ref().map_or(stranger, Stamp::of_run);
                let run = Post { result: Some(self.stamps.to_string().into()), ..Post::new(stamp, Report::Success) };
                Command::Enter { claim: Box::new(claim), run, ran_at: now }
            }
            Wish::GiveBack { claim } => match self.refused.iter().rev().nth(claim) {
                Some(claim) => Command::GiveBack(Box::new(claim.clone())),
                None => Command::Forget { force: false },
            },
            Wish::Post { go, report, retention_ms } => Command::Post(Post {
                result: Some(self.stamps.to_string().into()),
                retention: Some(retention_ms.map_or(Retention::Forever, Retention::Ms)),
                ..Post::new(stamp_of(go), report)
            }),
            Wish::Heartbeat { go, lease_ms } => Command::Heartbeat { stamp: stamp_of(go), lease_ms },
            Wish::Forget { force } => Command::Forget { force },
            Wish::Resolve { has_succeeded } => Command::Resolve(Resolve {
                has_succeeded,
                result: Some(self.stamps.to_string().into()),
                retention: None,
                resolution: Arc::new(Resolution { reason: "seen".into(), by: None, api_key: None }),
            }),
            Wish::Await => Command::Await { until: Some(now.plus_ms(5_000)) },
        }
    }

    fn claim(&self, attempt: Option<u8>) -> Claim {
        Claim {
            operation: OperationName::parse("charge").unwrap(),
            sha256: Sha256Digest::of(b""),
            checked: Some(Sha256Digest::of(b"amount")),
            stamp: Stamp::from_bits(self.stamps),
            attempt_id: attempt.map(|attempt| AttemptId::parse(&format!("job-{attempt}")).unwrap()),
            lease_ms: 1_000,
            on_expiry: OnExpiry::default(),
            durability: if self.stamps.is_multiple_of(2) { Durability::Fast } else { Durability::Durable },
            retention: Retention::Ms(DAY_MS + u64::try_from(self.stamps).unwrap()),
            ends_in_ms: None,
            description: described(self.stamps),
            waits_until: None,
            is_behind: false,
            hold_off: HoldOff::default(),
        }
    }

    /// A caller gets its answer.
    fn told(&mut self, command: &Command, is_unanswered: bool, done: &Step, now: Timestamp) {
        self.a_result_once_given_stays(command, &done.outcome);
        if let (Outcome::Go(Go { repeated: false, .. }), Command::Pre(claim), Some(record)) =
            (&done.outcome, command, &done.record)
        {
            assert_eq!(record.description, claim.description, "the record describes another attempt");
        }
        match (&done.outcome, command) {
            (Outcome::Go(go), Command::Pre(_)) if is_unanswered && !go.repeated => {}
            (Outcome::Go(go), Command::Pre(claim)) => self.told_go(*go, claim),
            (Outcome::Posted(posted), Command::Post(post)) if !posted.replayed => {
                self.end(post.stamp);
                self.may_have_run &= post.report == Report::Unknown;
                self.success = (post.report == Report::Success)
                    .then(|| Success { result: post.result.clone(), keep_until: posted.keep_until });
            }
            (Outcome::Posted(posted), Command::Resolve(resolve)) if !posted.replayed => {
                assert!(self.gos.iter().all(|held| !self.is_live(held)), "an attempt that runs was resolved");
                self.gos.iter_mut().for_each(|held| held.ended = true);
                self.may_have_run = false;
                self.success = resolve
                    .has_succeeded
                    .then(|| Success { result: resolve.result.clone(), keep_until: posted.keep_until });
            }
            (Outcome::Posted(posted), Command::Enter { run, .. }) if !posted.replayed => {
                self.gos.iter_mut().for_each(|held| held.ended = true);
                self.may_have_run = false;
                self.success = Some(Success { result: run.result.clone(), keep_until: posted.keep_until });
            }
            (Outcome::Beating { lease_until, .. }, Command::Heartbeat { stamp, .. }) => {
                let held = self.gos.last_mut().expect("a heartbeat without a go");
                assert!(held.stamp == *stamp && !held.ended, "{stamp:?} was renewed, but {held:?} holds");
                assert!(*lease_until >= now.max(held.lease_until), "a heartbeat shortened the lease");
                held.lease_until = *lease_until;
            }
            (Outcome::Superseded { counted: true, .. }, Command::Post(post)) => {
                assert!(self.counted.insert(post.stamp), "{:?} was counted twice", post.stamp);
            }
            (Outcome::Forgotten { .. }, Command::Forget { force }) => {
                assert!(*force || self.gos.iter().all(|held| !self.is_live(held)), "forgotten without force");
                self.success = None;
                self.may_have_run = false;
                self.gos.iter_mut().for_each(|held| held.ended = true);
            }
            _ => {}
        }
    }

    fn is_live(&self, held: &Held) -> bool {
        !held.ended && self.time < held.lease_until
    }

    fn told_go(&mut self, go: Go, claim: &Claim) {
        self.may_have_run = true;
        let refused = self.refused.iter().position(|refused| refused.stamp == go.stamp);
        if let Some(refused) = refused.filter(|_| self.gos.iter().all(|held| held.stamp != go.stamp)) {
            // Its caller comes again.
            assert!(claim.attempt_id.is_some() && claim.attempt_id == self.refused[refused].attempt_id);
        } else if go.repeated {
            let holder = self.gos.last().filter(|held| held.stamp == go.stamp && !held.ended);
            let holder = holder.expect("a stamp was repeated that nobody holds");
            assert!(claim.attempt_id.is_some() && claim.attempt_id == holder.attempt_id, "told to another attempt");
            return;
        }
        let other = self.gos.iter().find(|held| self.is_live(held));
        assert!(other.is_none(), "{:?} may go while {other:?} is live", go.stamp);
        assert!(self.gos.iter().all(|held| held.stamp != go.stamp), "a stamp was given twice");
        let attempt_id = claim.attempt_id.clone();
        self.gos.push(Held { stamp: go.stamp, attempt_id, lease_until: go.lease_until, ended: false });
    }

    fn a_run_is_not_forgotten(&self, done: &Step) {
        if let Outcome::Go(go) = &done.outcome
            && self.may_have_run
        {
            assert!(go.reentry || go.repeated, "an attempt may have run, and the next is told {go:?}");
        }
    }

    fn end(&mut self, stamp: Stamp) {
        for held in self.gos.iter_mut().filter(|held| held.stamp == stamp) {
            held.ended = true;
        }
    }

    fn a_result_once_given_stays(&self, command: &Command, outcome: &Outcome) {
        let (Command::Pre(_), Some(success)) = (command, &self.success) else { return };
        if success.keep_until.is_none_or(|until| self.time < until) {
            let Outcome::Duplicate(found) = outcome else { panic!("within its retention a pre was told {outcome:?}") };
            assert_eq!((&found.result, found.keep_until), (&success.result, success.keep_until));
        }
    }
}

fn a_second_time_changes_nothing(done: &Step, command: &Command, now: Timestamp) {
    let mut repeated = command.clone();
    if let Command::Pre(claim) = &mut repeated {
        claim.stamp = Stamp::from_bits(u128::MAX - 1);
        if claim.attempt_id.is_none() {
            // Without an attempt id it is another caller's pre, which may leave its mark as a waiter.
            claim.waits_until = None;
        }
    }
    let mut again = step(done.record.clone(), repeated.clone(), now);
    if again.changed && matches!(again.outcome, Outcome::Go(Go { repeated: true, .. })) {
        // From here on the claim cannot be given back.
        let before = done.record.clone().map(relied_on);
        assert_eq!(before, again.record, "{command:?} again changed more of the record");
        again = Step { changed: false, record: done.record.clone(), ..again };
    }
    assert!(!again.changed && again.record == done.record, "{command:?} again changed the record: {again:?}");
    let same = match (&done.outcome, &again.outcome) {
        (Outcome::Go(first), Outcome::Go(second)) => {
            *second == Go { repeated: matches!(&repeated, Command::Pre(claim) if claim.stamp != first.stamp), ..*first }
        }
        (Outcome::Go(_), Outcome::InProgress { .. }) => {
            matches!(command, Command::Pre(claim) if claim.attempt_id.is_none())
        }
        (Outcome::Posted(first), Outcome::Posted(second)) => {
            (first.report, first.keep_until) == (second.report, second.keep_until) && second.replayed
        }
        (Outcome::Beating { lease_until: first, .. }, Outcome::Beating { lease_until: second, .. }) => first == second,
        (Outcome::Superseded { double_runs: first, .. }, Outcome::Superseded { double_runs: second, counted, .. }) => {
            first == second && !counted
        }
        (Outcome::Forgotten { .. }, Outcome::NotFound) => true,
        (first, second) => first == second,
    };
    assert!(same, "{command:?} was told {:?}, then {:?}", done.outcome, again.outcome);
}

fn survives_json(record: Option<&OperationRecord>) {
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Option<OperationRecord>>(&text).unwrap().as_ref(), record);
}

fn described(attempt: u128) -> Option<Arc<Description>> {
    Description { label: Label::parse(&attempt.to_string()).ok(), ..Description::default() }.into_stored()
}

fn relied_on(mut record: OperationRecord) -> OperationRecord {
    if let Phase::Started(started) = &mut record.phase {
        started.replaced = None;
    }
    record
}

fn a_superseded_call_moves_nothing(before: Option<&OperationRecord>, done: &Step) {
    if let (Outcome::Superseded { .. }, Some(before), Some(after)) = (&done.outcome, before, &done.record) {
        let (holder, state) = (before.stamp(), before.state());
        assert_eq!((after.stamp(), after.state(), after.attempt), (holder, state, before.attempt));
        if holder.is_some() {
            assert_eq!(after.phase, before.phase);
        }
    }
}

fn a_claim_given_back_leaves_what_it_replaced(before: Option<&OperationRecord>, command: &Command, done: &Step) {
    let (Command::GiveBack(claim), Some(before), Some(after)) = (command, before, &done.record) else { return };
    let Phase::Started(Started { stamp, replaced: Some(replaced), .. }) = &before.phase else { return };
    if *stamp != claim.stamp {
        return;
    }
    match (&**replaced, &after.phase) {
        (Replaced::Nothing, Phase::Vacant { .. }) => {}
        // The time of the attempt before is over by now.
        (Replaced::Attempt { started, .. }, Phase::Vacant { until })
            if *until > started.lease_until.plus_ms(DAY_MS) => {}
        (
            Replaced::Attempt { started, on_expiry, durability, retention, ends_at, description },
            Phase::Started(restored),
        ) => {
            assert_eq!((started, after.attempt), (restored, before.attempt - 1));
            let terms = (after.on_expiry, after.durability, after.retention, after.ends_at);
            assert_eq!((*on_expiry, *durability, *retention, *ends_at), terms);
            assert_eq!(description, &after.description);
        }
        // It has reported a success meanwhile.
        (Replaced::Attempt { started, .. }, Phase::Succeeded(succeeded)) => assert_eq!(started.stamp, succeeded.stamp),
        (replaced, phase) => panic!("{replaced:?} was replaced, and {phase:?} is what is left"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_live_go_no_lost_result_and_no_call_that_counts_twice(events in prop::collection::vec(event(), 1..80)) {
        let mut world = World::new();
        for event in events {
            world.play(event);
        }
    }
}
