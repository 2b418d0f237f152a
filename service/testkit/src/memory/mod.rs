//! States in the test's memory: the reference that the stores are compared with, and the database of simulations.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::{Event, LockState, NodeId};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use tokio::sync::{OwnedMutexGuard, mpsc};

use latchgate_node::store::documents::{DocumentStore, StoredDocument};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Reading};
use latchgate_node::store::{
    Change, Collected, CommitResult, Committed, CopiedState, DumpPage, Epoch, EventCursor, EventQuery, Listing, Loaded,
    LockedStates, LoggedEvent, OperationPage, Page, RecordStore, RowState, Rows, Rule, Store, StoreError, Stored,
    Version, WAKE_UPS_MAX, WakeUp, page_of, position_after, read_position,
};
use tokio::time::Instant;

/// What a store had at some time.
pub struct Saved(Tables);

/// Its clock follows tokio's, so that tests can pause it. Clones share their states, as nodes share a database.
#[derive(Clone)]
pub struct MemoryStore {
    started_at: Timestamp,
    started: Instant,
    stepped_ms: Arc<AtomicI64>,
    /// Held while states are locked. Every commit takes it.
    exclusive: Arc<tokio::sync::Mutex<()>>,
    tables: Arc<Mutex<Tables>>,
    listeners: Arc<Mutex<HashMap<NodeId, Vec<mpsc::Sender<WakeUp>>>>>,
}

#[derive(Clone, Default)]
pub struct Tables {
    locks: BTreeMap<Address, Row<LockState>>,
    operations: BTreeMap<Address, Row<Option<OperationRecord>>>,
    /// By number.
    events: BTreeMap<u64, LoggedEvent>,
    last_event: u64,
    engine: MemoryRecord,
    documents: HashMap<String, (u64, String)>,
}

impl Tables {
    fn log(&mut self, address: &Address, event: &Event) {
        self.last_event += 1;
        let cursor = EventCursor::from_number(self.last_event);
        let logged = LoggedEvent { cursor, address: address.clone(), event: event.clone() };
        self.events.insert(self.last_event, logged);
    }
}

/// An engine record in memory.
#[derive(Clone, Default)]
pub(super) struct MemoryRecord {
    reading: Reading,
    /// Which server the record was written on, and which one answers now.
    written_on: u64,
    server: u64,
}

impl MemoryRecord {
    pub(super) fn read(&self, now: Timestamp) -> Reading {
        let is_after_fail_over = self.reading.record.is_some() && self.written_on != self.server;
        Reading { now, is_after_fail_over, server: self.server.to_string(), ..self.reading.clone() }
    }

    pub(super) fn write(&mut self, read: &Reading, next: &EngineRecord) -> bool {
        let is_unchanged = self.reading.revision == read.revision && self.server.to_string() == read.server;
        if is_unchanged {
            self.written_on = self.server;
            let (record, revision) = (Some(next.clone()), rand::random_range(1..1 << 53));
            self.reading = Reading { record, revision, ..Reading::default() };
        }
        is_unchanged
    }

    pub(super) fn is_in_force(&self, state: EngineState, epoch: Epoch) -> bool {
        self.written_on == self.server && self.reading.is(state) && self.reading.epoch() == epoch
    }
}

/// A kind of rows that the store has a table for.
pub trait InMemory: RowState {
    fn rows(tables: &Tables) -> &BTreeMap<Address, Row<Self>>;
    fn rows_mut(tables: &mut Tables) -> &mut BTreeMap<Address, Row<Self>>;
}

impl InMemory for LockState {
    fn rows(tables: &Tables) -> &BTreeMap<Address, Row<Self>> {
        &tables.locks
    }

    fn rows_mut(tables: &mut Tables) -> &mut BTreeMap<Address, Row<Self>> {
        &mut tables.locks
    }
}

impl InMemory for Option<OperationRecord> {
    fn rows(tables: &Tables) -> &BTreeMap<Address, Row<Self>> {
        &tables.operations
    }

    fn rows_mut(tables: &mut Tables) -> &mut BTreeMap<Address, Row<Self>> {
        &mut tables.operations
    }
}

#[derive(Clone)]
pub struct Row<S> {
    stored: Stored<S>,
    notice_at: Option<Timestamp>,
    keep_until: Timestamp,
}

