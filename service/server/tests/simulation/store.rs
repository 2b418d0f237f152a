//! A database as one node reaches it, through its link.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use latchgate::store::documents::{DocumentStore, StoredDocument};
use latchgate::store::engine_record::{EngineRecord, EngineState, Reading};
use latchgate::store::{
    Change, Collected, Committed, CopiedState, DumpPage, Epoch, EventCursor, EventQuery, Loaded, LockStore,
    LockedStates, LoggedEvent, Page, RecordStore, Rule, StoreError, WakeUp,
};
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::database::Database;
use crate::link::{Access, Execute, Link};

/// A database unlocks states that a node keeps locked for longer.
const LOCKED_MAX: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct SimulatedStore {
    pub database: Arc<Database>,
    pub link: Arc<Link>,
}

impl SimulatedStore {
    fn skewed(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(self.link.skew_ms()))
    }

    async fn call<T: Send + 'static, F>(
        &self,
        what: &str,
        access: Access,
        execute: impl Fn(Arc<Database>) -> F + Send + Sync + 'static,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let database = Arc::clone(&self.database);
        let what = format!("{}: {what}", self.database.name);
        let execute: Execute<T> = Box::new(move || execute(Arc::clone(&database)).boxed());
        self.link.call(what, access, execute).await
    }
}

fn keys<'a>(addresses: impl Iterator<Item = &'a Address>) -> String {
    addresses.map(|address| address.key.as_str()).collect::<Vec<_>>().join(",")
}

#[async_trait]
impl RecordStore for SimulatedStore {
    fn kind(&self) -> &'static str {
        self.database.store.kind()
    }

    fn may_fail_over(&self) -> bool {
        true
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let read = |database: Arc<Database>| async move { database.store.read_record().await };
        self.call("read record", Access::Read, read).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let what = format!("write record {} {}", next.state.as_str(), next.epoch);
        let (read, next, link) = (read.clone(), next.clone(), Arc::clone(&self.link));
        let write = move |database: Arc<Database>| {
            let (read, next, link) = (read.clone(), next.clone(), Arc::clone(&link));
            async move {
                let is_written = database.store.write_record(&read, &next).await?;
                if is_written {
                    database.record_written(&next).await;
                }
                link.line(|| format!("{}: record {} {}: {is_written}", database.name, next.state.as_str(), next.epoch));
                Ok(is_written)
            }
        };
        self.call(&what, Access::Write, write).await
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let now = self.call("ping", Access::Read, |database| async move { database.store.ping().await }).await?;
        Ok(self.skewed(now))
    }
}

#[async_trait]
impl DocumentStore for SimulatedStore {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        self.database.store.read_document(name, known).await
    }

    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        next: (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError> {
        self.database.store.write_document(name, expected, next, fence).await
    }
}

