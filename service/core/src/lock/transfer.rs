//! Copying a state to another store, which has another clock.

use super::recent::Recent;
use super::state::LockState;
use crate::time::Timestamp;

impl LockState {
    /// The state for another store, whose clock shows `by_ms` more and which has the state `there` now. Turns are left out:
    /// the nodes publish them again. Neither the token nor the fence falls.
    #[must_use]
    pub fn carried(&self, by_ms: i64, there: &Self) -> Self {
        let moved = |at: Timestamp| Timestamp::from_ms(at.as_ms().saturating_add_signed(by_ms));
        let mut state = self.clone();
        state.turns.clear();
        state.token = state.token.max(there.token);
        state.fence = state.fence.max(there.fence);
        state.delay_until = state.delay_until.map(moved);
        state.kept.iter_mut().for_each(|kept| kept.until = moved(kept.until));
        if let Some(closing) = &mut state.closed {
            (closing.since, closing.until) = (moved(closing.since), closing.until.map(moved));
        }
        for lease in &mut state.holders {
            lease.granted_at = moved(lease.granted_at);
            lease.expires_at = moved(lease.expires_at);
            lease.hold_until = lease.hold_until.map(moved);
            if let Some(revocation) = &mut lease.revocation {
                revocation.deadline = moved(revocation.deadline);
            }
        }
        state.recent.move_times(moved);
        state
    }

    /// The state without leases, turns and memory. It keeps token and fence, so that no token is granted twice.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self { token: self.token, fence: self.fence, recent: Recent::default(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Acquire, Command, LeaseId, LeaseTerms, NodeId, Outcome, Position, QueuePosition, Release, Revoke, Terms, step,
    };
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    fn id(text: &str) -> LeaseId {
        LeaseId::parse(text).unwrap()
    }

    fn held(lease: &str) -> LockState {
        let mut state = LockState::default();
        let acquire = Acquire {
            lease: LeaseTerms {
                delay_ms: 7,
                max_hold_ms: Some(60_000),
                warn_after_ms: Some(30_000),
                ..LeaseTerms::new(id(lease), 30_000)
            },
            node: NodeId::new("n"),
            position: Position { priority: 1, arrival: NOW, serial: 0 },
            queue_position: QueuePosition::Unknown,
        };
        assert!(matches!(step(&mut state, &Command::Acquire(acquire), NOW, Terms::FREE).outcome, Outcome::Granted(_)));
        state
    }

    #[test]
    fn every_time_moves_with_the_clock_and_nothing_else_changes() {
        let mut state = held("a");
        let revoke = Revoke { note: super::super::Note::default(), grace_ms: 5_000, token: None };
        let _ = step(&mut state, &Command::Revoke(revoke), NOW, Terms::FREE);
        let there = state.carried(250, &LockState::default());
        let (before, after) = (&state.holders()[0], &there.holders()[0]);
        assert_eq!(after.expires_at, before.expires_at.plus_ms(250));
        assert_eq!(after.granted_at, before.granted_at.plus_ms(250));
        assert_eq!(after.hold_until, before.hold_until.map(|at| at.plus_ms(250)));
        let deadline = |lease: &super::super::Lease| lease.revocation.as_ref().unwrap().deadline;
        assert_eq!(deadline(after), deadline(before).plus_ms(250));
        assert_eq!(there.carried(-250, &LockState::default()), state);
    }

    #[test]
    fn a_lease_that_has_ended_is_remembered_and_tokens_do_not_fall() {
        let mut state = held("a");
        let _ = step(&mut state, &Command::Release(Release { lease_id: id("a") }), NOW, Terms::FREE);
        let there = LockState { token: state.token + 9, fence: 3, ..LockState::default() };
        let carried = state.carried(0, &there);
        assert!(carried.knows(&id("a")));
        assert_eq!((carried.token, carried.fence), (state.token + 9, 3));
        assert_eq!(held("b").carried(0, &LockState::default()).token, held("b").token);
    }

    #[test]
    fn an_emptied_state_holds_nothing_and_keeps_its_token() {
        let state = held("a");
        let emptied = state.emptied();
        assert!(emptied.holders().is_empty() && !emptied.knows(&id("a")));
        assert_eq!(emptied.token(), state.token());
    }
}
