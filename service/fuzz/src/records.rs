//! Records of operations as a hostile store may return them: whatever is read, no command panics, a success that has not gone stays
//! unless a person forgets it, and what is written can be read again.

use latchgate_core::Timestamp;
use latchgate_core::gate::{
    Claim, Command, Durability, HoldOff, OnExpiry, OperationName, OperationRecord, Outcome, Phase, Post, Report,
    Retention, Sha256Digest, Stamp, step,
};

use crate::bytes::Bytes;

pub fn record(input: &[u8]) {
    let (json, mut bytes) = Bytes::split(input);
    let Ok(record) = serde_json::from_slice::<OperationRecord>(json) else { return };
    let mut record = Some(record);
    let mut now = Timestamp::from_ms(bytes.number());
    for _ in 0..64 {
        if bytes.is_empty() {
            break;
        }
        now = now.plus_ms(bytes.number() % 100_000);
        let command = command(&mut bytes);
        let (before, shown) = (record.clone(), format!("{command:?}"));
        let done = step(record, command.clone(), now);
        let is_done = |record: &OperationRecord| matches!(record.phase, Phase::Succeeded(_)) && !record.is_gone(now);
        if before.as_ref().is_some_and(is_done) && matches!(command, Command::Pre(_)) {
            assert!(!matches!(done.outcome, Outcome::Go(_)), "a second run by {shown}");
        }
        assert!(done.changed || done.record == before, "a change that is not written, by {shown}");
        record = done.record;
        if let Some(record) = &record {
            let text = serde_json::to_string(record).expect("a record is JSON");
            assert_eq!(&serde_json::from_str::<OperationRecord>(&text).expect("what was written can be read"), record);
        }
    }
}

fn stamp(bytes: &mut Bytes<'_>) -> Stamp {
    Stamp::from_bits(u128::from(bytes.byte() % 4))
}

fn command(bytes: &mut Bytes<'_>) -> Command {
    match bytes.byte() % 8 {
        0 | 1 => Command::Pre(claim(bytes)),
        2 => Command::Await { until: bytes.chance().then(|| Timestamp::from_ms(bytes.number())) },
        3 => Command::Post(post(bytes)),
        4 => Command::Heartbeat { stamp: stamp(bytes), lease_ms: bytes.chance().then(|| bytes.number()) },
        5 => Command::GiveBack(Box::new(claim(bytes))),
        6 => {
            let ran_at = Timestamp::from_ms(bytes.number());
            Command::Enter {
                claim: Box::new(claim(bytes)),
                run: Post { report: Report::Success, ..post(bytes) },
                ran_at,
            }
        }
        _ => Command::Forget { force: bytes.chance() },
    }
}

fn post(bytes: &mut Bytes<'_>) -> Post {
    let report = [Report::Success, Report::Failure, Report::Unknown][usize::from(bytes.byte() % 3)];
    Post { retention: bytes.chance().then(|| retention(bytes)), ..Post::new(stamp(bytes), report) }
}

fn retention(bytes: &mut Bytes<'_>) -> Retention {
    if bytes.chance() { Retention::Forever } else { Retention::Ms(bytes.number()) }
}

fn claim(bytes: &mut Bytes<'_>) -> Claim {
    Claim {
        operation: OperationName::parse("charge").expect("a name"),
        sha256: Sha256Digest::of(b"contents"),
        checked: None,
        is_behind: false,
        stamp: stamp(bytes),
        attempt_id: None,
        lease_ms: bytes.number(),
        on_expiry: if bytes.chance() { OnExpiry::Block } else { OnExpiry::Retry },
        durability: Durability::Fast,
        retention: retention(bytes),
        ends_in_ms: None,
        description: None,
        waits_until: bytes.chance().then(|| Timestamp::from_ms(bytes.number())),
        hold_off: HoldOff::default(),
    }
}
