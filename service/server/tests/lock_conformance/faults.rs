//! Nodes on a store that is slow, has a wrong clock or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use latchgate::locks::{
    Acquired, AcquiredMany, Failure, Limits, LockManyRequest, LockRequest, Locks, Next, RefusedBecause, Released,
    Watch, Watched,
};
use latchgate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use latchgate::store::memory::MemoryStore;
use latchgate::store::{
    AccessText, Change, Collected, CommitResult, Committed, CopiedState, DumpPage, EventCursor, Loaded, LockStore,
    LockedStates, LoggedEvent, Page, RecordStore, Scope, StoreError, WakeUp,
};
use latchgate_core::lock::{EndReason, Event, EventKind, NodeId, Position};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_testkit::eventually;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::calls::{
    acquire_lost, at, granted, hold, holder, id, join, joined, key, release, renew_lost, request, send_unread, take,
    until_free, until_waiting, wait,
};
use crate::many::{all, one_refused, waiting};
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
    lost_commits: Arc<AtomicU64>,
    /// Every call fails.
    is_down: Arc<AtomicBool>,
    /// The store goes down when an answer is lost.
    falls: Arc<AtomicBool>,
    /// How many of the next commits of locked states lose their answer.
    lost_locked: Arc<AtomicU64>,
    /// How long a commit takes for each KiB of its states. Only one runs at a time.
    us_per_kib: Arc<AtomicU64>,
    writing: Arc<tokio::sync::Mutex<()>>,
    /// How many states were loaded.
    loads: AtomicU64,
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

/// Locked states that count when they are given up, and whose commits are lost.
struct Locked {
    states: Box<dyn LockedStates>,
    given_up: Arc<AtomicU64>,
    lost_locked: Arc<AtomicU64>,
    lost_commits: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
    falls: Arc<AtomicBool>,
    us_per_kib: Arc<AtomicU64>,
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// Writes for as long as the states are.
async fn write(us_per_kib: &AtomicU64, writing: &tokio::sync::Mutex<()>, changes: &[Change]) {
    let us_per_kib = us_per_kib.load(Ordering::SeqCst);
    if us_per_kib > 0 {
        let _writing = writing.lock().await;
        let bytes: usize = changes.iter().map(|change| change.state.bytes()).sum();
        tokio::time::sleep(Duration::from_micros(1_000 + us_per_kib * bytes as u64 / 1_024)).await;
    }
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.states.commit(now, changes).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        if take_one(&self.lost_commits) {
            return Err(StoreError::Unavailable("lost before".to_owned()));
        }
        write(&self.us_per_kib, &self.writing, changes).await;
        let committed = self.states.commit_all(now, changes).await?;
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
    fn shown(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(self.offset_ms.load(Ordering::SeqCst)))
    }

    fn meant(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ms(now.as_ms().saturating_add_signed(-self.offset_ms.load(Ordering::SeqCst)))
    }