impl Default for MemoryStore {
    #[allow(clippy::disallowed_methods, reason = "it is the clock of a store")]
    fn default() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(Timestamp::from_ms(ms(since_epoch)))
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl MemoryStore {
    /// An empty store whose clock shows `now`, for simulations with a clock of their own.
    pub fn starting_at(now: Timestamp) -> Self {
        let (stepped_ms, exclusive, tables, listeners) = Default::default();
        Self { started_at: now, started: Instant::now(), stepped_ms, exclusive, tables, listeners }
    }

    /// Loses all states, events and the engine record, as a store does whose data was deleted.
    pub fn forget(&self) {
        *self.tables() = Tables::default();
    }

    /// All that it has now.
    pub fn save(&self) -> Saved {
        Saved(self.tables().clone())
    }

    /// Another server takes over, or this one restarts: with what was saved.
    pub fn fail_over(&self, saved: Saved) {
        let mut tables = self.tables();
        let server = tables.engine.server + 1;
        *tables = saved.0;
        tables.engine.server = server;
    }

    /// Sets its clock, ahead or back.
    pub fn step_clock(&self, by_ms: i64) {
        self.stepped_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    fn now(&self) -> Timestamp {
        let now = self.started_at.plus_ms(ms(self.started.elapsed()));
        Timestamp::from_ms(now.as_ms().saturating_add_signed(self.stepped_ms.load(Ordering::Relaxed)))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tables, if the store is active in this epoch.
    fn active(&self, epoch: Epoch) -> Result<MutexGuard<'_, Tables>, StoreError> {
        let tables = self.tables();
        if tables.engine.is_in_force(EngineState::Active, epoch) { Ok(tables) } else { Err(StoreError::EpochOver) }
    }

    fn write<S: InMemory>(&self, now: Timestamp, changes: &[Change<S>], rule: Rule) -> Result<Committed, StoreError> {
        let mut tables = self.active(changes.first().map(|change| change.epoch).unwrap_or_default())?;
        let store_now = self.now();
        if store_now.ms_apart(now) > CLOCK_BOUND_MS {
            return Ok(Committed { now: store_now, result: CommitResult::ClockOff, busy: Vec::new() });
        }
        let holds = |tables: &Tables, change: &Change<S>| {
            S::rows(tables).get(&change.address).map_or(Version::ABSENT, |row| row.stored.version) == change.expected
        };
        if rule == Rule::AllOrNone && !changes.iter().all(|change| holds(&tables, change)) {
            let result = CommitResult::Checked(vec![None; changes.len()]);
            return Ok(Committed { now: store_now, result, busy: Vec::new() });
        }
        let write = |change: &Change<S>| {
            if !holds(&tables, change) {
                return None;
            }
            let version = change.expected.next(now);
            let stored = Stored { version, state: change.state.clone() };
            let row = Row { stored, notice_at: change.notice_at, keep_until: change.keep_until };
            S::rows_mut(&mut tables).insert(change.address.clone(), row);
            for event in &change.events {
                tables.log(&change.address, event);
            }
            Some(version)
        };
        let versions = changes.iter().map(write).collect();
        Ok(Committed { now: store_now, result: CommitResult::Checked(versions), busy: Vec::new() })
    }
}

#[async_trait]
impl RecordStore for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        Ok(self.tables().engine.read(self.now()))
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let _turn = self.exclusive.lock().await;
        Ok(self.tables().engine.write(read, next))
    }
}

#[async_trait]
impl DocumentStore for MemoryStore {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        let (version, text) = self.tables().documents.get(name).cloned().unzip();
        let version = version.unwrap_or_default();
        Ok(StoredDocument { version, text: text.filter(|_| version != known) })
    }

    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        (version, text): (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        if fence.is_some_and(|(state, epoch)| !tables.engine.is_in_force(state, epoch)) {
            return Err(StoreError::EpochOver);
        }
        let is_unchanged = tables.documents.get(name).map_or(0, |(version, _)| *version) == expected;
        if is_unchanged {
            tables.documents.insert(name.to_owned(), (version, text.to_owned()));
        }
        Ok(is_unchanged)
    }
}

/// The rows of a page: from a position on.
type Range = (Bound<Address>, Bound<Address>);

