//! States in this process's memory: for trials, and the oracle that the other stores are compared with.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use latchgate_core::lock::{Event, EventKind, LockState, NodeId};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::clock::ProcessClock;
use super::dump::{page_of, read_place};
use super::{
    Board, Change, Collected, CommitResult, Committed, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, Rule, Scope, StoreError, Stored, Version, WAKE_UPS_MAX, WakeUp,
};

/// Clones share the states, as nodes share a database.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: ProcessClock,
    /// Held while states are locked; every commit passes through it.
    exclusive: Arc<tokio::sync::Mutex<()>>,
    tables: Mutex<Tables>,
    listeners: Mutex<HashMap<NodeId, mpsc::Sender<WakeUp>>>,
    secret: OnceLock<Vec<u8>>,
}

#[derive(Default)]
struct Tables {
    rows: BTreeMap<Address, Row>,
    /// By their numbers.
    events: BTreeMap<u64, LoggedEvent>,
    last_event: u64,
    board: Board,
}

impl Tables {
    fn log(&mut self, address: &Address, event: &Event) {
        self.last_event += 1;
        let cursor = EventCursor::from_number(self.last_event);
        let logged = LoggedEvent { cursor, address: address.clone(), event: event.clone() };
        self.events.insert(self.last_event, logged);
    }

    /// Deletes the oldest of the events that are `meant` until one is younger than `bound`.
    fn delete_oldest(&mut self, is_meant: fn(&Event) -> bool, bound: Timestamp, limit: usize) -> u64 {
        let meant = self.events.values().filter(|logged| is_meant(&logged.event));
        let over = meant.take(limit).take_while(|logged| logged.event.at < bound);
        let over: Vec<u64> = over.map(|logged| logged.cursor.number).collect();
        for number in &over {
            self.events.remove(number);
        }
        over.len() as u64
    }
}

struct Row {
    stored: Stored,
    notice_at: Option<Timestamp>,
    keep_until: Timestamp,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let shared = Shared {
            clock: ProcessClock::start(),
            exclusive: Arc::default(),
            tables: Mutex::default(),
            listeners: Mutex::default(),
            secret: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }
}

#[cfg(test)]
impl MemoryStore {
    /// As the collection would, long after.
    pub(super) fn forget(&self, address: &Address) {
        self.shared.tables().rows.remove(address);
    }

    pub(super) fn forget_board(&self) {
        self.shared.tables().board = Board::default();
    }

    /// Commits so many times that nothing changes.
    pub(super) async fn count_up(&self, address: &Address, now: Timestamp, commits: u32) {
        for _ in 0..commits {
            let Stored { version, state } = self.shared.load(std::slice::from_ref(address)).states.remove(0);
            let change = Change {
                address: address.clone(),
                expected: version,
                state,
                events: Vec::new(),
                notice_at: None,
                keep_until: now.plus_ms(3_600_000),
                term: super::TermId::default(),
            };
            assert!(self.commit(now, &[change]).await.unwrap().result.is_complete());
        }
    }
}

#[cfg(test)]
impl MemoryStore {
    /// As a server does that keeps nothing on disk, when it is started again.
    pub(super) fn lose_everything(&self) {
        *self.shared.tables() = Tables::default();
    }
}

impl Shared {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, addresses: &[Address]) -> Loaded {
        let tables = self.tables();
        let state = |address| tables.rows.get(address).map_or_else(Stored::default, |row: &Row| row.stored.clone());
        Loaded { states: addresses.iter().map(state).collect(), now: self.clock.now() }
    }

    fn commit(&self, now: Timestamp, changes: &[Change], rule: Rule) -> Committed {
        let mut tables = self.tables();
        let store_now = self.clock.now();
        if store_now.ms_apart(now) > CLOCK_BOUND_MS {
            return Committed { now: store_now, result: CommitResult::ClockOff };
        }
        let holds = |tables: &Tables, change: &Change| {
            tables.rows.get(&change.address).map_or(Version::ABSENT, |row| row.stored.version) == change.expected
        };
        if rule == Rule::AllOrNone && !changes.iter().all(|change| holds(&tables, change)) {
            return Committed { now: store_now, result: CommitResult::Checked(vec![None; changes.len()]) };
        }
        let write = |change: &Change| {
            if !holds(&tables, change) {
                return None;
            }
            let version = change.expected.next(now);
            let stored = Stored { version, state: change.state.clone() };
            let row = Row { stored, notice_at: change.notice_at, keep_until: change.keep_until };
            tables.rows.insert(change.address.clone(), row);
            for event in &change.events {
                tables.log(&change.address, event);
            }
            Some(version)
        };
        let versions = changes.iter().map(write).collect();
        Committed { now: store_now, result: CommitResult::Checked(versions) }
    }
}

