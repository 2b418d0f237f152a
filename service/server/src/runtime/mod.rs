//! Where the rules meet the stores: shards, batches, queues, timers, wake-ups.

mod answers;
mod batch;
mod call;
mod clock;
mod collector;
pub mod gate;
mod health;
mod history;
mod many;
mod node;
pub mod operations;
mod queue;
pub mod seal;
mod shard;
mod together;
mod verdict;
mod waker;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use latchgate_core::lock::{Command, LeaseId, Outcome};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::call::{Acquired, Answer, Ask, Failure, Granted, Inspected, Refused, RefusedBecause, Released, Renewed};
use self::call::{Call, Envelope, WaiterId};
use self::clock::StoreClock;
use self::health::Health;
use self::history::History;
pub use self::history::{Watch, Watched};
pub use self::many::{AcquiredMany, MANY_MAX, ManyAsk, ReleasedMany, RenewedMany, Wanted};
use self::node::Node;
use self::shard::{CACHE_MAX_AGE, Shard};
use self::waker::Waker;
use crate::store::{LOCKED_AT_ONCE, LockStore, Page, StoreError, WakeUp};

/// Listings that run at once at a node.
const LISTS_MAX: usize = 4;
/// Acquires of many keys that are at the store at once: places are left for those who renew and release.
const ACQUIRE_MANY_AT_ONCE: usize = LOCKED_AT_ONCE * 3 / 4;
/// How often a store that is up is asked whether it is.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How much a node takes on.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls that may stand before one shard.
    pub calls_per_shard: usize,
    pub waiters_per_key: usize,
    pub waiters_per_shard: usize,
    pub cached_keys_per_shard: usize,
    /// How long the place of a client that has come back with a ticket is kept after its wait, for it to come again.
    pub ticket_hold: Duration,
    /// The longest lease that callers may ask for, in ms.
    pub ttl_ms_max: u64,
    /// Longest time for one batch's dealings with the store.
    pub store_timeout: Duration,
    /// How long a key's state is kept after its last lease and turn have ended.
    pub idle_retention: Duration,
    /// How often the collection takes a step.
    pub collect_interval: Duration,
    /// Rows that a step of the collection looks at, and events that it deletes at once.
    pub collect_rows: usize,
    /// Whether events are kept, and told to those who watch.
    pub history: bool,
    /// How many may watch at once.
    pub watchers: usize,
    pub history_retention: Duration,
}

/// How long renewals are kept: only those who watch want them.
const RENEWED_RETENTION: Duration = Duration::from_secs(600);

impl Limits {
    fn history_retention_ms(&self) -> u64 {
        u64::try_from(self.history_retention.as_millis()).unwrap_or(u64::MAX)
    }

    fn renewed_retention_ms(&self) -> u64 {
        u64::try_from(self.history_retention.min(RENEWED_RETENTION).as_millis()).unwrap_or(u64::MAX)
    }

    fn idle_retention_ms(&self) -> u64 {
        // A row made anew starts its versions at the clock: by then no node may trust a state cached from the old one.
        let floor = CACHE_MAX_AGE * 2;
        u64::try_from(self.idle_retention.max(floor).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_per_shard: 8_192,
            waiters_per_key: 10_000,
            waiters_per_shard: 50_000,
            cached_keys_per_shard: 20_000,
            ticket_hold: Duration::from_millis(250),
            ttl_ms_max: 3_600_000,
            store_timeout: Duration::from_millis(800),
            idle_retention: Duration::from_secs(3_600),
            collect_interval: Duration::from_secs(1),
            collect_rows: 1_000,
            history: true,
            watchers: 64,
            history_retention: Duration::from_secs(24 * 3_600),
        }
    }
}

/// This node's locks. Clones are handles on the same shards.
#[derive(Clone)]
pub struct Locks {
    shards: Arc<[mpsc::Sender<Envelope>]>,
    node: Arc<Node>,
    next_waiter: Arc<AtomicU64>,
    /// Places for listings.
    lists: Arc<Semaphore>,
    /// Places for multilocks at the store.
    many: Arc<Semaphore>,
    /// Of these, places for acquires.
    acquire_many: Arc<Semaphore>,
    /// Ends the node's own tasks with the last handle.
    _running: Arc<DropGuard>,
}

