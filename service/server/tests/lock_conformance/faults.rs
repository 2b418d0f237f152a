//! Nodes on a store that is slow, has a wrong clock or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use latchgate::locks::{Failure, Limits, LockRequest, Next, Watch, Watched};
use latchgate::store::engine_record::{EngineRecord, Epoch, Reading};
use latchgate::store::memory::MemoryStore;
use latchgate::store::{
    Change, Collected, CommitResult, Committed, CopiedState, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, RecordStore, Scope, StoreError, WakeUp,
};
use latchgate_core::lock::{EndReason, Event, EventKind, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_testkit::eventually;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::calls::{
    acquire_lost, at, granted, hold, holder, id, join, joined, key, release, renew_lost, request, take, until_free,
    until_waiting, wait,
};
use crate::many::{all, one_refused};
use crate::worlds::{PATIENCE, patient, start, start_with};

#[derive(Default)]
struct Faulty {
    memory: MemoryStore,
    /// How far its clock is wrong, in ms.
    offset_ms: AtomicI64,
    /// Commits are answered once its clock is past this.
    answers_after: AtomicU64,
    /// How many of the next commits lose their answer, or are lost themselves.
    lost_answers: AtomicU64,
    lost_commits: AtomicU64,
    /// How many of the next commits are made, but answered as lost races.
    lost_races: AtomicU64,
    /// Whether another node has locked all states and keeps them locked.
    is_locked: AtomicBool,
    /// How many reads of events have begun, and how many have ended. They are answered when commits are.
    reads_begun: AtomicU64,
    reads_ended: AtomicU64,
    /// How often locked states were given up.
    given_up: Arc<AtomicU64>,
}

/// Locked states that count when they are given up.
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
impl RecordStore for Faulty {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let reading = self.memory.read_record().await?;
        Ok(Reading { now: self.shown(reading.now), ..reading })
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        self.memory.write_record(read, next).await
    }
}

#[async_trait]
impl LockStore for Faulty {
    fn shards(&self) -> usize {
        1
    }

    fn node_id(&self) -> NodeId {
        self.memory.node_id()
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.memory.cluster_secret(fresh).await
    }

    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let loaded = self.memory.load(epoch, addresses).await?;
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