#[async_trait]
impl LockStore for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn shards(&self) -> usize {
        2
    }

    fn node_id(&self) -> NodeId {
        super::fresh_node_id()
    }

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError> {
        Ok(self.shared.load(addresses))
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let _turn = self.shared.exclusive.lock().await;
        Ok(self.shared.commit(now, changes, Rule::Each))
    }

    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let turn = Arc::clone(&self.shared.exclusive).lock_owned().await;
        let loaded = self.shared.load(addresses);
        Ok((loaded, Box::new(Locked { shared: Arc::clone(&self.shared), _turn: turn })))
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        let tables = self.shared.tables();
        let listed =
            |(address, row): (&Address, &Row)| -> (Key, LockState) { (address.key.clone(), row.stored.state.clone()) };
        let of_app =
            tables.rows.iter().filter(|(address, _)| address.app == *app && address.key.as_str().starts_with(prefix));
        Ok(of_app
            .filter(|(address, _)| after.is_none_or(|after| address.key > *after))
            .map(listed)
            .take(limit)
            .collect())
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        let rows = &mut self.shared.tables().rows;
        let now = self.shared.clock.now();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page: Vec<(&Address, &Row)> = rows.range((from, Bound::Unbounded)).take(limit).collect();
        let addresses = |is_meant: fn(&Row, Timestamp) -> bool| -> Vec<Address> {
            page.iter().filter(|(_, row)| is_meant(row, now)).map(|(address, _)| (*address).clone()).collect()
        };
        let due = addresses(|row, now| row.notice_at.is_some_and(|at| at < now));
        let over = addresses(|row, now| row.keep_until < now && row.notice_at.is_none());
        let next = if page.len() == limit { page.last().map(|(address, _)| (*address).clone()) } else { None };
        for address in &over {
            rows.remove(address);
        }
        Ok(Collected { removed: over.len() as u64, due, next })
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let mut tables = self.shared.tables();
        for (address, event) in events {
            tables.log(address, event);
        }
        Ok(())
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let tables = self.shared.tables();
        let page = tables.events.range((Bound::Excluded(after.number), Bound::Unbounded)).take(limit);
        let page: Vec<&LoggedEvent> = page.map(|(_, logged)| logged).collect();
        let last = page.last().map_or(after, |logged| logged.cursor);
        let is_wanted = |address: &Address| address.app == *app && scope.includes(&address.key);
        Ok((page.into_iter().filter(|logged| is_wanted(&logged.address)).cloned().collect(), last))
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        Ok(EventCursor::from_number(self.shared.tables().last_event))
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        let tables = self.shared.tables();
        let before = before.unwrap_or(EventCursor::END).number;
        let of_key = tables.events.range(..before).rev().map(|(_, logged)| logged).filter(|logged| {
            logged.address.app == *app && logged.address.key == *key && logged.event.kind != EventKind::Renewed
        });
        Ok(of_key.take(limit).cloned().collect())
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let mut tables = self.shared.tables();
        let renewed = tables.delete_oldest(|event| event.kind == EventKind::Renewed, renewed_before, limit);
        let rest = limit.saturating_sub(usize::try_from(renewed).unwrap_or(limit));
        Ok(renewed + tables.delete_oldest(|_| true, older_than, rest))
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, address) in wake_ups {
            if let Some(listener) = listeners.get(node) {
                // A full listener misses it; its turn's refresh makes up for that.
                let _ = listener.try_send(WakeUp::Key(address.clone()));
            }
        }
        Ok(())
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let mut listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|_, listener| !listener.is_closed());
        listeners.insert(node.clone(), sender);
        Ok(receiver)
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        Ok(self.shared.secret.get_or_init(|| fresh.to_vec()).clone())
    }

    async fn board(&self) -> Result<Board, StoreError> {
        let board = self.shared.tables().board.clone();
        Ok(Board { now: self.shared.clock.now(), ..board })
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        let board = &mut self.shared.tables().board;
        if board.version != expected {
            return Ok(None);
        }
        let version = Version::fresh().number();
        *board = Board { version, text: text.to_owned(), ..Board::default() };
        Ok(Some(version))
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = read_place(from)?;
        let rows = &self.shared.tables().rows;
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let page = rows.range((from, Bound::Unbounded)).take(limit);
        Ok(page_of(page.map(|(address, row)| (address.clone(), row.stored.clone())).collect(), limit))
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shared.clock.now())
    }
}

struct Locked {
    shared: Arc<Shared>,
    _turn: OwnedMutexGuard<()>,
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        Ok(self.shared.commit(now, changes, Rule::Each))
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        Ok(self.shared.commit(now, changes, Rule::AllOrNone))
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}