impl Locks {
    /// Starts the shards.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn start(store: Arc<dyn LockStore>, limits: Limits) -> anyhow::Result<Self> {
        store.expect_leases_of(limits.ttl_ms_max).await?;
        let clock = StoreClock::default();
        let asked = Instant::now();
        clock.learn(store.ping().await?, asked, Instant::now());
        let id = store.node_id();
        let wake_ups = store.wake_ups(&id).await?;
        let running = CancellationToken::new();
        let node = Arc::new(Node {
            id,
            clock,
            health: Health::default(),
            waker: Waker::start(Arc::clone(&store), limits.store_timeout),
            closing: CancellationToken::new(),
            looks: OnceLock::new(),
            waiters: AtomicU64::new(0),
            history: History::start(Arc::clone(&store), limits.history, limits.watchers, limits.store_timeout),
            store,
            limits,
        });
        let mut shards = Vec::new();
        let mut shard_wake_ups = Vec::new();
        for _ in 0..node.store.shards().max(1) {
            let (sender, calls) = mpsc::channel(node.limits.calls_per_shard);
            let (wake_sender, wakes) = mpsc::channel(node.limits.calls_per_shard);
            watch_over(tokio::spawn(Shard::new(Arc::clone(&node), calls, sender.downgrade(), wakes).run()));
            shards.push(sender);
            shard_wake_ups.push(wake_sender);
        }
        let _ = node.looks.set(shard_wake_ups.clone());
        tokio::spawn(running.clone().run_until_cancelled_owned(pass_on(wake_ups, shard_wake_ups)));
        tokio::spawn(running.clone().run_until_cancelled_owned(probe(Arc::clone(&node))));
        let shards: Arc<[mpsc::Sender<Envelope>]> = shards.into();
        let collector = collector::run(Arc::clone(&node), Arc::clone(&shards));
        tokio::spawn(running.clone().run_until_cancelled_owned(collector));
        Ok(Self {
            shards,
            node,
            next_waiter: Arc::default(),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
            many: Arc::new(Semaphore::new(LOCKED_AT_ONCE)),
            acquire_many: Arc::new(Semaphore::new(ACQUIRE_MANY_AT_ONCE)),
            _running: Arc::new(running.drop_guard()),
        })
    }

    /// # Errors
    /// When there is no answer; then see [`Failure`] for whether something was done.
    pub async fn acquire(&self, address: &Address, ask: Ask) -> Answer<Acquired> {
        let mut ask = ask;
        // A node that is shutting down lets nobody wait: who would have to gets a ticket instead.
        let is_sent_on = self.node.closing.is_cancelled() && !ask.wait.is_zero();
        if is_sent_on {
            ask.wait = Duration::ZERO;
        }
        let shard = self.shard(address);
        // The last quarter is for those who hold something already.
        if shard.capacity() < shard.max_capacity() / 4 {
            return Err(Failure::Overloaded("too many calls stand before this key's shard"));
        }
        let id = self.next_waiter();
        let (reply, answer) = oneshot::channel();
        let lease_id = ask.lease_id.clone();
        self.send(address, Call::Acquire { id, ask, asked: Instant::now(), is_scout: false, reply })?;
        let mut leaving = Leaving { shard, address, id, is_armed: true };
        let delivery = answer.await;
        leaving.is_armed = false;
        match delivery.map_or_else(|_| Err(unanswered(&lease_id)), call::Delivery::accept) {
            Ok(Acquired::Refused(refused)) if is_sent_on => {
                Ok(Acquired::Refused(Refused { why: RefusedBecause::WaitTimeout, ..refused }))
            }
            answer => answer,
        }
    }

    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn renew(&self, address: &Address, lease_id: LeaseId, ttl_ms: Option<u64>) -> Answer<Renewed> {
        let (reply, answer) = oneshot::channel();
        self.send(address, Call::Renew { lease_id: lease_id.clone(), ttl_ms, reply })?;
        answer.await.unwrap_or_else(|_| Err(unanswered(&lease_id)))
    }

    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn release(&self, address: &Address, lease_id: LeaseId) -> Answer<Released> {
        let (reply, answer) = oneshot::channel();
        self.send(address, Call::Release { lease_id: lease_id.clone(), reply })?;
        answer.await.unwrap_or_else(|_| Err(unanswered(&lease_id)))
    }

    /// Carries out a command that no lease is answered for. Returns what it came to and the store's clock.
    ///
    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn command(&self, address: &Address, command: Command) -> Answer<(Outcome, Timestamp)> {
        let (reply, answer) = oneshot::channel();
        self.send(address, Call::Command { command, reply })?;
        let gone = || Err(Failure::OutcomeUnknown("the node stopped while it served this".to_owned()));
        answer.await.unwrap_or_else(|_| gone())
    }

    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn inspect(&self, address: &Address) -> Answer<Inspected> {
        let (reply, answer) = oneshot::channel();
        self.send(address, Call::Inspect { reply })?;
        answer.await.unwrap_or(Err(Failure::ShuttingDown))
    }

    /// States in key order, read at once from the store, with its clock.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Answer<(Page, Timestamp)> {
        let (app, prefix, after) = (app.clone(), prefix.to_owned(), after.cloned());
        let list = |store: Arc<dyn LockStore>| async move { store.list(&app, &prefix, after.as_ref(), limit).await };
        let page = self.read(list).await?;
        Ok((page, self.node.clock.now().unwrap_or_default()))
    }

    /// Reads, at once, what may be much: so many at a time.
    async fn read<T: Send + 'static, F>(&self, read: impl FnOnce(Arc<dyn LockStore>) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let place = Arc::clone(&self.lists).try_acquire_owned();
        let place = place.map_err(|_| Failure::Overloaded("too many listings at once"))?;
        let read = read(Arc::clone(&self.node.store));
        // The place is free when the store has answered, and not when the client has gone.
        let placed = async move {
            let read = read.await;
            drop(place);
            read
        };
        self.node.read(placed).await
    }

    /// Whether the store answered when it was last asked, which is not long ago, and the node is not shutting down.
    pub fn is_ready(&self) -> bool {
        self.node.health.is_up() && !self.node.closing.is_cancelled()
    }

    /// How many wait in this node's queues.
    pub fn waiters(&self) -> u64 {
        self.node.waiters.load(Ordering::Relaxed)
    }

    /// How long nothing new is granted yet, in ms.
    pub fn hold_off_ms(&self) -> u64 {
        self.node.store.term().hold_off_until.ms_since(self.now())
    }

    /// Waits until the store answers again, but no longer than `patience`.
    pub async fn until_ready(&self, patience: Duration) {
        let mut health = self.node.health.watch();
        let _ = tokio::time::timeout(patience, health.wait_for(|is_up| *is_up)).await;
    }

    /// The store's clock, as far as this node knows.
    pub fn now(&self) -> Timestamp {
        self.node.clock.now().unwrap_or_default()
    }

    pub fn store_name(&self) -> &'static str {
        self.node.store.name()
    }

    /// Whether a lease that was granted may be forgotten when the store crashes.
    pub fn is_volatile(&self) -> bool {
        self.node.store.is_volatile()
    }

    /// For how long leases of an engine that was left by force may be live besides those known, in ms.
    pub fn forced_ms(&self) -> Option<u64> {
        let left = self.node.store.forced_until()?.ms_since(self.now());
        Some(left).filter(|left| *left > 0)
    }

    /// Ends all waits and takes on no new ones; everything else is still served.
    pub fn close(&self) {
        self.node.closing.cancel();
    }

    fn next_waiter(&self) -> WaiterId {
        self.next_waiter.fetch_add(1, Ordering::Relaxed)
    }

    fn send(&self, address: &Address, call: Call) -> Result<(), Failure> {
        if !self.node.health.is_up() {
            return Err(Failure::StoreUnavailable("the store does not answer".to_owned()));
        }
        let envelope = Envelope { address: address.clone(), call };
        self.shard(address).try_send(envelope).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::Overloaded("too many calls stand before this key's shard"),
            mpsc::error::TrySendError::Closed(_) => Failure::ShuttingDown,
        })
    }

    fn shard(&self, address: &Address) -> &mpsc::Sender<Envelope> {
        &self.shards[shard_of(address, self.shards.len())]
    }
}

