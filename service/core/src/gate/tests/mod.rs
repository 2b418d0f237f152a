//! Examples: what the rows of the gate's table answer, and what they leave open. What holds in every history is in `tests/gate_histories.rs`.

mod await_end;
mod claim;
mod description;
mod enter;
mod expiry;
mod forget;
mod give_back;
mod heartbeat;
mod hold_off;
mod post;
mod resolve;

use std::sync::Arc;

use super::*;
use crate::key::App;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

const LEASE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// One operation id, a clock, and a counter for stamps.
struct World {
    record: Option<OperationRecord>,
    now: Timestamp,
    stamps: u128,
    wakes: bool,
}

fn world() -> World {
    World { record: None, now: Timestamp::from_ms(1_000_000), stamps: 0, wakes: false }
}

impl World {
    fn run(&mut self, command: Command) -> Outcome {
        let before = self.record.take();
        let step = step(before.clone(), command.clone(), self.now);
        assert_eq!(step.changed, step.record != before, "`changed` must be true to {command:?}");
        self.record = step.record;
        self.wakes = step.wakes;
        step.outcome
    }

    fn claim(&mut self) -> Claim {
        self.stamps += 1;
        Claim {
            operation: OperationName::parse("charge").unwrap(),
            sha256: Sha256Digest::of(b"contents"),
            checked: None,
            stamp: Stamp::from_bits(self.stamps),
            attempt_id: None,
            lease_ms: LEASE_MS,
            on_expiry: OnExpiry::Retry,
            durability: Durability::Fast,
            retention: Retention::default(),
            ends_in_ms: None,
            description: None,
            waits_until: None,
            is_behind: false,
            hold_off: HoldOff::default(),
        }
    }

    fn pre_with(&mut self, change: impl FnOnce(&mut Claim)) -> Outcome {
        let mut claim = self.claim();
        change(&mut claim);
        self.run(Command::Pre(claim))
    }

    fn pre(&mut self) -> Outcome {
        self.pre_with(|_| {})
    }

    fn go(&mut self) -> Go {
        go(self.pre())
    }

    fn post(&mut self, stamp: Stamp, report: Report) -> Outcome {
        self.run(Command::Post(success(stamp, report)))
    }

    fn beat(&mut self, stamp: Stamp, lease_ms: Option<u64>) -> Outcome {
        self.run(Command::Heartbeat { stamp, lease_ms })
    }

    fn forget(&mut self, force: bool) -> Outcome {
        self.run(Command::Forget { force })
    }

    /// When the record goes by itself.
    fn goes_at(&self) -> Option<Timestamp> {
        self.record.as_ref().and_then(OperationRecord::goes_at)
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    fn pass_lease(&mut self) {
        self.pass(LEASE_MS + CLOCK_BOUND_MS);
    }
}

fn success(stamp: Stamp, report: Report) -> Post {
    Post { result: Some(Arc::from(r#"{"receipt":7}"#)), ..Post::new(stamp, report) }
}

fn go(outcome: Outcome) -> Go {
    let Outcome::Go(go) = outcome else { panic!("no go: {outcome:?}") };
    go
}

fn posted(outcome: Outcome) -> Posted {
    let Outcome::Posted(posted) = outcome else { panic!("not posted: {outcome:?}") };
    posted
}

fn duplicate(outcome: Outcome) -> Duplicate {
    let Outcome::Duplicate(duplicate) = outcome else { panic!("no duplicate: {outcome:?}") };
    duplicate
}

/// A claim that no caller relies on yet.
fn claimed(world: &mut World, attempt: Option<&str>) -> (Claim, Go) {
    let mut claim = world.claim();
    claim.attempt_id = attempt.map(|attempt| AttemptId::parse(attempt).unwrap());
    let go = go(world.run(Command::Pre(claim.clone())));
    (claim, go)
}

fn give_back(world: &mut World, claim: &Claim) {
    assert_eq!(world.run(Command::GiveBack(Box::new(claim.clone()))), Outcome::GivenBack);
}