fn after(from: Option<&str>) -> Result<Range, StoreError> {
    let (app, key) = read_position(from)?;
    let address = || Some(Address { app: App::parse(&app).ok()?, key: Key::parse(&key).ok()? });
    Ok((address().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
}

/// The position of the next page, if this one is full.
fn next_of<T>(page: &[(Address, T)], limit: usize) -> Option<String> {
    let (last, _) = page.last().filter(|_| page.len() == limit)?;
    Some(position_after(last.app.as_str(), last.key.as_str()))
}

#[async_trait]
impl<S: InMemory> Rows<S> for MemoryStore {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        let tables = self.active(epoch)?;
        let rows = S::rows(&tables);
        let state = |address| rows.get(address).map_or_else(Stored::default, |row| row.stored.clone());
        Ok(Loaded { states: addresses.iter().map(state).collect(), now: self.now() })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        let _turn = self.exclusive.lock().await;
        self.write(now, changes, Rule::Each)
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        let turn = Arc::clone(&self.exclusive).lock_owned().await;
        let loaded = Rows::<S>::load(self, epoch, addresses).await?;
        Ok((loaded, Box::new(LockedTables { store: self.clone(), _turn: turn })))
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        let mut tables = self.active(epoch)?;
        let (rows, now) = (S::rows_mut(&mut tables), self.now());
        let page = rows.range(after(from)?).take(limit).map(|(address, row)| (address.clone(), row.clone()));
        let page: Vec<(Address, Row<S>)> = page.collect();
        let mut collected = Collected { next: next_of(&page, limit), ..Collected::default() };
        for (address, row) in page {
            let token = row.stored.state.token();
            match row.notice_at {
                Some(at) if at < now => collected.due.push(address),
                None if row.keep_until < now && token < epoch.token_min() => {
                    rows.remove(&address);
                    collected.removed += 1;
                }
                None if row.keep_until < now => collected.token_kept = collected.token_kept.max(Some(token)),
                _ => {}
            }
        }
        Ok(collected)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError> {
        let tables = self.tables();
        let rows = S::rows(&tables);
        let page = rows.range(after(from)?).take(limit);
        let copied = |(address, row): (&Address, &Row<S>)| CopiedState {
            address: address.clone(),
            state: row.stored.state.clone(),
            notice_at: row.notice_at,
            keep_until: row.keep_until,
        };
        Ok(page_of(page.map(copied).map(Ok).collect(), limit))
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        if !tables.engine.is_in_force(EngineState::Filling, epoch) {
            return Ok(false);
        }
        let version = Version::ABSENT.next(self.now());
        for CopiedState { address, state, notice_at, keep_until } in states {
            let stored = Stored { version, state: state.clone() };
            let row = Row { stored, notice_at: *notice_at, keep_until: *keep_until };
            S::rows_mut(&mut tables).insert(address.clone(), row);
        }
        tables.engine.reading.copied = tables.engine.reading.copied.max(copied);
        Ok(true)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let tables = self.tables();
        let rows = tables.locks.iter().filter(|(at, _)| at.app == *app && at.key.as_str().starts_with(prefix));
        let rows = rows.filter(|(at, _)| after.is_none_or(|after| at.key > *after));
        Ok(rows.map(|(at, row)| (at.key.clone(), Some(row.stored.state.clone()))).take(limit).collect())
    }

    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError> {
        listing.bounds()?;
        let (tables, now) = (self.tables(), self.now());
        let rows = tables.operations.range(after(listing.cursor.as_deref())?);
        let of_app = rows.filter(|(address, _)| listing.app.as_ref().is_none_or(|app| address.app == *app));
        let records = of_app.filter_map(|(address, row)| {
            let record = row.stored.state.as_ref().filter(|record| listing.filter.admits(record, now))?;
            Some((address.clone(), Some(record.without_payload())))
        });
        let records: Vec<_> = records.take(listing.limit).collect();
        let next = next_of(&records, listing.limit);
        Ok(OperationPage { records, next })
    }

    /// It has no record that cannot be decoded.
    async fn discard(&self, _: Epoch, _: &Address) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError> {
        let tables = self.tables();
        let mut apps = tables.locks.keys().map(|address| address.app.as_str());
        Ok(apps.find(|app| *app > after).map(str::to_owned))
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut tables = self.active(epoch)?;
        for (address, event) in events {
            tables.log(address, event);
        }
        Ok(())
    }

    async fn events(
        &self,
        EventQuery { app, watched, after, limit }: EventQuery<'_>,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let tables = self.tables();
        let page = tables.events.range((Bound::Excluded(after.number), Bound::Unbounded)).take(limit);
        let page: Vec<&LoggedEvent> = page.map(|(_, logged)| logged).collect();
        let last = page.last().map_or(after, |logged| logged.cursor);
        let is_wanted = |address: &Address| app.is_none_or(|app| address.app == *app) && watched.includes(&address.key);
        Ok((page.into_iter().filter(|logged| is_wanted(&logged.address)).cloned().collect(), last))
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        Ok(EventCursor::from_number(self.tables().last_event))
    }

    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError> {
        let tables = self.tables();
        let of_key = tables.events.range(..before.number).rev().map(|(_, logged)| logged);
        let of_key = of_key.filter(|logged| logged.address == *key);
        Ok(of_key.take(limit).cloned().collect())
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let older = tables.events.iter().take(limit).rfind(|(_, logged)| logged.event.at < older_than);
        let Some(last) = older.map(|(number, _)| *number) else { return Ok(0) };
        let left = tables.events.split_off(&(last + 1));
        Ok(std::mem::replace(&mut tables.events, left).len() as u64)
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, address) in wake_ups {
            for listener in listeners.get(node).into_iter().flatten() {
                // If the channel is full, the wake-up is lost. The node still finds the key when it refreshes its turn.
                let _ = listener.try_send(WakeUp::Key(address.clone()));
            }
        }
        Ok(())
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let of_node = listeners.entry(node.clone()).or_default();
        of_node.retain(|listener| !listener.is_closed());
        of_node.push(sender);
        Ok(receiver)
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let is_filling = tables.engine.is_in_force(EngineState::Filling, epoch) && tables.engine.reading.copied == 0;
        if is_filling {
            tables.locks.clear();
            tables.operations.clear();
            tables.events.clear();
        }
        Ok(is_filling)
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        self.ping().await
    }
}

struct LockedTables {
    store: MemoryStore,
    _turn: OwnedMutexGuard<()>,
}

#[async_trait]
impl<S: InMemory> LockedStates<S> for LockedTables {
    async fn commit(
        self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        self.store.write(now, changes, rule)
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}