/// Leaves the queue when its handler is dropped: the client has gone.
struct Leaving<'a> {
    shard: &'a mpsc::Sender<Envelope>,
    address: &'a Address,
    id: WaiterId,
    is_armed: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            // Should the shard be full, it notices when it comes to this waiter.
            let _ = self.shard.try_send(Envelope { address: self.address.clone(), call: Call::Leave(self.id) });
        }
    }
}

fn shard_of(address: &Address, shards: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    usize::try_from(hasher.finish() % shards as u64).unwrap_or_default()
}

/// The shard is gone, and with it what it knew of this call.
fn unanswered(lease_id: &LeaseId) -> Failure {
    Failure::OutcomeUnknown(format!("the node stopped while it served lease {}", lease_id.as_str()))
}

/// A node without one of its shards would refuse a part of the keys for ever: better that it is started anew.
fn watch_over(shard: tokio::task::JoinHandle<()>) {
    tokio::spawn(async move {
        if let Err(error) = shard.await
            && error.is_panic()
        {
            tracing::error!(%error, "a shard has panicked: this process ends");
            std::process::exit(70);
        }
    });
}

async fn pass_on(mut wake_ups: mpsc::Receiver<WakeUp>, shards: Vec<mpsc::Sender<Option<Address>>>) {
    while let Some(wake_up) = wake_ups.recv().await {
        match wake_up {
            WakeUp::Key(address) => {
                let _ = shards[shard_of(&address, shards.len())].try_send(Some(address));
            }
            WakeUp::All => {
                for shard in &shards {
                    let _ = shard.send(None).await;
                }
            }
        }
    }
    // The store sends none; the shards' channels must stay open.
    std::future::pending::<()>().await;
}

/// Finds out when a store that was up is down, and when one that was down is back.
async fn probe(node: Arc<Node>) {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut health = node.health.watch();
    loop {
        if tokio::time::timeout(PROBE_EVERY, health.wait_for(|is_up| !is_up)).await.is_err() {
            // Nobody has noticed anything; but perhaps nobody has asked.
            let answers = ping(&node).await;
            node.health.set(answers);
            continue;
        }
        tracing::warn!(store = node.store.name(), "the store is down");
        while !ping(&node).await {
            tokio::time::sleep(PAUSE).await;
        }
        tracing::info!(store = node.store.name(), "the store is up");
        node.health.set(true);
    }
}

async fn ping(node: &Node) -> bool {
    let asked = Instant::now();
    let Ok(Ok(shown)) = tokio::time::timeout(node.limits.store_timeout, node.store.ping()).await else { return false };
    node.clock.learn(shown, asked, Instant::now());
    true
}