    async fn lock(&self, epoch: Epoch, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        if self.is_locked.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let (loaded, states) = self.memory.lock(epoch, addresses).await?;
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
        self.reads_begun.fetch_add(1, Ordering::SeqCst);
        self.until_it_answers().await;
        self.reads_ended.fetch_add(1, Ordering::SeqCst);
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

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        self.memory.dump(from, limit).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        self.memory.clear(epoch).await
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState], copied: u64) -> Result<bool, StoreError> {
        self.memory.fill(epoch, states, copied).await
    }

    async fn set_cluster_secret(&self, secret: &[u8]) -> Result<(), StoreError> {
        self.memory.set_cluster_secret(secret).await
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
async fn a_grant_that_expired_before_its_answer_is_lost() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    past(&store, 700).await;
    let answer = node.acquire(&key(), LockRequest { ttl_ms: 200, ..request("me") }).await;
    assert_eq!(acquire_lost(answer), Some(EndReason::Expired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_expired_before_its_answer_is_lost() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "me").await;
    past(&store, 700).await;
    let answer = node.renew(&key(), id("me"), Some(200)).await;
    assert_eq!(renew_lost(answer), Some(EndReason::Expired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_not_overtaken_when_the_stores_clock_is_set_back() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let first = join(&node, wait("first")).await;
    until_waiting(&node, 1).await;
    store.offset_ms.store(-90_000, Ordering::SeqCst);
    let second = join(&node, wait("second")).await;
    until_waiting(&node, 2).await;
    // By now the node has noticed the new clock.
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
async fn leases_follow_a_store_clock_that_was_set() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "first").await;
    for offset_ms in [5_000, -5_000, 3_600_000] {
        store.offset_ms.store(offset_ms, Ordering::SeqCst);
        let name = format!("lease{offset_ms}");
        let lease =
            take(&node, &crate::calls::at("another key"), LockRequest { ttl_ms: 60_000, ..request(&name) }).await.lease;
        assert!(lease.granted_at.ms_apart(store.ping().await.unwrap()) < 20_000, "{lease:?}");
        node.release(&crate::calls::at("another key"), id(&name)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repetition_finds_a_grant_of_unknown_outcome() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    store.lost_answers.store(1, Ordering::SeqCst);
    let answer = node.acquire(&key(), request("me")).await;
    assert!(matches!(answer, Err(Failure::OutcomeUnknown(_))), "{answer:?}");
    let is_back = || async { node.acquire(&key(), request("me")).await.is_ok() };
    assert!(eventually(PATIENCE, is_back).await);
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    release(&node, "me").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_did_not_happen_is_reported_as_unavailable() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    store.lost_commits.store(1, Ordering::SeqCst);
    let answer = node.acquire(&key(), request("me")).await;
    assert!(matches!(answer, Err(Failure::StoreUnavailable(_))), "{answer:?}");
    let is_back = || async { node.inspect(&key()).await.is_ok() };
    assert!(eventually(PATIENCE, is_back).await);
    assert_eq!(holder(&node).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_waiting_while_the_store_is_unavailable() {
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
async fn a_call_to_a_store_that_does_not_answer_times_out() {
    let store = Arc::new(Faulty::default());
    let limits = Limits { store_timeout: Duration::from_millis(100), ..patient() };
    let node = start_with(store.clone(), limits).await;
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let answer = tokio::time::timeout(PATIENCE, node.acquire(&key(), request("me"))).await.unwrap();
    assert!(matches!(answer, Err(Failure::OutcomeUnknown(_))), "{answer:?}");
    store.answers_after.store(0, Ordering::SeqCst);
    let is_back = || async { node.release(&key(), id("me")).await.is_ok() };
    assert!(eventually(PATIENCE, is_back).await);
    until_free(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_multilock_gives_up_its_locked_states() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let request = all("me", &["another key", "key"]);
    one_refused(node.acquire_many(request).await);
    assert_eq!(store.given_up.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_attempt_that_changes_nothing_gives_up_its_states() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    // The first commit grants the lease and the second claims it. The third attempt, which locks, only finds it.
    store.lost_races.store(2, Ordering::SeqCst);
    hold(&node, "me").await;
    assert_eq!(store.given_up.load(Ordering::SeqCst), 1);
    release(&node, "me").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_locked_by_another_node_do_not_make_the_store_count_as_down() {
    let store = Arc::new(Faulty::default());
    let limits = Limits { store_timeout: Duration::from_secs(1), ..patient() };
    let node = start_with(store.clone(), limits).await;
    store.is_locked.store(true, Ordering::SeqCst);
    store.lost_races.store(2, Ordering::SeqCst);
    let answer = node.acquire(&key(), request("me")).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
    let answer = node.acquire_many(all("other", &["another key"])).await;
    assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_events_finishes_after_its_watchers_have_gone() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let watch = node.watch(&App::default(), Watched::Key(key().key), None).await.unwrap();
    let (begun, ended) = (|| store.reads_begun.load(Ordering::SeqCst), || store.reads_ended.load(Ordering::SeqCst));
    assert!(eventually(PATIENCE, || async { begun() > 0 }).await);
    drop(watch);
    store.answers_after.store(0, Ordering::SeqCst);
    // If the read were dropped half-way, the store would have to close its connection.
    assert!(eventually(PATIENCE, || async { ended() == begun() }).await);
}

/// The next events of a watcher, when there are some.
async fn events(watch: &mut Watch) -> Vec<(EventKind, String)> {
    loop {
        match timeout(PATIENCE, watch.next()).await.expect("events in time") {
            Some(Next::Events(events)) if events.is_empty() => {}
            Some(Next::Events(events)) => {
                let shown = |logged: &Arc<LoggedEvent>| (logged.event.kind, logged.address.key.as_str().to_owned());
                return events.iter().map(shown).collect();
            }
            Some(Next::Dropped) => panic!("the watcher was dropped"),
            None => panic!("the stream has ended"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_reader_serves_all_watchers_and_each_gets_what_it_watches() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let mut watchers = Vec::new();
    for number in 0..1_000 {
        let watched = match number % 2 {
            0 => Watched::Key(at("k/1").key),
            _ => Watched::Prefix("k/".to_owned()),
        };
        watchers.push(node.watch(&App::default(), watched, None).await.unwrap());
    }
    let before = store.reads_begun.load(Ordering::SeqCst);
    for name in ["k/2", "other", "k/1"] {
        take(&node, &at(name), request("me")).await;
    }
    for (number, watch) in watchers.iter_mut().enumerate() {
        let expected = if number % 2 == 0 { &["k/1"][..] } else { &["k/2", "k/1"] };
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            seen.extend(events(watch).await);
        }
        let expected: Vec<_> = expected.iter().map(|key| (EventKind::Granted, (*key).to_owned())).collect();
        assert_eq!(seen, expected);
    }
    let reads = store.reads_begun.load(Ordering::SeqCst) - before;
    assert!(reads < 500, "{reads} reads for 1 000 watchers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_is_too_slow_is_dropped_and_resumes_without_a_gap() {
    let store = Arc::new(Faulty::default());
    let node = start_with(store.clone(), Limits { watcher_lag: 2, ..patient() }).await;
    let app = App::default();
    let mut slow = node.watch(&app, Watched::Key(key().key), None).await.unwrap();
    let mut fast = node.watch(&app, Watched::Key(key().key), None).await.unwrap();
    let mut all = Vec::new();
    for round in 0..5 {
        hold(&node, &format!("l{round}")).await;
        all.extend(events(&mut fast).await);
        release(&node, &format!("l{round}")).await;
        all.extend(events(&mut fast).await);
    }
    assert!(matches!(slow.next().await, Some(Next::Dropped)));
    assert!(slow.next().await.is_none());
    let mut resumed = node.watch(&app, Watched::Key(key().key), Some(slow.seen())).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < all.len() {
        seen.extend(events(&mut resumed).await);
    }
    assert_eq!((seen.len(), seen), (10, all));
}
