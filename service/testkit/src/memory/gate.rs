//! Records in the test's memory: the reference that the stores are compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use latchgate_core::Timestamp;
use latchgate_core::gate::{OperationAddress, OperationRecord};
use tokio::sync::mpsc;

use super::{Clock, MemoryRecord};
use latchgate::store::engine_record::{EngineRecord, EngineState, Epoch, Purpose, Reading};
use latchgate::store::gate::{
    At, DumpPage, EXAMINED_MAX, Fence, GateStore, ListError, Listing, Page, Stored, WakeUp, Write, Written,
    fresh_version, gone_before, is_off, page_of, position_after, read_position,
};
use latchgate::store::{RecordStore, StoreError, Version, WAKE_UPS_MAX};

/// Clones share the records, as nodes share a database.
#[derive(Clone)]
pub struct MemoryGateStore {
    shared: Arc<Shared>,
    purpose: Purpose,
}

struct Shared {
    clock: Clock,
    tables: Mutex<Tables>,
    listeners: Mutex<Vec<mpsc::Sender<WakeUp>>>,
}

#[derive(Default)]
struct Tables {
    engine: MemoryRecord,
    durable: MemoryRecord,
    records: BTreeMap<OperationAddress, Stored>,
    /// Records that go by themselves, soonest first.
    ends: BTreeSet<(Timestamp, OperationAddress)>,
}

impl Tables {
    /// # Errors
    /// When the engine record does not say what is required.
    fn check(&self, purpose: Purpose, fence: Fence) -> Result<(), StoreError> {
        let record = if purpose == Purpose::Durable { &self.durable } else { &self.engine };
        let is_met = |(state, epoch)| record.is_in_force(state, epoch);
        if fence.requirement().is_none_or(is_met) { Ok(()) } else { Err(StoreError::EpochOver) }
    }

    fn record(&mut self, purpose: Purpose) -> &mut MemoryRecord {
        if purpose == Purpose::Durable { &mut self.durable } else { &mut self.engine }
    }

    fn put(&mut self, address: &OperationAddress, version: Version, record: Option<&OperationRecord>) {
        let before = match record {
            Some(record) => {
                let stored = Stored { version, record: record.clone() };
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
        Self::with_clock(Clock::start())
    }
}

impl MemoryGateStore {
    /// An empty store whose clock shows `now`, for simulations.
    pub fn starting_at(now: Timestamp) -> Self {
        Self::with_clock(Clock::start_at(now))
    }

    fn with_clock(clock: Clock) -> Self {
        let (tables, listeners) = Default::default();
        Self { shared: Arc::new(Shared { clock, tables, listeners }), purpose: Purpose::Gate }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at<T>(&self, answer: T) -> At<T> {
        At::new(self.shared.clock.now(), answer)
    }

    fn wake(&self, address: &OperationAddress) {
        let listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in listeners.iter() {
            // A full listener misses it. A waiting pre looks again on a timer in any case.
            let _ = listener.try_send(WakeUp::Operation(address.clone()));
        }
    }
}

#[async_trait]
impl RecordStore for MemoryGateStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        Ok(self.tables().record(self.purpose).read(self.shared.clock.now()))
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        Ok(self.tables().record(self.purpose).write(read, next))
    }
}

#[async_trait]
impl GateStore for MemoryGateStore {
    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn for_durable(&self) -> Option<Arc<dyn GateStore>> {
        Some(Arc::new(Self { shared: Arc::clone(&self.shared), purpose: Purpose::Durable }))
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let tables = self.tables();
        tables.check(self.purpose, fence)?;
        Ok(self.at(tables.records.get(address).cloned()))
    }

    async fn write(&self, Write { fence, now, address, change }: Write<'_>) -> Result<At<Written>, StoreError> {
        let mut tables = self.tables();
        tables.check(self.purpose, fence)?;
        let stored = tables.records.get(address);
        if let (Some(stored), None) = (stored, change.expected) {
            return Ok(self.at(Written::Exists(Box::new(stored.clone()))));
        }
        if is_off(self.shared.clock.now(), now) {
            return Ok(self.at(Written::ClockOff));
        }
        if stored.map(|stored| stored.version) != change.expected {
            return Ok(self.at(Written::Moved));
        }
        let version = fresh_version();
        tables.put(address, version, change.record);
        drop(tables);
        if change.wakes {
            self.wake(address);
        }
        Ok(self.at(Written::Done(version)))
    }

    async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        let (app, id, last_app) = listing.bounds()?;
        let Listing { filter, limit, .. } = listing;
        let (tables, now) = (self.tables(), self.shared.clock.now());
        let mut page = Page::default();
        let place = |address: &OperationAddress| (address.app.as_str().to_owned(), address.id.as_bytes().to_vec());
        let behind = tables.records.iter().skip_while(|(address, _)| place(address) <= (app.clone(), id.clone()));
        let of_app = behind.take_while(|(address, _)| *address.app.as_str() <= *last_app);
        for (examined, (address, stored)) in of_app.enumerate() {
            if filter.admits(&stored.record, now) {
                page.records.push((address.clone(), Some(stored.record.clone())));
            }
            if page.records.len() == limit || examined + 1 == EXAMINED_MAX {
                page.next = Some(position_after(address));
                break;
            }
        }
        Ok(page)
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let bound = gone_before(self.shared.clock.now());
        let over: Vec<_> = tables.ends.iter().take_while(|(end, _)| *end <= bound).take(limit).cloned().collect();
        for (_, address) in &over {
            tables.put(address, fresh_version(), None);
        }
        Ok(over.len() as u64)
    }

    /// All records can be decoded.
    async fn discard(&self, _fence: Fence, _address: &OperationAddress) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let mut listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(sender);
        Ok(receiver)
    }

    /// The place is the last address of the page.
    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let tables = self.tables();
        let after = from.map(read_position).transpose()?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let moved =
            tables.records.range((from, Bound::Unbounded)).filter(|(_, stored)| stored.record.is_moved_by_a_switch());
        let page = moved.take(limit).map(|(address, stored)| (address.clone(), Some(stored.clone())));
        Ok(page_of(page.collect(), limit))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        if tables.check(self.purpose, Fence::Filling(epoch)).is_err() {
            return Ok(false);
        }
        let goes = |(_, stored): &(&OperationAddress, &Stored)| stored.record.is_moved_by_a_switch();
        let gone: Vec<_> = tables.records.iter().filter(goes).map(|(address, _)| address.clone()).collect();
        gone.iter().for_each(|address| tables.put(address, fresh_version(), None));
        Ok(true)
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let is_filling = tables.engine.is_in_force(EngineState::Filling, epoch);
        if is_filling {
            tables.engine.count(copied);
        }
        Ok(is_filling)
    }
}
