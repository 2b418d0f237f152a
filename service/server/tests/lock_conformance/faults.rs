//! A store that is slow, lies or breaks, in front of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use latchgate::runtime::{Ask, Failure, Limits, Watched};
use latchgate::store::memory::MemoryStore;
use latchgate::store::{
    Board, Change, Collected, CommitResult, Committed, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, Scope, StoreError, WakeUp,
};
use latchgate_core::lock::{EndReason, Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_testkit::eventually;
use tokio::sync::mpsc;

use crate::asking::{
    acquire_lost, ask, granted, hold, holder, id, join, joined, key, release, renew_lost, send_unheard, take,
    until_free, until_waiting, wait,
};
use crate::many::{all, one_refused};
use crate::worlds::{PATIENCE, patient, start, start_with};

#[derive(Default)]
struct Faulty {
    memory: MemoryStore,
    /// How far its clock is set off, in ms.
    offset_ms: AtomicI64,
    /// Commits are answered when its clock is past this.
    answers_after: AtomicU64,
    /// The next commits of which the answer, or the commit itself, is lost.
    lost_answers: AtomicU64,
    lost_commits: AtomicU64,
    /// The next commits that are made, and said to have lost their race.
    lost_races: AtomicU64,
    /// Somebody else has all states locked, and keeps them.
    is_locked: AtomicBool,
    /// Looks at the events that have begun, and of these, that have come to their end; they are answered as commits are.
    looks_begun: AtomicU64,
    looks_ended: AtomicU64,
    /// How often locked states were given up.
    given_up: Arc<AtomicU64>,
}

/// Tells when it is given up.
struct Locked {
    states: Box<dyn LockedStates>,
    given_up: Arc<AtomicU64>,
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.states.commit(now, changes).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.states.commit_all(now, changes).await
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        self.given_up.fetch_add(1, Ordering::SeqCst);
        self.states.give_up().await
    }
}

impl Faulty {
    fn shown(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(self.offset_ms.load(Ordering::SeqCst)))
    }

    fn meant(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(-self.offset_ms.load(Ordering::SeqCst)))
    }

    async fn until_it_answers(&self) {
        let answers = || async { self.ping().await.unwrap().as_ms() > self.answers_after.load(Ordering::SeqCst) };
        assert!(eventually(PATIENCE, answers).await);
    }
}

fn take_one(count: &AtomicU64) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

#[async_trait]
impl LockStore for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn shards(&self) -> usize {
        1
    }

    fn node_id(&self) -> NodeId {
        self.memory.node_id()
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.memory.cluster_secret(fresh).await
    }

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let loaded = self.memory.load(addresses).await?;
        Ok(Loaded { now: self.shown(loaded.now), ..loaded })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        if take_one(&self.lost_commits) {
            return Err(StoreError::Unavailable("lost before".to_owned()));
        }
        let committed = self.memory.commit(self.meant(now), changes).await?;
        if let CommitResult::Checked(_) = committed.result
            && take_one(&self.lost_answers)
        {
            return Err(StoreError::OutcomeUnknown("lost after".to_owned()));
        }
        if take_one(&self.lost_races) {
            return Ok(Committed { result: CommitResult::Checked(vec![None; changes.len()]), ..committed });
        }
        self.until_it_answers().await;
        Ok(Committed { now: self.ping().await?, ..committed })
    }

    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        if self.is_locked.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let (loaded, states) = self.memory.lock(addresses).await?;
        Ok((loaded, Box::new(Locked { states, given_up: Arc::clone(&self.given_up) })))
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        self.memory.list(app, prefix, after, limit).await
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        self.memory.collect(after, limit).await
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        self.memory.log(events).await
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        self.looks_begun.fetch_add(1, Ordering::SeqCst);
        self.until_it_answers().await;
        self.looks_ended.fetch_add(1, Ordering::SeqCst);
        self.memory.events(app, scope, after, limit).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        self.memory.last_event().await
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        self.memory.history(app, key, before, limit).await
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.memory.trim(older_than, renewed_before, limit).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        self.memory.wake(wake_ups).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        self.memory.wake_ups(node).await
    }

    async fn board(&self) -> Result<Board, StoreError> {
        let board = self.memory.board().await?;
        Ok(Board { now: self.shown(board.now), ..board })
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        self.memory.write_board(expected, text).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        self.memory.dump(from, limit).await
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shown(self.memory.ping().await?))
    }
}