    fn check_up(&self) -> Result<(), StoreError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("down".to_owned()));
        }
        Ok(())
    }

    async fn until_it_answers(&self) {
        let now = || async { self.shown(self.memory.ping().await.unwrap()) };
        let answers = || async { now().await.as_ms() > self.answers_after.load(Ordering::SeqCst) };
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

    async fn read_access(&self, known: u64) -> Result<AccessText, StoreError> {
        self.memory.read_access(known).await
    }

    async fn write_access(
        &self,
        fence: (EngineState, Epoch),
        expected: u64,
        next: (u64, &str),
    ) -> Result<bool, StoreError> {
        self.memory.write_access(fence, expected, next).await
    }

    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.memory.cluster_secret(fresh).await
    }

    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded, StoreError> {
        self.check_up()?;
        self.loads.fetch_add(addresses.len() as u64, Ordering::SeqCst);
        let loaded = self.memory.load(epoch, addresses).await?;
        Ok(Loaded { now: self.shown(loaded.now), ..loaded })
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.check_up()?;
        if take_one(&self.lost_commits) {
            return Err(StoreError::Unavailable("lost before".to_owned()));
        }
        write(&self.us_per_kib, &self.writing, changes).await;
        let committed = self.memory.commit(self.meant(now), changes).await?;
        if let CommitResult::Checked(_) = committed.result
            && take_one(&self.lost_answers)
        {
            self.is_down.store(self.falls.load(Ordering::SeqCst), Ordering::SeqCst);
            return Err(StoreError::OutcomeUnknown("lost after".to_owned()));
        }
        if take_one(&self.lost_races) {
            return Ok(Committed { result: CommitResult::Checked(vec![None; changes.len()]), ..committed });
        }
        self.until_it_answers().await;
        Ok(Committed { now: self.shown(self.memory.ping().await?), ..committed })
    }

    async fn lock(&self, epoch: Epoch, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
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
            us_per_kib: Arc::clone(&self.us_per_kib),
            writing: Arc::clone(&self.writing),
        };
        Ok((loaded, Box::new(locked)))
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

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        self.ping().await
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.check_up()?;
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

/// Waits until no lease is held, while the store fails from time to time. The leases of these tests last longer than this waits.
async fn until_given_back(node: &Locks) {
    let is_free = || async {
        let page = node.list(&App::default(), "", None, 10).await;
        page.is_ok_and(|(page, _)| {
            page.iter().all(|(_, state)| state.as_ref().is_some_and(|state| state.holders().is_empty()))
        })
    };
    assert!(eventually(PATIENCE, is_free).await, "{:?}", node.inspect(&key()).await);
}

/// Lets the lock be granted to a client that has not read its answer yet.
async fn granted_unread(node: &Locks) -> impl Future + use<> {
    let (locks, address) = (node.clone(), key());
    let mut unread = Box::pin(async move { locks.acquire(&address, request("gone")).await });
    send_unread(&mut unread).await;
    crate::calls::until_held_by(node, "gone").await;
    unread
}

