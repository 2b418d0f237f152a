//! Records in this process's memory: for trials, and the oracle that the other stores are compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationId, OperationRecord};
use latchgate_core::{App, Timestamp};
use tokio::sync::mpsc;

use super::{
    At, Change, Claimed, EXAMINED_MAX, Filter, GateStore, ListError, Page, Replaced, Stored, WakeUp, fresh_version,
    gone_before, is_off,
};
use crate::store::clock::ProcessClock;
use crate::store::{Board, StoreError, Version, WAKE_UPS_MAX};

/// Clones share the records, as nodes share a database.
#[derive(Clone)]
pub struct MemoryGateStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: ProcessClock,
    shelf: Mutex<Shelf>,
    board: Mutex<Board>,
    listeners: Mutex<Vec<mpsc::Sender<WakeUp>>>,
}

#[derive(Default)]
struct Shelf {
    records: BTreeMap<OperationAddress, Stored>,
    /// Records that go by themselves, soonest first.
    ends: BTreeSet<(Timestamp, OperationAddress)>,
}

impl Shelf {
    fn put(&mut self, address: &OperationAddress, record: Option<&OperationRecord>) {
        let before = match record {
            Some(record) => {
                let stored = Stored { version: fresh_version(), record: record.clone() };
                self.records.insert(address.clone(), stored)
            }
            None => self.records.remove(address),
        };
        if let Some(end) = before.and_then(|stored| stored.record.goes_at()) {
            self.ends.remove(&(end, address.clone()));
        }
        if let Some(end) = record.and_then(OperationRecord::goes_at) {
            self.ends.insert((end, address.clone()));
        }
    }
}

impl Default for MemoryGateStore {
    fn default() -> Self {
        let (shelf, board, listeners) = Default::default();
        Self { shared: Arc::new(Shared { clock: ProcessClock::start(), shelf, board, listeners }) }
    }
}

impl MemoryGateStore {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shared.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.shared.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at<T>(&self, answer: T) -> At<T> {
        At::new(self.shared.clock.now(), answer)
    }

    fn wake(&self, address: &OperationAddress) {
        let listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in listeners.iter() {
            // A full listener misses it; whoever waits looks again on a timer all the same.
            let _ = listener.try_send(WakeUp::Operation(address.clone()));
        }
    }
}

#[async_trait]
impl GateStore for MemoryGateStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn claim(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        record: &OperationRecord,
    ) -> Result<At<Claimed>, StoreError> {
        let mut shelf = self.shelf();
        if let Some(stored) = shelf.records.get(address) {
            return Ok(self.at(Claimed::Exists(Box::new(stored.clone()))));
        }
        if is_off(self.shared.clock.now(), now) {
            return Ok(self.at(Claimed::ClockOff));
        }
        shelf.put(address, Some(record));
        Ok(self.at(Claimed::Claimed))
    }

    async fn load(&self, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let stored = self.shelf().records.get(address).cloned();
        Ok(self.at(stored))
    }

    async fn replace(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        change: Change<'_>,
    ) -> Result<At<Replaced>, StoreError> {
        let mut shelf = self.shelf();
        if is_off(self.shared.clock.now(), now) {
            return Ok(self.at(Replaced::ClockOff));
        }
        if shelf.records.get(address).map(|stored| stored.version) != Some(change.expected) {
            return Ok(self.at(Replaced::Moved));
        }
        shelf.put(address, change.record);
        drop(shelf);
        if change.wakes {
            self.wake(address);
        }
        Ok(self.at(Replaced::Replaced))
    }

    async fn list(&self, app: &App, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page, ListError> {
        let after = cursor.map(|cursor| cursor.parse::<OperationId>().map_err(|_| ListError::InvalidCursor));
        let from = match after.transpose()? {
            Some(id) => Bound::Excluded(OperationAddress { app: app.clone(), id }),
            None => Bound::Included(OperationAddress { app: app.clone(), id: OperationId::from_bytes([0; 16]) }),
        };
        let (shelf, now) = (self.shelf(), self.shared.clock.now());
        let mut page = Page::default();
        let of_app = shelf.records.range((from, Bound::Unbounded)).take_while(|(address, _)| address.app == *app);
        for (examined, (address, stored)) in of_app.enumerate() {
            if filter.admits(&stored.record, now) {
                page.records.push((address.id, stored.record.clone()));
            }
            if page.records.len() == limit || examined + 1 == EXAMINED_MAX {
                page.next = Some(address.id.to_string());
                break;
            }
        }
        Ok(page)
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        let mut shelf = self.shelf();
        let bound = gone_before(self.shared.clock.now());
        let over: Vec<_> = shelf.ends.iter().take_while(|(end, _)| *end <= bound).take(limit).cloned().collect();
        for (_, address) in &over {
            shelf.put(address, None);
        }
        Ok(over.len() as u64)
    }

    async fn fallbacks(&self, limit: usize) -> Result<Vec<(OperationAddress, Stored)>, StoreError> {
        let shelf = self.shelf();
        let found = shelf
            .records
            .iter()
            .filter(|(_, stored)| stored.record.claimed_in == latchgate_core::gate::Shelf::Fallback);
        Ok(found.take(limit).map(|(address, stored)| (address.clone(), stored.clone())).collect())
    }

    async fn board(&self) -> Result<Board, StoreError> {
        let board = self.board().clone();
        Ok(Board { now: self.shared.clock.now(), ..board })
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        let mut board = self.board();
        if board.version != expected {
            return Ok(None);
        }
        let version = Version::fresh().number();
        *board = Board { version, text: text.to_owned(), ..Board::default() };
        Ok(Some(version))
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let mut listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(sender);
        Ok(receiver)
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shared.clock.now())
    }
}
