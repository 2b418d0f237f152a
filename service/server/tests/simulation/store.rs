//! A database as one node reaches it, through its link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::{Event, LockState, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::store::documents::{DocumentStore, StoredDocument};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Reading};
use latchgate_node::store::{
    Change, Collected, CommitResult, Committed, CopiedState, DumpPage, Epoch, EventCursor, EventQuery, Listing, Loaded,
    LockedStates, LoggedEvent, OperationPage, Page, RecordStore, Rows, Rule, Store, StoreError, WakeUp,
};
use latchgate_testkit::memory::InMemory;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::database::Database;
use crate::link::{Access, Link};

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

    async fn call<A: Clone + Send + Sync + 'static, T: Send + 'static, F>(
        &self,
        what: &str,
        access: Access,
        arguments: A,
        execute: impl Fn(Arc<Database>, A) -> F + Send + Sync + 'static,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let what = format!("{}: {what}", self.database.name);
        self.link.call(what, access, (Arc::clone(&self.database), arguments), execute).await
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
        let read = |database: Arc<Database>, ()| async move { database.store.read_record().await };
        self.call("read record", Access::Read, (), read).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let what = format!("write record {} {}", next.state.as_str(), next.epoch);
        let arguments = (read.clone(), next.clone(), Arc::clone(&self.link));
        let write = |database: Arc<Database>, (read, next, link): (Reading, EngineRecord, Arc<Link>)| async move {
            let is_written = database.store.write_record(&read, &next).await?;
            if is_written {
                database.record_written(&next).await;
            }
            link.line(|| format!("{}: record {} {}: {is_written}", database.name, next.state.as_str(), next.epoch));
            Ok(is_written)
        };
        self.call(&what, Access::Write, arguments, write).await
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let ping = |database: Arc<Database>, ()| async move { database.store.ping().await };
        Ok(self.skewed(self.call("ping", Access::Read, (), ping).await?))
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

/// A kind of rows whose commits are checked.
trait Checked: InMemory {
    fn executed(database: &Database, node: &str, changes: &[Change<Self>], committed: &Committed);
    fn filled(database: &Database, epoch: Epoch, states: &[CopiedState<Self>]);
}

impl Checked for LockState {
    fn executed(database: &Database, node: &str, changes: &[Change], committed: &Committed) {
        database.executed(node, changes, committed);
    }

    fn filled(database: &Database, epoch: Epoch, states: &[CopiedState]) {
        database.filled(epoch, states);
    }
}

impl Checked for Option<OperationRecord> {
    fn executed(database: &Database, node: &str, changes: &[Change<Self>], Committed { result, .. }: &Committed) {
        for change in changes {
            let record = change.state.as_ref().map(|record| (&record.operation, record.attempt, &record.phase));
            database.log.line(|| format!("{node}  {}: {record:?} in {result:?}", database.name));
        }
    }

    fn filled(database: &Database, epoch: Epoch, _states: &[CopiedState<Self>]) {
        database.expect_filling(epoch);
    }
}

#[async_trait]
impl<S: Checked> Rows<S> for SimulatedStore {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        let what = format!("load {}", keys(addresses.iter()));
        let load = move |database: Arc<Database>, addresses: Vec<Address>| async move {
            database.store.load(epoch, &addresses).await
        };
        let loaded = self.call(&what, Access::Read, addresses.to_vec(), load).await?;
        Ok(Loaded { now: self.skewed(loaded.now), ..loaded })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        let what = format!("commit {}", keys(changes.iter().map(|change| &change.address)));
        let arguments = Arc::new((changes.to_vec(), self.link.node.clone(), AtomicBool::new(false)));
        let commit = move |database: Arc<Database>, arguments: Arc<(Vec<Change<S>>, String, AtomicBool)>| async move {
            let (changes, node, is_refused) = &*arguments;
            // A store does not execute later what it has answered that it refuses.
            if is_refused.load(Ordering::Relaxed) {
                return Err(StoreError::Unavailable("simulated: refused before".to_owned()));
            }
            let committed = database.store.commit(now, changes).await?;
            is_refused.store(committed.result == CommitResult::ClockOff, Ordering::Relaxed);
            S::executed(&database, node, changes, &committed);
            Ok(committed)
        };
        let committed = self.call(&what, Access::Write, arguments, commit).await?;
        Ok(Committed { now: self.skewed(committed.now), ..committed })
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        let what = format!("lock {}", keys(addresses.iter()));
        let arguments = (addresses.to_vec(), self.clone());
        let lock = move |database: Arc<Database>, (addresses, store): (Vec<Address>, Self)| async move {
            let (loaded, inner): (Loaded<S>, _) = database.store.lock(epoch, &addresses).await?;
            let inner = Arc::new(Mutex::new(Some(inner)));
            let held = Arc::downgrade(&inner);
            tokio::spawn(async move {
                sleep(LOCKED_MAX).await;
                if let Some(held) = held.upgrade() {
                    drop(held.lock().unwrap().take());
                }
            });
            Ok((loaded, SimulatedLocked { store, inner }))
        };
        let (loaded, locked) = self.call(&what, Access::Read, arguments, lock).await?;
        self.link.log.saw("locked states");
        Ok((Loaded { now: self.skewed(loaded.now), ..loaded }, Box::new(locked)))
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        let collect = move |database: Arc<Database>, from: Option<String>| async move {
            Rows::<S>::collect(&database.store, epoch, from.as_deref(), limit).await
        };
        self.call("collect", Access::Write, from.map(str::to_owned), collect).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError> {
        let dump = move |database: Arc<Database>, from: Option<String>| async move {
            database.store.dump(from.as_deref(), limit).await
        };
        self.call("dump", Access::Read, from.map(str::to_owned), dump).await
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError> {
        let fill = move |database: Arc<Database>, states: Vec<CopiedState<S>>| async move {
            let is_filled = database.store.fill(epoch, &states, copied).await?;
            if is_filled {
                S::filled(&database, epoch, &states);
            }
            Ok(is_filled)
        };
        self.call("fill", Access::Write, states.to_vec(), fill).await
    }
}

#[async_trait]
impl Store for SimulatedStore {
    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        self.database.store.list(app, prefix, after, limit).await
    }

    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError> {
        self.database.store.list_operations(listing).await
    }

    async fn discard(&self, epoch: Epoch, address: &Address) -> Result<bool, StoreError> {
        self.database.store.discard(epoch, address).await
    }

    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError> {
        self.database.store.app_after(after).await
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let log = move |database: Arc<Database>, events: Vec<(Address, Event)>| async move {
            database.store.log(epoch, &events).await
        };
        self.call("log", Access::Write, events.to_vec(), log).await
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
        let trim = move |database: Arc<Database>, ()| async move { database.store.trim(older_than, limit).await };
        self.call("trim", Access::Write, (), trim).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let nodes: Vec<&str> = wake_ups.iter().map(|(node, _)| node.as_str()).collect();
        let what = format!("wake {}", nodes.join(","));
        let wake = |database: Arc<Database>, wake_ups: Vec<(NodeId, Address)>| async move {
            database.store.wake(&wake_ups).await
        };
        self.call(&what, Access::Write, wake_ups.to_vec(), wake).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        Ok(self.link.notifications(self.database.store.wake_ups(node).await?))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        let clear = move |database: Arc<Database>, ()| async move {
            let is_cleared = database.store.clear(epoch).await?;
            if is_cleared {
                database.cleared(epoch);
            }
            Ok(is_cleared)
        };
        self.call("clear", Access::Write, (), clear).await
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        let probe = |database: Arc<Database>, ()| async move { database.store.probe().await };
        Ok(self.skewed(self.call("probe", Access::Write, (), probe).await?))
    }
}

/// Empty once they are used, or after [`LOCKED_MAX`].
type Inner<S> = Arc<Mutex<Option<Box<dyn LockedStates<S>>>>>;

struct SimulatedLocked<S> {
    store: SimulatedStore,
    inner: Inner<S>,
}

#[async_trait]
impl<S: Checked> LockedStates<S> for SimulatedLocked<S> {
    async fn commit(
        self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        let what = format!("commit locked {}", keys(changes.iter().map(|change| &change.address)));
        let arguments = (changes.to_vec(), self.store.link.node.clone(), self.inner);
        let commit = move |database: Arc<Database>, (changes, node, inner): (Vec<Change<S>>, String, Inner<S>)| async move {
            let locked = inner.lock().unwrap().take();
            let gone = || StoreError::Unavailable("simulated: the transaction is over".to_owned());
            let committed = locked.ok_or_else(gone)?.commit(now, &changes, rule).await?;
            S::executed(&database, &node, &changes, &committed);
            Ok(committed)
        };
        let committed = self.store.call(&what, Access::Write, arguments, commit).await?;
        Ok(Committed { now: self.store.skewed(committed.now), ..committed })
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        let give_up = |_, inner: Inner<S>| async move {
            drop(inner.lock().unwrap().take());
            Ok(())
        };
        self.store.call("unlock", Access::Read, self.inner, give_up).await
    }
}