async fn until_down(node: &Locks) {
    assert!(eventually(PATIENCE, || async { !node.is_ready() }).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_although_commits_fail() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let unread = granted_unread(&node).await;
    store.lost_commits.store(5, Ordering::SeqCst);
    drop(unread);
    until_given_back(&node).await;
    assert_eq!(store.lost_commits.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_when_the_store_is_up_again() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let unread = granted_unread(&node).await;
    store.is_down.store(true, Ordering::SeqCst);
    until_down(&node).await;
    drop(unread);
    // The give-back is attempted while the store is down.
    tokio::task::yield_now().await;
    until_down(&node).await;
    store.is_down.store(false, Ordering::SeqCst);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_client_is_given_back_although_the_queue_of_its_shard_is_full() {
    let store = Arc::new(Faulty::default());
    let node = start_with(store.clone(), Limits { calls_per_shard: 4, ..patient() }).await;
    let unread = granted_unread(&node).await;
    // A commit that does not end keeps the shard busy.
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let blocking = {
        let node = node.clone();
        tokio::spawn(async move { node.acquire(&crate::calls::at("other"), request("other")).await })
    };
    let is_busy = || async {
        let page = store.memory.list(&App::default(), "other", None, 1).await.unwrap();
        !page.is_empty()
    };
    assert!(eventually(PATIENCE, is_busy).await);
    let mut queued = Vec::new();
    loop {
        let mut call = {
            let node = node.clone();
            Box::pin(async move { node.inspect(&crate::calls::at("third")).await })
        };
        if let std::task::Poll::Ready(answer) = futures::poll!(&mut call) {
            assert!(matches!(answer, Err(Failure::Overloaded(_))), "{answer:?}");
            break;
        }
        queued.push(call);
    }
    drop(unread);
    store.answers_after.store(0, Ordering::SeqCst);
    let other = blocking.await.unwrap();
    assert!(matches!(other, Ok(Acquired::Granted(_))), "{other:?}");
    node.release(&crate::calls::at("other"), id("other")).await.unwrap();
    until_given_back(&node).await;
}

/// The commit is made, but its answer does not arrive. Meanwhile the client goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_unknown_outcome_is_given_back_if_its_client_has_gone() {
    let store = Arc::new(Faulty::default());
    let node = start_with(store.clone(), Limits { store_timeout: Duration::from_millis(200), ..patient() }).await;
    store.answers_after.store(u64::MAX, Ordering::SeqCst);
    let address = key();
    let mut unread = Box::pin(node.acquire(&address, request("gone")));
    send_unread(&mut unread).await;
    let is_written = || async {
        let page = store.memory.list(&App::default(), "key", None, 1).await.unwrap();
        page.iter().any(|(_, state)| state.as_ref().is_some_and(|state| !state.holders().is_empty()))
    };
    assert!(eventually(PATIENCE, is_written).await);
    drop(unread);
    store.answers_after.store(0, Ordering::SeqCst);
    until_given_back(&node).await;
}

/// A waiter goes on waiting after a commit of unknown outcome, which has granted it the lock. Then its client goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_unknown_outcome_that_leaves_holds_nothing() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let waiting = join(&node, wait("gone")).await;
    until_waiting(&node, 1).await;
    store.falls.store(true, Ordering::SeqCst);
    store.lost_answers.store(1, Ordering::SeqCst);
    let released = node.release(&key(), id("holder")).await;
    assert!(matches!(released, Err(Failure::OutcomeUnknown(_))), "{released:?}");
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let page = store.memory.list(&App::default(), "key", None, 1).await.unwrap();
    assert_eq!(page[0].1.as_ref().unwrap().holders()[0].owner.as_str(), "gone");
    store.is_down.store(false, Ordering::SeqCst);
    until_given_back(&node).await;
    hold(&node, "next").await;
}

/// The node finds the grant again when the store is up. As a repeated acquire it could not be given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_unknown_outcome_gets_its_grant_once() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let mut waiting = {
        let node = node.clone();
        Box::pin(async move { node.acquire(&key(), wait("me")).await })
    };
    send_unread(&mut waiting).await;
    until_waiting(&node, 1).await;
    store.lost_answers.store(1, Ordering::SeqCst);
    let released = node.release(&key(), id("holder")).await;
    assert!(matches!(released, Err(Failure::OutcomeUnknown(_))), "{released:?}");
    // The waiter has left the queue, so it was answered.
    let is_answered = || async { node.inspect(&key()).await.is_ok_and(|inspected| inspected.waiters == 0) };
    assert!(eventually(PATIENCE, is_answered).await);
    assert_eq!(holder(&node).await.as_deref(), Some("me"));
    drop(waiting);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_without_a_client_is_given_back_although_commits_fail() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let mut unread = {
        let node = node.clone();
        Box::pin(async move { node.acquire_many(all("gone", &["a", "b"])).await })
    };
    send_unread(&mut unread).await;
    crate::many::until_held_at(&node, &["a", "b"], "gone").await;
    store.lost_commits.store(20, Ordering::SeqCst);
    drop(unread);
    until_given_back(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multilock_of_unknown_outcome_is_given_back_if_its_client_has_gone() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    for wait in [false, true] {
        let holder = if wait { Some(take(&node, &crate::calls::at("b"), request("holder")).await) } else { None };
        let many = if wait { waiting(all("gone", &["a", "b"])) } else { all("gone", &["a", "b"]) };
        let mut unread = {
            let node = node.clone();
            Box::pin(async move { node.acquire_many(many).await })
        };
        store.falls.store(true, Ordering::SeqCst);
        store.lost_locked.store(1, Ordering::SeqCst);
        send_unread(&mut unread).await;
        if holder.is_some() {
            crate::many::until_waiting_at(&node, "b", 1).await;
            node.release(&crate::calls::at("b"), id("holder")).await.unwrap();
        }
        until_down(&node).await;
        drop(unread);
        store.is_down.store(false, Ordering::SeqCst);
        until_given_back(&node).await;
    }
}

