//! Examples of what the random histories in `tests/lock_histories` do not show: hold-offs, keys without space, groups without a turn,
//! grants that are much alike, and what stays taken for too long.

mod give_back;
mod groups;
mod hold_off;
mod size;
mod time;

use super::*;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

const TTL_MS: u64 = 10_000;

/// One key and a clock.
struct World {
    state: LockState,
    now: Timestamp,
    terms: Terms,
    requests: u64,
}

fn world() -> World {
    World { state: LockState::default(), now: Timestamp::from_ms(1_700_000_000_000), terms: Terms::FREE, requests: 0 }
}

/// The request with other terms.
fn with(mut request: Acquire, change: impl FnOnce(&mut LeaseTerms)) -> Acquire {
    change(&mut request.lease);
    request
}

impl World {
    fn run(&mut self, command: Command) -> Outcome {
        step(&mut self.state, &command, self.now, self.terms).outcome
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
            queue_position: QueuePosition::Unknown,
        }
    }

    fn acquire(&mut self, owner: &str, mode: Mode) -> Outcome {
        let request = self.request(owner, mode);
        self.run(Command::Acquire(request))
    }

    fn hold(&mut self, owner: &str, mode: Mode) -> Lease {
        self.hold_with(owner, mode, |_| {})
    }

    /// A lease with other terms.
    fn hold_with(&mut self, owner: &str, mode: Mode, change: impl FnOnce(&mut LeaseTerms)) -> Lease {
        let request = with(self.request(owner, mode), change);
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
}
