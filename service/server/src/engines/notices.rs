//! What operators should hear about engines. The engine record says what has been written to the event stream, so that other
//! nodes do not write it again. Two nodes that look at the same time may both write it.

use latchgate_core::Timestamp;

use super::engine::Engine;
use super::pair::Engines;
use crate::store::engine_record::{EngineRecord, EngineState, Noticed, Reading};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineNotice {
    /// This engine has replaced the other one of the pair.
    Switched {
        engine: String,
    },
    /// It has begun, or its end has changed.
    HoldOffBegan {
        until: Timestamp,
    },
    HoldOffEnded,
}

/// What no node has written about yet.
pub struct Unnoticed {
    pub notices: Vec<EngineNotice>,
    index: usize,
    reading: Reading,
}

impl<E: ?Sized + Engine> Engines<E> {
    /// What there is to write about the engine in use. `None` if there is nothing.
    pub async fn unnoticed(&self) -> Option<Unnoticed> {
        let index = self.standing()?.index;
        let slot = &self.inner.slots[index];
        let is_news = |reading: &Reading| {
            let record = reading.record.as_ref().filter(|record| record.state == EngineState::Active)?;
            Some(notices(record, &slot.spec.name, reading.now)).filter(|notices| !notices.is_empty())
        };
        // As of the last look; most often it is enough.
        is_news(self.view().engines.get(index)?.reading.as_ref().ok()?)?;
        let reading = slot.read(self.inner.patience).await.ok()?;
        Some(Unnoticed { notices: is_news(&reading)?, index, reading })
    }

    /// They have been written. If the record has changed since, they may be written once more.
    pub async fn mark_noticed(&self, Unnoticed { index, reading, .. }: &Unnoticed) {
        let Some(record) = &reading.record else { return };
        let next = EngineRecord { noticed: noticed(record, reading.now), ..record.clone() };
        if let Err(error) = self.inner.slots[*index].change(self.inner.patience, reading, &next).await {
            tracing::debug!(%error, "the engine record does not say yet that notices were written");
        }
    }
}

fn notices(record: &EngineRecord, engine: &str, now: Timestamp) -> Vec<EngineNotice> {
    let (before, after) = (record.noticed, noticed(record, now));
    let mut notices = Vec::new();
    if after.since > before.since {
        notices.push(EngineNotice::Switched { engine: engine.to_owned() });
    }
    if after.hold_off_until != before.hold_off_until {
        notices.push(match after.hold_off_until {
            Some(until) => EngineNotice::HoldOffBegan { until },
            None => EngineNotice::HoldOffEnded,
        });
    }
    notices
}

/// What the record will say once all has been written.
fn noticed(record: &EngineRecord, now: Timestamp) -> Noticed {
    Noticed { since: record.since, hold_off_until: Some(record.hold_off_until).filter(|until| *until > now) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::engine_record::Epoch;

    #[test]
    fn each_switch_and_each_beginning_and_end_of_a_hold_off_is_news_once() {
        let at = Timestamp::from_ms;
        let mut record = EngineRecord::new(EngineState::Active, Epoch::from_number(1), &[], 60_000);
        let news = |record: &mut EngineRecord, now: u64| {
            let news = notices(record, "spare", at(now));
            record.noticed = noticed(record, at(now));
            news
        };
        assert_eq!(news(&mut record, 10), []);
        record.since = Epoch::from_number(5);
        record.hold_off_until = at(100);
        let switched = EngineNotice::Switched { engine: "spare".to_owned() };
        assert_eq!(news(&mut record, 20), [switched, EngineNotice::HoldOffBegan { until: at(100) }]);
        assert_eq!(news(&mut record, 30), []);
        record.hold_off_until = at(200);
        assert_eq!(news(&mut record, 40), [EngineNotice::HoldOffBegan { until: at(200) }]);
        assert_eq!(news(&mut record, 200), [EngineNotice::HoldOffEnded]);
        assert_eq!(news(&mut record, 300), []);
    }
}
