//! A store in memory that is slow, loses answers and the like, as a test orders them.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::locks::{Limits, Locks};
use latchgate_node::store::documents::{DocumentStore, StoredDocument};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use latchgate_node::store::{
    Change, Collected, CommitResult, Committed, CopiedState, DumpPage, EventCursor, EventQuery, Listing, Loaded,
    LockedStates, LoggedEvent, OperationPage, Page, RecordStore, Rows, Rule, Store, StoreError, WakeUp,
};
use latchgate_testkit::eventually;
use latchgate_testkit::memory::{InMemory, MemoryStore};
use tokio::sync::mpsc::Receiver;

use crate::worlds::{PATIENCE, patient, start, start_with};

/// What a test orders, and what is counted.
#[derive(Default)]
pub struct Faults {
    /// Commits and reads of events are answered once the store's clock is past this.
    pub answers_after: u64,
    /// After how many milliseconds each commit is answered.
    pub commit_ms: u64,
    /// How many of the next commits lose their answer, or are lost themselves.
    pub lost_answers: u64,
    pub lost_commits: u64,
    /// How many of the next commits of locked states lose their answer.
    pub lost_locked: u64,
    /// Every call fails.
    pub is_down: bool,
    /// The store goes down when an answer is lost.
    pub falls: bool,
    /// How many states were loaded, and how many at once.
    pub loads: usize,
    pub loaded_at_once: usize,
    /// How long the states of the longest commit were, in bytes.
    pub commit_bytes: usize,
    /// How many reads of events have begun, and how many have ended.
    pub reads_begun: u64,
    pub reads_ended: u64,
}

#[derive(Clone, Default)]
pub struct Faulty {
    pub memory: MemoryStore,
    faults: Arc<Mutex<Faults>>,
}

impl Faulty {
    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    /// Each commit is answered when the store's clock is past this time from now.
    pub async fn answer_late(&self, ms: u64) {
        let after = self.memory.ping().await.unwrap().plus_ms(ms);
        self.faults().answers_after = after.as_ms();
    }

    fn check_up(&self) -> Result<(), StoreError> {
        if self.faults().is_down {
            return Err(StoreError::Unavailable("down".to_owned()));
        }
        Ok(())
    }

    async fn until_it_answers(&self) {
        let now = || async { self.memory.ping().await.unwrap().as_ms() };
        let answers = || async { now().await > self.faults().answers_after };
        assert!(eventually(PATIENCE, answers).await);
    }

    fn lose_commit(&self) -> Result<(), StoreError> {
        if take_one(&mut self.faults().lost_commits) {
            return Err(StoreError::Unavailable("lost before".to_owned()));
        }
        Ok(())
    }

    /// Loses an answer of this kind.
    fn lose_answer(&self, kind: fn(&mut Faults) -> &mut u64) -> Result<(), StoreError> {
        let mut faults = self.faults();
        if take_one(kind(&mut faults)) {
            faults.is_down = faults.falls;
            return Err(StoreError::OutcomeUnknown("lost after".to_owned()));
        }
        Ok(())
    }
}

fn take_one(count: &mut u64) -> bool {
    let is_left = *count > 0;
    *count -= u64::from(is_left);
    is_left
}

/// Locked states whose commits are lost.
struct FaultyLocked<S> {
    states: Box<dyn LockedStates<S>>,
    store: Faulty,
}

#[async_trait]
impl<S: InMemory> LockedStates<S> for FaultyLocked<S> {
    async fn commit(
        self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        if rule == Rule::Each {
            return self.states.commit(now, changes, rule).await;
        }
        self.store.lose_commit()?;
        let committed = self.states.commit(now, changes, rule).await?;
        self.store.lose_answer(|faults| &mut faults.lost_locked)?;
        Ok(committed)
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        self.states.give_up().await
    }
}

#[async_trait]
impl<S: InMemory> Rows<S> for Faulty {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        self.check_up()?;
        {
            let mut faults = self.faults();
            faults.loads += addresses.len();
            faults.loaded_at_once = faults.loaded_at_once.max(addresses.len());
        }
        self.memory.load(epoch, addresses).await
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        self.check_up()?;
        self.lose_commit()?;
        let bytes: usize = changes.iter().map(|change| change.state.bytes()).sum();
        let longest = self.faults().commit_bytes.max(bytes);
        self.faults().commit_bytes = longest;
        let committed = self.memory.commit(now, changes).await?;
        if let CommitResult::Checked(_) = committed.result {
            self.lose_answer(|faults| &mut faults.lost_answers)?;
        }
        let commit_ms = self.faults().commit_ms;
        tokio::time::sleep(Duration::from_millis(commit_ms)).await;
        self.until_it_answers().await;
        Ok(Committed { now: self.memory.ping().await?, ..committed })
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        self.check_up()?;
        let (loaded, states) = self.memory.lock(epoch, addresses).await?;
        Ok((loaded, Box::new(FaultyLocked { states, store: self.clone() })))
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        Rows::<S>::collect(&self.memory, epoch, from, limit).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError> {
        self.memory.dump(from, limit).await
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError> {
        self.memory.fill(epoch, states, copied).await
    }
}

/// Calls that the store in memory answers, and then others.
macro_rules! in_memory {
    ($trait:ident { $(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)* } $($own:tt)*) => {
        #[async_trait]
        impl $trait for Faulty {
            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                    self.memory.$name($($argument),*).await
                }
            )*
            $($own)*
        }
    };
}

in_memory! {
    RecordStore {
        fn read_record() -> Reading;
        fn write_record(read: &Reading, next: &EngineRecord) -> bool;
    }

    fn kind(&self) -> &'static str {
        "faulty"
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.check_up()?;
        self.memory.ping().await
    }
}

in_memory! {
    DocumentStore {
        fn read_document(name: &str, known: u64) -> StoredDocument;
        fn write_document(name: &str, expected: u64, next: (u64, &str), fence: Option<(EngineState, Epoch)>) -> bool;
    }
}

in_memory! {
    Store {
        fn list(app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Page;
        fn list_operations(listing: &Listing) -> OperationPage;
        fn discard(epoch: Epoch, address: &Address) -> bool;
        fn app_after(after: &str) -> Option<String>;
        fn log(epoch: Epoch, events: &[(Address, Event)]) -> ();
        fn last_event() -> EventCursor;
        fn history(key: &Address, before: EventCursor, limit: usize) -> Vec<LoggedEvent>;
        fn trim(older_than: Timestamp, limit: usize) -> u64;
        fn wake(wake_ups: &[(NodeId, Address)]) -> ();
        fn wake_ups(node: &NodeId) -> Receiver<WakeUp>;
        fn clear(epoch: Epoch) -> bool;
    }

    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        self.faults().reads_begun += 1;
        self.until_it_answers().await;
        self.faults().reads_ended += 1;
        self.memory.events(query).await
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        self.ping().await
    }
}

/// A faulty store, and a node on it.
pub async fn faulty() -> (Faulty, Locks) {
    faulty_with(patient()).await
}

/// Another node on it.
pub async fn node_on(store: &Faulty) -> Locks {
    start(Arc::new(store.clone())).await
}

pub async fn faulty_with(limits: Limits) -> (Faulty, Locks) {
    let store = Faulty::default();
    let node = start_with(Arc::new(store.clone()), limits).await;
    (store, node)
}
