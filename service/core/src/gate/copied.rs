//! A record is copied from the engine that the gate is switched from.

use super::{Ending, OperationRecord, Outcome, State, Step};

/// The record that is here already is an equal one, which another node has copied, or that of a durable operation, which no switch moves:
/// callers have asked for both durabilities. Then a success counts, and stays where it is looked for either way.
pub(super) fn put(here: OperationRecord, mut copied: OperationRecord) -> Step {
    if here.state() == State::Succeeded || copied.state() != State::Succeeded {
        return Step::unchanged(here, Outcome::Copied);
    }
    if let Some(holder) = here.stamp() {
        copied.remember(holder, Ending::Superseded);
    }
    Step::changed(OperationRecord { durability: here.durability, ..copied }, Outcome::Copied)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use crate::time::Timestamp;

    fn record(stamp: u128, has_succeeded: bool) -> OperationRecord {
        let claim = Claim {
            operation: OperationName::parse("charge").unwrap(),
            sha256: Sha256Digest::of(b"contents"),
            checked: None,
            stamp: Stamp::from_bits(stamp),
            attempt_id: None,
            lease_ms: 1_000,
            on_expiry: OnExpiry::Block,
            durability: Durability::Durable,
            retention: Retention::default(),
            ends_in_ms: None,
            description: None,
            waits_until: None,
            hold_off: HoldOff::default(),
        };
        let started = step(None, Command::Pre(claim), Timestamp::default()).record;
        if !has_succeeded {
            return started.unwrap();
        }
        let post = Post::new(Stamp::from_bits(stamp), Report::Success);
        step(started, Command::Post(post), Timestamp::default()).record.unwrap()
    }

    #[test]
    fn a_copy_that_is_there_stays_and_only_a_success_replaces_what_is_none() {
        let (started, succeeded) = (record(1, false), record(1, true));
        for (here, copied) in [(&started, &started), (&succeeded, &succeeded), (&succeeded, &started)] {
            let step = put(here.clone(), copied.clone());
            assert_eq!((step.record.as_ref(), step.changed), (Some(here), false));
        }
        let step = put(record(2, false), succeeded.clone());
        let replaced = step.record.filter(|_| step.changed).unwrap();
        assert_eq!(replaced.phase, succeeded.phase);
        assert_eq!(replaced.earlier(Stamp::from_bits(2)).map(|earlier| earlier.ending), Some(Ending::Superseded));
    }
}