async fn past(store: &Faulty, ms: u64) {
    let after = store.ping().await.unwrap().plus_ms(ms);
    store.answers_after.store(after.as_ms(), Ordering::SeqCst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_ran_out_before_its_answer_is_lost() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    past(&store, 700).await;
    let answer = node.acquire(&key(), Ask { ttl_ms: 200, ..ask("me") }).await;
    assert_eq!(acquire_lost(answer), Some(EndReason::Expired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_ran_out_before_its_answer_is_lost() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "me").await;
    past(&store, 700).await;
    let answer = node.renew(&key(), id("me"), Some(200)).await;
    assert_eq!(renew_lost(answer), Some(EndReason::Expired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_overtaken_because_the_stores_clock_was_set_back() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let first = join(&node, wait("first")).await;
    until_waiting(&node, 1).await;
    store.offset_ms.store(-90_000, Ordering::SeqCst);
    let second = join(&node, wait("second")).await;
    until_waiting(&node, 2).await;
    // The node has heard of the clock by now.
    let third = join(&node, wait("third")).await;
    until_waiting(&node, 3).await;
    release(&node, "holder").await;
    let mut token = 0;
    for (name, waiting) in [("first", first), ("second", second), ("third", third)] {
        let lease = granted(joined(waiting).await).lease;
        assert!(lease.token > token);
        token = lease.token;
        release(&node, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_is_followed() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "first").await;
    for offset_ms in [5_000, -5_000, 3_600_000] {
        store.offset_ms.store(offset_ms, Ordering::SeqCst);
        let name = format!("lease{offset_ms}");
        let lease = take(&node, &crate::asking::at("another key"), Ask { ttl_ms: 60_000, ..ask(&name) }).await.lease;
        assert!(lease.granted_at.ms_apart(store.ping().await.unwrap()) < 20_000, "{lease:?}");
        node.release(&crate::asking::at("another key"), id(&name)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_unknown_outcome_is_found_by_its_repetition() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    store.lost_answers.store(1, Ordering::SeqCst);
    let answer = node.acquire(&key(), ask("me")).await;
    assert!(matches!(answer, Err(Failure::OutcomeUnknown(_))), "{answer:?}");
    let is_back = || async { node.acquire(&key(), ask("me")).await.is_ok() };
    assert!(eventually(PATIENCE, is_back).await);
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    release(&node, "me").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_did_not_happen_is_said_to_have_done_nothing() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    store.lost_commits.store(1, Ordering::SeqCst);
    let answer = node.acquire(&key(), ask("me")).await;
    assert!(matches!(answer, Err(Failure::StoreUnavailable(_))), "{answer:?}");
    let is_back = || async { node.inspect(&key()).await.is_ok() };
    assert!(eventually(PATIENCE, is_back).await);
    assert_eq!(holder(&node).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_goes_on_waiting_while_the_store_is_away() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let waiting = join(&node, wait("waiter")).await;
    until_waiting(&node, 1).await;
    store.lost_commits.store(3, Ordering::SeqCst);
    let is_released = || async { node.release(&key(), id("holder")).await.is_ok() };
    assert!(eventually(PATIENCE, is_released).await);
    granted(joined(waiting).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_is_not_waited_for() {
    let store = Arc::new(Faulty::default());
    let limits = Limits { store_timeout: Duration::from_millis(100), ..patient() };
    let node = start_with(store.clone(), limits).await;
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let answer = tokio::time::timeout(PATIENCE, node.acquire(&key(), ask("me"))).await.unwrap();
    assert!(matches!(answer, Err(Failure::OutcomeUnknown(_))), "{answer:?}");
    store.answers_after.store(0, Ordering::SeqCst);
    let is_back = || async { node.release(&key(), id("me")).await.is_ok() };
    assert!(eventually(PATIENCE, is_back).await);
    until_free(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_of_which_nothing_comes_gives_its_locked_states_up() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let ask = all("me", &["another key", "key"]);
    one_refused(node.acquire_many(ask).await);
    assert_eq!(store.given_up.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_try_that_changes_nothing_gives_its_states_up() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    // Granted by the first commit and claimed by the second, the lease is only found by the third try.
    store.lost_races.store(2, Ordering::SeqCst);
    hold(&node, "me").await;
    assert_eq!(store.given_up.load(Ordering::SeqCst), 1);
    release(&node, "me").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_others_keep_locked_do_not_make_the_store_count_as_down() {
    let store = Arc::new(Faulty::default());
    let limits = Limits { store_timeout: Duration::from_secs(1), ..patient() };
    let node = start_with(store.clone(), limits).await;
    store.is_locked.store(true, Ordering::SeqCst);
    store.lost_races.store(2, Ordering::SeqCst);
    let answer = node.acquire(&key(), ask("me")).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
    let answer = node.acquire_many(all("other", &["another key"])).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_goes_away_in_the_middle_of_a_look_leaves_it_to_its_end() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let mut watch = node.watch(&App::default(), Watched::Key(key().key), None).await.unwrap();
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let mut look = Box::pin(watch.next());
    send_unheard(&mut look).await;
    assert!(eventually(PATIENCE, || async { store.looks_begun.load(Ordering::SeqCst) == 1 }).await);
    drop(look);
    store.answers_after.store(0, Ordering::SeqCst);
    // Dropped half-way, it would cost the store its connection.
    assert!(eventually(PATIENCE, || async { store.looks_ended.load(Ordering::SeqCst) == 1 }).await);
}