#[async_trait]
impl LockStore for SimulatedStore {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let what = format!("load {}", keys(addresses.iter()));
        let addresses = addresses.to_vec();
        let load = move |database: Arc<Database>| {
            let addresses = addresses.clone();
            async move { database.store.load(epoch, &addresses).await }
        };
        let loaded = self.call(&what, Access::Read, load).await?;
        Ok(Loaded { now: self.skewed(loaded.now), ..loaded })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let what = format!("commit {}", keys(changes.iter().map(|change| &change.address)));
        let (changes, node) = (Arc::new(changes.to_vec()), self.link.node.clone());
        let commit = move |database: Arc<Database>| {
            let (changes, node) = (Arc::clone(&changes), node.clone());
            async move {
                let committed = database.store.commit(now, &changes).await?;
                database.executed(&node, &changes, &committed);
                Ok(committed)
            }
        };
        let committed = self.call(&what, Access::Write, commit).await?;
        Ok(Committed { now: self.skewed(committed.now), ..committed })
    }

    async fn lock(&self, epoch: Epoch, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let what = format!("lock {}", keys(addresses.iter()));
        let (addresses, store) = (addresses.to_vec(), self.clone());
        let lock = move |database: Arc<Database>| {
            let (addresses, store) = (addresses.clone(), store.clone());
            async move {
                let (loaded, inner) = database.store.lock(epoch, &addresses).await?;
                let inner = Arc::new(Mutex::new(Some(inner)));
                let held = Arc::downgrade(&inner);
                tokio::spawn(async move {
                    sleep(LOCKED_MAX).await;
                    if let Some(held) = held.upgrade() {
                        drop(held.lock().unwrap().take());
                    }
                });
                Ok((loaded, SimulatedLocked { store, inner }))
            }
        };
        let (loaded, locked) = self.call(&what, Access::Read, lock).await?;
        self.link.log.saw("locked states");
        Ok((Loaded { now: self.skewed(loaded.now), ..loaded }, Box::new(locked)))
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        self.database.store.list(app, prefix, after, limit).await
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        let from = from.map(str::to_owned);
        let collect = move |database: Arc<Database>| {
            let from = from.clone();
            async move { database.store.collect(epoch, from.as_deref(), limit).await }
        };
        self.call("collect", Access::Write, collect).await
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let events = events.to_vec();
        let log = move |database: Arc<Database>| {
            let events = events.clone();
            async move { database.store.log(epoch, &events).await }
        };
        self.call("log", Access::Write, log).await
    }

    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        self.database.store.events(query).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        self.database.store.last_event().await
    }

    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError> {
        self.database.store.history(key, before, limit).await
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let trim = move |database: Arc<Database>| async move { database.store.trim(older_than, limit).await };
        self.call("trim", Access::Write, trim).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let nodes: Vec<&str> = wake_ups.iter().map(|(node, _)| node.as_str()).collect();
        let what = format!("wake {}", nodes.join(","));
        let wake_ups = wake_ups.to_vec();
        let wake = move |database: Arc<Database>| {
            let wake_ups = wake_ups.clone();
            async move { database.store.wake(&wake_ups).await }
        };
        self.call(&what, Access::Write, wake).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let mut sent = self.database.store.wake_ups(node).await?;
        let (sender, receiver) = mpsc::channel(1_000);
        let link = Arc::clone(&self.link);
        tokio::spawn(async move {
            while let Some(wake_up) = sent.recv().await {
                let Some(delay) = link.notification_delay() else { continue };
                let (link, sender) = (Arc::clone(&link), sender.clone());
                tokio::spawn(async move {
                    link.notification_passes(delay).await;
                    link.line(|| format!("notified: {wake_up:?}"));
                    let _ = sender.send(wake_up).await;
                });
            }
        });
        Ok(receiver)
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState>, StoreError> {
        let from = from.map(str::to_owned);
        let dump = move |database: Arc<Database>| {
            let from = from.clone();
            async move { database.store.dump(from.as_deref(), limit).await }
        };
        self.call("dump", Access::Read, dump).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let clear = move |database: Arc<Database>| async move {
            let is_cleared = database.store.clear(epoch).await?;
            if is_cleared {
                database.cleared(epoch);
            }
            Ok(is_cleared)
        };
        self.call("clear", Access::Write, clear).await
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState], copied: u64) -> Result<bool, StoreError> {
        let states = states.to_vec();
        let fill = move |database: Arc<Database>| {
            let states = states.clone();
            async move {
                let is_filled = database.store.fill(epoch, &states, copied).await?;
                if is_filled {
                    database.filled(epoch, &states);
                }
                Ok(is_filled)
            }
        };
        self.call("fill", Access::Write, fill).await
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        let probe = |database: Arc<Database>| async move { database.store.probe().await };
        Ok(self.skewed(self.call("probe", Access::Write, probe).await?))
    }
}

/// Empty once they are used, or after [`LOCKED_MAX`].
struct SimulatedLocked {
    store: SimulatedStore,
    inner: Arc<Mutex<Option<Box<dyn LockedStates>>>>,
}

#[async_trait]
impl LockedStates for SimulatedLocked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change], rule: Rule) -> Result<Committed, StoreError> {
        let what = format!("commit locked {}", keys(changes.iter().map(|change| &change.address)));
        let (changes, node) = (Arc::new(changes.to_vec()), self.store.link.node.clone());
        let inner = self.inner;
        let commit = move |database: Arc<Database>| {
            let (changes, node) = (Arc::clone(&changes), node.clone());
            let locked = inner.lock().unwrap().take();
            async move {
                let gone = || StoreError::Unavailable("simulated: the transaction is over".to_owned());
                let locked = locked.ok_or_else(gone)?;
                let committed = locked.commit(now, &changes, rule).await?;
                database.executed(&node, &changes, &committed);
                Ok(committed)
            }
        };
        let committed = self.store.call(&what, Access::Write, commit).await?;
        Ok(Committed { now: self.store.skewed(committed.now), ..committed })
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        let inner = self.inner;
        let give_up = move |_| {
            let locked = inner.lock().unwrap().take();
            async move {
                drop(locked);
                Ok(())
            }
        };
        self.store.call("unlock", Access::Read, give_up).await
    }
}
