//! The fence register.

use super::*;

impl World {
    pub(super) fn fence(&mut self, token: u64) -> Outcome {
        self.run(Command::Fence(token))
    }
}

/// M. Kleppmann's story of 2016.
#[test]
fn a_holder_that_paused_past_its_lease_is_refused_after_the_next_grant() {
    let mut world = world();
    let paused = world.hold("ann", Mode::Exclusive);
    assert_eq!(world.fence(paused.token), Outcome::Fenced);
    world.pass(TTL_MS + CLOCK_BOUND_MS);
    assert_eq!(world.fence(paused.token), Outcome::Fenced, "the lock has not been granted since");
    let next = world.hold("ben", Mode::Exclusive);
    let stale = Outcome::StaleToken { current: next.token };
    assert_eq!(world.fence(paused.token), stale, "even before the next has written");
    assert_eq!(world.fence(next.token), Outcome::Fenced);
    assert_eq!(world.fence(paused.token), stale);
    assert_eq!(world.state.fence(), next.token);
}
