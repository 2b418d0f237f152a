//! States in this process's memory: for trials, and the oracle that the other stores are compared with.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use latchgate_core::lock::{LockState, NodeId};
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Key, Timestamp};
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::clock::ProcessClock;
use super::{
    Change, Collected, CommitResult, Committed, Loaded, LockStore, LockedStates, Page, Rule, StoreError, Stored,
    Version, WAKE_UPS_MAX, WakeUp,
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
    rows: Mutex<BTreeMap<Address, Row>>,
    listeners: Mutex<HashMap<NodeId, mpsc::Sender<WakeUp>>>,
    secret: OnceLock<Vec<u8>>,
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
            rows: Mutex::default(),
            listeners: Mutex::default(),
            secret: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Shared {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<Address, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, addresses: &[Address]) -> Loaded {
        let rows = self.rows();
        let state = |address| rows.get(address).map_or_else(Stored::default, |row: &Row| row.stored.clone());
        Loaded { states: addresses.iter().map(state).collect(), now: self.clock.now() }
    }

    fn commit(&self, now: Timestamp, changes: &[Change], rule: Rule) -> Committed {
        let mut rows = self.rows();
        let store_now = self.clock.now();
        if store_now.ms_apart(now) > CLOCK_BOUND_MS {
            return Committed { now: store_now, result: CommitResult::ClockOff };
        }
        let holds = |rows: &BTreeMap<Address, Row>, change: &Change| {
            rows.get(&change.address).map_or(Version::ABSENT, |row| row.stored.version) == change.expected
        };
        if rule == Rule::AllOrNone && !changes.iter().all(|change| holds(&rows, change)) {
            return Committed { now: store_now, result: CommitResult::Checked(vec![None; changes.len()]) };
        }
        let write = |change: &Change| {
            if !holds(&rows, change) {
                return None;
            }
            let version = change.expected.next(now);
            let stored = Stored { version, state: change.state.clone() };
            let row = Row { stored, notice_at: change.notice_at, keep_until: change.keep_until };
            rows.insert(change.address.clone(), row);
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
        let rows = self.shared.rows();
        let listed =
            |(address, row): (&Address, &Row)| -> (Key, LockState) { (address.key.clone(), row.stored.state.clone()) };
        let of_app = rows.iter().filter(|(address, _)| address.app == *app && address.key.as_str().starts_with(prefix));
        Ok(of_app
            .filter(|(address, _)| after.is_none_or(|after| address.key > *after))
            .map(listed)
            .take(limit)
            .collect())
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        let mut rows = self.shared.rows();
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
}
