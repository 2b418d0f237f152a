//! Events over switches and losses. A cursor names its era ([`EngineRecord::era`]), so that a reader reads an engine that was left to
//! its end and then goes on in the one in use. What cannot be read is never passed over silently.

use std::sync::Arc;

use latchgate_core::Address;

use super::pair::EngineInUse;
use super::pair::EngineSet;
use super::slot::Slot;
use crate::store::engine_record::{EngineRecord, EngineState};
use crate::store::{EventCursor, EventQuery, LoggedEvent, Store, StoreError};

pub struct EventPage {
    pub events: Vec<LoggedEvent>,
    /// The position of the next page.
    pub next: EventCursor,
    /// Events between the position that was asked for and `next` cannot be read. Then the page has none.
    pub is_dropped: bool,
}

impl EventPage {
    fn of(events: Vec<LoggedEvent>, next: EventCursor, era: u64) -> Self {
        Self { events: of_era(era, events), next: next.of_era(era), is_dropped: false }
    }

    fn dropped(next: EventCursor, era: u64) -> Self {
        Self { is_dropped: true, ..Self::of(Vec::new(), next, era) }
    }
}

impl EngineSet {
    /// As [`Store::events`], over switches and losses.
    ///
    /// # Errors
    /// Those of the engine, and `Unavailable` while it is not known which one is in use. Then the caller asks again from the same
    /// position.
    pub async fn events(&self, query: EventQuery<'_>) -> Result<EventPage, StoreError> {
        let (era, position) = (query.after.era(), query.after.of_era(0));
        let used = self.used_since(era).await?;
        if era != used.era {
            return self.events_of_earlier(&used, query).await;
        }
        let (events, next) = used.store.events(EventQuery { after: position, ..query }).await?;
        let is_at_end = next == position;
        let last = if is_at_end { used.store.last_event().await? } else { next };
        if is_at_end && position <= last {
            return Ok(EventPage::of(events, next, used.era));
        }
        // If this node was paused, the engine may have been left, emptied and used again.
        let record = used.store.read_record().await?.record.filter(|record| record.era() == used.era);
        match record.map(|record| record.state) {
            // The store has lost its last events.
            Some(EngineState::Active) if is_at_end => Ok(EventPage::dropped(last, used.era)),
            Some(EngineState::Active | EngineState::Moving | EngineState::Retired) if !is_at_end => {
                Ok(EventPage::of(events, next, used.era))
            }
            _ => {
                self.refresh(used.epoch).await;
                Err(StoreError::EpochOver)
            }
        }
    }

    /// The position for a reader of future events.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let used = self.in_use()?;
        Ok(used.store.last_event().await?.of_era(used.era))
    }

    /// As [`Store::history`], of the engine in use, or of the one that `before` names. `None` if that cannot be read any more.
    ///
    /// # Errors
    /// Those of the engine, and `Unavailable` while it is not known which one is in use.
    pub async fn history(
        &self,
        key: &Address,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Option<Vec<LoggedEvent>>, StoreError> {
        let used = self.used_since(before.map_or(0, EventCursor::era)).await?;
        let era = before.map_or(used.era, EventCursor::era);
        let store = if era == used.era {
            Arc::clone(&used.store)
        } else {
            let frozen = self.frozen(&used).await?.filter(|(_, record)| record.era() == era);
            let Some((store, _)) = frozen else { return Ok(None) };
            store
        };
        let events = store.history(key, before.map_or(EventCursor::END, |before| before.of_era(0)), limit).await?;
        Ok(Some(of_era(era, events)))
    }

    /// The engine in use. If a cursor is of a later era, this node may not know yet of a switch, so it reads both records.
    async fn used_since(&self, era: u64) -> Result<Arc<EngineInUse>, StoreError> {
        let used = self.in_use()?;
        if era <= used.era {
            return Ok(used);
        }
        self.inner.poll_records(&mut *self.inner.poll_lock.lock().await).await;
        let used = self.in_use()?;
        let have_all_answered = self.view().engines.iter().all(|engine| engine.reading.is_ok());
        if era <= used.era || have_all_answered { Ok(used) } else { Err(self.unavailable()) }
    }

    /// The cursor is of an era before that of the engine in use.
    async fn events_of_earlier(&self, used: &Arc<EngineInUse>, query: EventQuery<'_>) -> Result<EventPage, StoreError> {
        let after = query.after;
        let (position, frozen) = (after.of_era(0), self.frozen(used).await?);
        let (store, since, era) = match frozen {
            Some((store, record)) if record.era() == after.era() => {
                let (events, next) = self.in_time(store.events(EventQuery { after: position, ..query })).await?;
                // It may have been emptied meanwhile.
                if self.frozen(used).await?.is_none_or(|(_, now)| now != record) {
                    return Err(StoreError::EpochOver);
                }
                return Ok(match (next == position, record.epoch == used.since && used.era == used.since.number()) {
                    (false, _) => EventPage::of(events, next, after.era()),
                    // The engine in use was cleared before the switch to it.
                    (true, true) => EventPage::of(events, EventCursor::START, used.era),
                    (true, false) => EventPage::dropped(EventCursor::START, used.era),
                });
            }
            Some((store, record)) if record.era() > after.era() => (store, record.since, record.era()),
            _ => (Arc::clone(&used.store), used.since, used.era),
        };
        if after.era() < since.number() {
            return Ok(EventPage::dropped(EventCursor::START, era));
        }
        let last = self.in_time(store.last_event()).await?;
        // The other engine may have been used in between, and have lost what it had: then the position is none of this store.
        let is_of_store = after.era() == since.number() || self.inner.slots.len() == 1;
        // After a loss, the store may still have what comes after the position.
        Ok(EventPage::dropped(if is_of_store { position.min(last) } else { last }, era))
    }

    /// The other engine of the pair, if it was left by a planned switch and has had every event since.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer now and did at the last poll.
    async fn frozen(&self, used: &Arc<EngineInUse>) -> Result<Option<(Arc<dyn Store>, EngineRecord)>, StoreError> {
        let other = 1 - used.index;
        let Some(store) = self.inner.slots.get(other).and_then(Slot::if_open) else { return Ok(None) };
        let reading = match self.in_time(store.read_record()).await {
            Ok(reading) => reading,
            Err(error) => {
                let has_answered = self.view().engines.get(other).is_some_and(|engine| engine.reading.is_ok());
                return if has_answered { Err(error) } else { Ok(None) };
            }
        };
        let is_whole = |record: &EngineRecord| {
            record.state == EngineState::Retired && record.copied != u64::MAX && !reading.is_after_fail_over
        };
        let record = reading.record.clone().filter(is_whole);
        Ok(record.map(|record| (Arc::clone(store), record)))
    }
}

fn of_era(era: u64, events: Vec<LoggedEvent>) -> Vec<LoggedEvent> {
    let of_era = |logged: LoggedEvent| LoggedEvent { cursor: logged.cursor.of_era(era), ..logged };
    events.into_iter().map(of_era).collect()
}