/// A lease that ends at another node is not in this node's memory. Without the store it cannot say who holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_while_the_store_is_down_is_not_refused_and_can_be_resumed() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    hold(&node, "holder").await;
    let waiting = join(&node, LockRequest { wait: Duration::from_secs(2), ..request("waiter") }).await;
    until_waiting(&node, 1).await;
    store.is_down.store(true, Ordering::SeqCst);
    let position = match joined(waiting).await {
        Ok(Acquired::WaitFailed { failure: Failure::StoreUnavailable(_), position }) => position,
        other => panic!("{other:?}"),
    };
    store.is_down.store(false, Ordering::SeqCst);
    let is_released = || async { node.release(&key(), id("holder")).await.is_ok() };
    assert!(eventually(PATIENCE, is_released).await);
    granted(node.acquire(&key(), LockRequest { position: Some(position), ..request("waiter") }).await);

    // So is a multilock.
    let many = LockManyRequest { wait: Duration::from_secs(2), ..all("many", &["another", "key"]) };
    let many = crate::many::join_all(&node, many).await;
    until_waiting(&node, 1).await;
    store.is_down.store(true, Ordering::SeqCst);
    let answer = crate::many::all_joined(many).await;
    assert!(matches!(answer, Ok(AcquiredMany::WaitFailed { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_only_a_reserved_position_is_not_evaluated_over_and_over() {
    let store = Arc::new(Faulty::default());
    let node = start_with(store.clone(), Limits { ticket_hold: Duration::from_secs(3_600), ..patient() }).await;
    let lease = take(&node, &key(), LockRequest { ttl_ms: 2_000, ..request("holder") }).await.lease;
    let position = Some(Position { priority: 1, arrival: lease.granted_at, serial: 1 });
    let returning = LockRequest { wait: Duration::from_millis(100), position, ..request("returning") };
    let waiting = join(&node, returning).await;
    assert_eq!(crate::calls::refused(joined(waiting).await).why, RefusedBecause::WaitTimeout);
    let before = store.loads.load(Ordering::SeqCst);
    // A listing evaluates nothing.
    until_given_back(&node).await;
    let loads = store.loads.load(Ordering::SeqCst) - before;
    assert!(loads < 20, "the state was loaded {loads} times");
}

/// A release is carried out, but its answer is lost. When it is repeated, many other leases have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_unknown_outcome_is_recognised_on_a_busy_key() {
    let store = Arc::new(Faulty::default());
    let (node, other) = (start(store.clone()).await, start(store.clone()).await);
    hold(&node, "me").await;
    store.lost_answers.store(1, Ordering::SeqCst);
    let released = node.release(&key(), id("me")).await;
    assert!(matches!(released, Err(Failure::OutcomeUnknown(_))), "{released:?}");
    for number in 0..40 {
        let name = format!("other-{number}");
        hold(&other, &name).await;
        release(&other, &name).await;
    }
    let is_recognised = || async {
        let released = node.release(&key(), id("me")).await;
        match released {
            Ok(Released::Released { already: true, .. }) => true,
            Err(Failure::StoreUnavailable(_)) => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(eventually(PATIENCE, is_recognised).await);
}

/// Pairs of acquire and release that eight clients make in five seconds, each with a key of its own.
async fn pairs_of_others(node: &Locks) -> u64 {
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let node = node.clone();
        clients.spawn(async move {
            let address = crate::calls::at(&format!("small-{client}"));
            let mut pairs = 0;
            while tokio::time::Instant::now() < until {
                let lease = format!("lease-{client}-{pairs}");
                granted(node.acquire(&address, request(&lease)).await);
                node.release(&address, id(&lease)).await.unwrap();
                pairs += 1;
            }
            pairs
        });
    }
    clients.join_all().await.into_iter().sum()
}

/// Gives the key as many leases as it has space for. Returns how many.
async fn fill(node: &Locks, address: &Address) -> usize {
    let metadata = format!("{{\"text\":\"{}\"}}", "x".repeat(1_000));
    let metadata = Some(latchgate_core::lock::Metadata::from_json_text(&metadata));
    for number in 0.. {
        let request = LockRequest {
            metadata: metadata.clone(),
            ttl_ms: 3_600_000,
            ..crate::calls::shared(request(&format!("large-{number}")))
        };
        match node.acquire(address, request).await {
            Ok(Acquired::Granted(_)) => {}
            Ok(Acquired::KeyFull(_)) => return number,
            other => panic!("{other:?}"),
        }
    }
    unreachable!()
}

/// The time of this test is simulated: a commit of the large key takes as long as 25 others.
#[tokio::test(start_paused = true)]
async fn clients_of_a_key_with_a_large_state_leave_nine_tenths_of_the_time_to_the_others() {
    let store = Arc::new(Faulty::default());
    let node = start(store.clone()).await;
    let large = crate::calls::at("large");
    let leases = fill(&node, &large).await;
    store.us_per_kib.store(100, Ordering::SeqCst);
    let before = pairs_of_others(&node).await;
    let renewals = Arc::new(AtomicU64::new(0));
    for client in 0..4 {
        let (node, large, renewals) = (node.clone(), large.clone(), Arc::clone(&renewals));
        tokio::spawn(async move {
            for number in (0..leases).cycle().skip(client) {
                node.renew(&large, id(&format!("large-{number}")), None).await.unwrap();
                renewals.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let beside = pairs_of_others(&node).await;
    assert!(beside * 100 >= before * 85, "{beside} pairs instead of {before}");
    assert!(renewals.load(Ordering::SeqCst) > 20, "the large key is served too");
}

/// As above, with multilocks over keys whose states are large together.
#[tokio::test(start_paused = true)]
async fn multilocks_with_large_states_leave_most_of_the_time_to_the_others() {
    let store = Arc::new(Faulty::default());
    let limits = Limits { key_bytes_max: 64 << 10, ..patient() };
    let node = start_with(store.clone(), limits).await;
    let keys: Vec<String> = (0..4).map(|number| format!("many-{number}")).collect();
    for key in &keys {
        // There is space for the leases of the multilocks.
        let leases = fill(&node, &crate::calls::at(key)).await;
        for number in 0..4 {
            node.release(&crate::calls::at(key), id(&format!("large-{}", leases - 1 - number))).await.unwrap();
        }
    }
    store.us_per_kib.store(100, Ordering::SeqCst);
    let before = pairs_of_others(&node).await;
    let multilocks = Arc::new(AtomicU64::new(0));
    for client in 0..4 {
        let (node, multilocks) = (node.clone(), Arc::clone(&multilocks));
        let keys = keys.clone();
        tokio::spawn(async move {
            let names: Vec<&str> = keys.iter().map(String::as_str).collect();
            for number in 0.. {
                let mut many = all(&format!("many-{client}-{number}"), &names);
                many.locks.iter_mut().for_each(|lock| lock.mode = latchgate_core::lock::Mode::Shared);
                let (addresses, lease_id) = (crate::many::addresses(&names), many.lease_id.clone());
                if let Ok(AcquiredMany::Granted { .. }) = node.acquire_many(many).await {
                    multilocks.fetch_add(1, Ordering::SeqCst);
                }
                let _ = node.release_many(addresses, lease_id).await;
            }
        });
    }
    let beside = pairs_of_others(&node).await;
    assert!(beside * 100 >= before * 80, "{beside} pairs instead of {before}");
    assert!(multilocks.load(Ordering::SeqCst) > 5, "multilocks are served too");
}
