//! States of locks as a hostile store may return them: whatever is read, no command panics, no token falls, a grant has a token of its
//! own, and what is written can be read again.

use std::sync::Arc;

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Close, Command, Force, LeaseId, LeaseTerms, LockState, Mode, NodeId, Note, Outcome, Owner, Position,
    QueuePosition, Release, Renew, Revoke, Terms, step,
};

use crate::bytes::Bytes;

pub fn state(input: &[u8]) {
    let (json, mut bytes) = Bytes::split(input);
    let Ok(mut state) = LockState::from_json(json) else { return };
    let mut now = Timestamp::from_ms(bytes.number());
    for _ in 0..64 {
        if bytes.is_empty() {
            break;
        }
        now = now.plus_ms(bytes.number() % 100_000);
        let (command, token) = (command(&mut bytes), state.token());
        let done = step(&mut state, &command, now, Terms::FREE);
        assert!(state.token() >= token, "the token fell from {token} to {} by {command:?}", state.token());
        if let Outcome::Granted(grant) = &done.outcome {
            assert!(grant.lease.token <= state.token(), "{command:?}");
        }
        let text = state.to_json().expect("a state is JSON");
        let read = LockState::from_json(text.as_bytes()).expect("what was written can be read");
        assert_eq!(read, state);
        let _ = (state.idle_from(), state.next_notice(), state.limit_in_force(), state.clone().is_in_use(now));
    }
}

fn lease_id(bytes: &mut Bytes<'_>) -> LeaseId {
    LeaseId::parse(&format!("l{}", bytes.byte() % 4)).expect("plain")
}

fn owner(bytes: &mut Bytes<'_>) -> Option<Owner> {
    bytes.chance().then(|| Owner::parse(&format!("o{}", bytes.byte() % 3)).expect("a name"))
}

fn command(bytes: &mut Bytes<'_>) -> Command {
    let note = Note::default();
    match bytes.byte() % 12 {
        0..4 => Command::Acquire(acquire(bytes)),
        4 => Command::Renew(Renew::new(lease_id(bytes), bytes.chance().then(|| bytes.number()))),
        5 => Command::Release(Release { lease_id: lease_id(bytes) }),
        6 => Command::SetLimit(bytes.chance().then(|| u32::from(bytes.byte()))),
        7 => Command::Revoke(Revoke { note, grace_ms: bytes.number(), token: None }),
        8 => Command::Force(Force { note, token: None }),
        9 => Command::Close(Close {
            reason: Arc::from("r"),
            until: bytes.chance().then(|| Timestamp::from_ms(bytes.number())),
        }),
        10 => Command::Open,
        _ => Command::Fence(bytes.number()),
    }
}

fn acquire(bytes: &mut Bytes<'_>) -> Acquire {
    let mut lease = LeaseTerms::new(lease_id(bytes), bytes.number());
    lease.owner = owner(bytes);
    lease.demand.mode = match bytes.byte() % 3 {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        _ => Mode::Permits(u32::from(bytes.byte()).max(1)),
    };
    lease.demand.limit = (lease.demand.mode.permits() > 0 && bytes.chance()).then(|| u32::from(bytes.byte()).max(1));
    (lease.reentrant, lease.barge) = (bytes.chance(), bytes.chance());
    (lease.delay_ms, lease.min_hold_ms) = (bytes.number(), bytes.number());
    lease.max_hold_ms = bytes.chance().then(|| bytes.number());
    lease.warn_after_ms = bytes.chance().then(|| bytes.number());
    let position = Position {
        priority: 1 + bytes.byte() % 10,
        arrival: Timestamp::from_ms(bytes.number()),
        serial: u64::from(bytes.byte()),
    };
    let queue_position =
        [QueuePosition::Unknown, QueuePosition::First, QueuePosition::NotFirst][usize::from(bytes.byte() % 3)];
    Acquire { lease, node: NodeId::new(if bytes.chance() { "n" } else { "m" }), position, queue_position }
}
