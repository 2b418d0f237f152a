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

#[test]
fn a_token_that_was_never_granted_does_not_pass() {
    let mut world = world();
    assert_eq!(world.fence(0), Outcome::StaleToken { current: 0 });
    assert_eq!(world.fence(7), Outcome::StaleToken { current: 0 });
    let lease = world.hold("ann", Mode::Exclusive);
    assert_eq!(world.fence(lease.token + 1), Outcome::StaleToken { current: lease.token });
}

#[test]
fn all_who_share_the_lock_pass_whatever_the_order_of_their_tokens() {
    let mut world = world();
    let first = world.hold("ann", Mode::Shared);
    let second = world.hold("ben", Mode::Shared);
    assert_eq!(world.fence(second.token), Outcome::Fenced);
    assert_eq!(world.fence(first.token), Outcome::Fenced);
    assert_eq!(world.state.fence(), second.token);
    world.release(&first);
    assert_eq!(world.fence(first.token), Outcome::StaleToken { current: second.token });
}

#[test]
fn after_an_upgrade_both_tokens_pass_until_their_leases_end() {
    let mut world = world();
    let shared = world.hold("ann", Mode::Shared);
    let alone = world.hold("ann", Mode::Exclusive);
    assert_eq!(world.fence(alone.token), Outcome::Fenced);
    assert_eq!(world.fence(shared.token), Outcome::Fenced);
    world.release(&shared);
    assert!(matches!(world.fence(shared.token), Outcome::StaleToken { .. }));
}
