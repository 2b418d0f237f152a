//! A store in memory that is slow, loses answers and the like, as a test orders them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use latchgate::locks::Locks;
use latchgate::store::documents::{DocumentStore, StoredDocument};
use latchgate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use latchgate::store::{
    Change, Collected, CommitResult, Committed, CopiedState, DumpPage, EventCursor, EventQuery, Listing, Loaded,
    LockedStates, LoggedEvent, OperationPage, Page, RecordStore, Rows, Rule, Store, StoreError, WakeUp,
};
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_testkit::eventually;
use latchgate_testkit::memory::{InMemory, MemoryStore};
use tokio::sync::mpsc;

use crate::worlds::{PATIENCE, start};

#[derive(Default)]
pub struct Faulty {
    pub memory: MemoryStore,
    /// Commits are answered once its clock is past this.
    pub answers_after: AtomicU64,
    /// After how many milliseconds each commit is answered.
    pub commit_ms: AtomicU64,
    /// How many of the next commits lose their answer, or are lost themselves.
    pub lost_answers: AtomicU64,
    pub lost_commits: Arc<AtomicU64>,
    /// Every call fails.
    pub is_down: Arc<AtomicBool>,
    /// The store goes down when an answer is lost.
    pub falls: Arc<AtomicBool>,
    /// How many of the next commits of locked states lose their answer.
    pub lost_locked: Arc<AtomicU64>,
    /// How many states were loaded, and how many at once.
    pub loads: AtomicU64,
    pub loaded_at_once: AtomicU64,
    /// How long the states of the longest commit were, in bytes.
    pub commit_bytes: AtomicU64,
    /// How many of the next commits are made, but answered as lost races.
    pub lost_races: AtomicU64,
    /// Whether another node has locked all states and keeps them locked.
    pub is_locked: AtomicBool,
    /// How many reads of events have begun, and how many have ended. They are answered when commits are.
    pub reads_begun: AtomicU64,
    pub reads_ended: AtomicU64,
    /// How often locked states were given up.
    pub given_up: Arc<AtomicU64>,
}

/// Locked states that count when they are given up, and whose commits are lost.
struct Locked<S> {
    states: Box<dyn LockedStates<S>>,
    given_up: Arc<AtomicU64>,
    lost_locked: Arc<AtomicU64>,
    lost_commits: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
    falls: Arc<AtomicBool>,
}

#[async_trait]
impl<S: InMemory> LockedStates<S> for Locked<S> {
    async fn commit(
        self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        if rule == Rule::Each {
            return self.states.commit(now, changes, rule).await;
        }
        if take_one(&self.lost_commits) {
            return Err(StoreError::Unavailable("lost before".to_owned()));
        }
        let committed = self.states.commit(now, changes, rule).await?;
        if take_one(&self.lost_locked) {
            self.is_down.store(self.falls.load(Ordering::SeqCst), Ordering::SeqCst);
            return Err(StoreError::OutcomeUnknown("lost after".to_owned()));
        }
        Ok(committed)
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        self.given_up.fetch_add(1, Ordering::SeqCst);
        self.states.give_up().await
    }
}

impl Faulty {
    fn check_up(&self) -> Result<(), StoreError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("down".to_owned()));
        }
        Ok(())
    }

    async fn until_it_answers(&self) {
        let now = || async { self.memory.ping().await.unwrap().as_ms() };
        let answers = || async { now().await > self.answers_after.load(Ordering::SeqCst) };
        assert!(eventually(PATIENCE, answers).await);
    }
}

fn take_one(count: &AtomicU64) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

#[async_trait]
impl RecordStore for Faulty {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        self.memory.read_record().await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        self.memory.write_record(read, next).await
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.check_up()?;
        self.memory.ping().await
    }
}

#[async_trait]
impl DocumentStore for Faulty {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        self.memory.read_document(name, known).await
    }

    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        next: (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError> {
        self.memory.write_document(name, expected, next, fence).await
    }
}

#[async_trait]
impl<S: InMemory> Rows<S> for Faulty {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        self.check_up()?;
        self.loads.fetch_add(addresses.len() as u64, Ordering::SeqCst);
        self.loaded_at_once.fetch_max(addresses.len() as u64, Ordering::SeqCst);
        self.memory.load(epoch, addresses).await
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        self.check_up()?;
        if take_one(&self.lost_commits) {
            return Err(StoreError::Unavailable("lost before".to_owned()));
        }
        let bytes: usize = changes.iter().map(|change| change.state.bytes()).sum();
        self.commit_bytes.fetch_max(bytes as u64, Ordering::SeqCst);
        let committed = self.memory.commit(now, changes).await?;
        if let CommitResult::Checked(_) = committed.result
            && take_one(&self.lost_answers)
        {
            self.is_down.store(self.falls.load(Ordering::SeqCst), Ordering::SeqCst);
            return Err(StoreError::OutcomeUnknown("lost after".to_owned()));
        }
        if take_one(&self.lost_races) {
            return Ok(Committed { result: CommitResult::Checked(vec![None; changes.len()]), ..committed });
        }
        tokio::time::sleep(Duration::from_millis(self.commit_ms.load(Ordering::SeqCst))).await;
        self.until_it_answers().await;
        Ok(Committed { now: self.memory.ping().await?, ..committed })
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        self.check_up()?;
        if self.is_locked.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let (loaded, states) = self.memory.lock(epoch, addresses).await?;
        let locked = Locked {
            states,
            given_up: Arc::clone(&self.given_up),
            lost_locked: Arc::clone(&self.lost_locked),
            lost_commits: Arc::clone(&self.lost_commits),
            is_down: Arc::clone(&self.is_down),
            falls: Arc::clone(&self.falls),
        };
        Ok((loaded, Box::new(locked)))
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

#[async_trait]
impl Store for Faulty {
    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        self.memory.list(app, prefix, after, limit).await
    }

    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError> {
        self.memory.list_operations(listing).await
    }

    async fn discard(&self, epoch: Epoch, address: &Address) -> Result<bool, StoreError> {
        self.memory.discard(epoch, address).await
    }

    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError> {
        self.memory.app_after(after).await
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        self.memory.log(epoch, events).await
    }

    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        self.reads_begun.fetch_add(1, Ordering::SeqCst);
        self.until_it_answers().await;
        self.reads_ended.fetch_add(1, Ordering::SeqCst);
        self.memory.events(query).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        self.memory.last_event().await
    }

    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError> {
        self.memory.history(key, before, limit).await
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.memory.trim(older_than, limit).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        self.memory.wake(wake_ups).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        self.memory.wake_ups(node).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        self.memory.clear(epoch).await
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        self.ping().await
    }
}

/// A faulty store, and a node on it.
pub async fn faulty() -> (Arc<Faulty>, Locks) {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    (store, node)
}

pub async fn past(store: &Faulty, ms: u64) {
    let after = store.ping().await.unwrap().plus_ms(ms);
    store.answers_after.store(after.as_ms(), Ordering::SeqCst);
}
