//! Examples of what the random histories in `tests/lock_histories` do not show.

mod closing;
mod fence;
mod groups;
mod hold_off;
mod interventions;
mod reentrancy;
mod reserved;
mod semaphore;
mod size;
mod slots;
mod time;
mod turns;

use super::*;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

const TTL_MS: u64 = 10_000;

/// One key, a clock, and what has happened.
struct World {
    state: LockState,
    now: Timestamp,
    terms: Terms,
    events: Vec<Event>,
    requests: u64,
}

fn world() -> World {
    let now = Timestamp::from_ms(1_700_000_000_000);
    World { state: LockState::default(), now, terms: Terms::FREE, events: Vec::new(), requests: 0 }
}

/// A client that waits for its answer.
struct Open;

impl ReplyHandle for Open {
    fn is_closed(&self) -> bool {
        false
    }
}

/// The request with other terms.
fn with(mut request: Acquire, change: impl FnOnce(&mut LeaseTerms)) -> Acquire {
    change(&mut request.lease);
    request
}

impl World {
    fn run(&mut self, command: Command) -> Outcome {
        let before = self.state.clone();
        let done = step(&mut self.state, &command, self.now, self.terms);
        assert_eq!(done.changed, self.state != before, "`changed` must be true to {command:?}");
        self.events.extend(done.events);
        done.outcome
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.run(Command::Tick);
    }

    /// A request from a node without other waiters.
    fn request(&mut self, owner: &str, mode: Mode) -> Acquire {
        self.requests += 1;
        let lease_id = LeaseId::parse(&format!("{owner}-{}", self.requests)).unwrap();
        let named = Some(Owner::parse(owner).unwrap());
        Acquire {
            lease: LeaseTerms {
                owner: named,
                demand: Demand::of(mode),
                reentrant: true,
                ..LeaseTerms::new(lease_id, TTL_MS)
            },
            node: NodeId::new(owner),
            position: Position { priority: 1, arrival: self.now, serial: self.requests },
            precedence: Precedence::ByTurns,
        }
    }

    fn acquire(&mut self, owner: &str, mode: Mode) -> Outcome {
        let request = self.request(owner, mode);
        self.run(Command::Acquire(request))
    }

    fn hold(&mut self, owner: &str, mode: Mode) -> Lease {
        let request = self.request(owner, mode);
        self.hold_as(request)
    }

    /// A lease with other terms.
    fn hold_with(&mut self, owner: &str, mode: Mode, change: impl FnOnce(&mut LeaseTerms)) -> Lease {
        self.hold_of(|world| with(world.request(owner, mode), change))
    }

    fn hold_of(&mut self, request: impl FnOnce(&mut Self) -> Acquire) -> Lease {
        let request = request(self);
        self.hold_as(request)
    }

    fn hold_as(&mut self, request: Acquire) -> Lease {
        match self.run(Command::Acquire(request)) {
            Outcome::Granted(grant) => grant.lease,
            outcome => panic!("not granted: {outcome:?}"),
        }
    }

    fn renew(&mut self, lease: &Lease) -> Outcome {
        self.run(Command::Renew(Renew::new(lease.lease_id.clone(), None)))
    }

    fn release(&mut self, lease: &Lease) -> Outcome {
        self.run(Command::Release(Release { lease_id: lease.lease_id.clone() }))
    }

    fn give_back(&mut self, lease: &Lease) -> bool {
        let before = self.state.holders.len();
        self.run(Command::GiveBack(GiveBack {
            lease_id: lease.lease_id.clone(),
            grant: lease.grant_id(),
            is_uncertain: false,
        }));
        self.state.holders.len() < before
    }

    /// Publishes the turn of a node that has only this waiter.
    fn publish(&mut self, request: &Acquire) {
        let turn = Turn::of(request, 1, self.now.plus_ms(TURN_MS));
        self.run(Command::Publish(turn.node.clone(), vec![turn]));
    }

    fn wait(&mut self, owner: &str, mode: Mode) -> Acquire {
        let request = self.request(owner, mode);
        assert!(matches!(self.run(Command::Acquire(request.clone())), Outcome::Refused(_)));
        self.publish(&request);
        request
    }

    fn next(&self) -> Option<&str> {
        self.state.admissible_turn(self.now).map(|turn| turn.node.as_str())
    }

    fn happened(&self, kind: EventKind) -> Vec<&Event> {
        self.events.iter().filter(|event| event.kind == kind).collect()
    }
}

fn note(reason: &str) -> Note {
    Note { reason: Some(reason.into()), by: Some(Owner::parse("admin").unwrap()) }
}

const HELD: Outcome = Outcome::Refused(Refusal::Held);
const RESERVED: Outcome = Outcome::Refused(Refusal::Reserved);

fn why_lost(outcome: Outcome) -> Option<EndReason> {
    match outcome {
        Outcome::LeaseLost(lost) => lost.why,
        outcome => panic!("not lost: {outcome:?}"),
    }
}
