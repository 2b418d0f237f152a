//! The handle on the locks of a node, which sends each call to the committer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use latchgate_core::lock::{Command, LeaseId, LockState, Metadata, NodeId, Outcome, Refusal, Release, Renew, WaiterId};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument as _;

use super::call::{
    AcquireCall, Acquired, Call, CallResult, Delivery, Envelope, Failure, Inspected, LockRequest, Refused, Reply,
};
use super::committer::Committer;
use super::history::{History, trim};
use super::node::LockNode;
use super::refusal::in_time;
use crate::engines::EngineSet;
use crate::node::{Limits, Node, collect, exit_if_it_panics, probe};
use crate::observe::metrics::LockMetrics;
use crate::observe::traces;
use crate::store::{LOCKED_AT_ONCE, Page, StoreError};

/// Listings that run at once at a node.
const LISTS_MAX: usize = 4;
/// How many keys of an app are looked through to find one in use: so many pages of so many.
const LOOK_PAGES_MAX: usize = 50;
const LOOK_PAGE: usize = 200;
/// Acquires of many keys that use the store at once. The rest is left for renewals and releases of many keys.
const ACQUIRE_MANY_AT_ONCE: usize = LOCKED_AT_ONCE * 3 / 4;

/// This node's locks. Clones are handles on the same committer.
#[derive(Clone)]
pub struct Locks {
    calls: mpsc::Sender<Envelope>,
    pub(super) node: Arc<LockNode>,
    next_waiter: Arc<AtomicU64>,
    /// Permits for listings.
    lists: Arc<Semaphore>,
    /// Permits for multilocks at the store.
    pub(super) many: Arc<Semaphore>,
    /// Permits for acquires of multilocks.
    pub(super) acquire_many: Arc<Semaphore>,
    /// Ends the node's own tasks when the last handle is dropped.
    _running: Arc<DropGuard>,
}

impl Locks {
    /// Starts the committer of the node with this id on one store or a pair.
    ///
    /// # Errors
    /// When no engine is in use, or it cannot be reached.
    pub fn start(store: EngineSet, id: NodeId, limits: Limits) -> BoxFuture<'static, anyhow::Result<Self>> {
        async move {
            let node = Node::start(store, id, limits, Arc::default()).await?;
            let wake_ups = node.store.wake_ups(&node.id);
            let (rechecks, to_recheck) = mpsc::channel(node.limits.calls_max);
            let (calls, received) = mpsc::channel(node.limits.calls_max);
            let (running, closing) = (CancellationToken::new(), CancellationToken::new());
            let metrics = Arc::clone(&node.metrics);
            let history = History::start(node.store.clone(), &node.limits, closing.clone(), metrics);
            let node = Arc::new(LockNode { node, history, closing, waiters: AtomicU64::new(0), rechecks });
            let committer = Committer::new(Arc::clone(&node), received, calls.downgrade(), wake_ups, to_recheck);
            exit_if_it_panics(tokio::spawn(committer.run()));
            tokio::spawn(running.clone().run_until_cancelled_owned(probe(Arc::clone(&node.node))));
            tokio::spawn(running.clone().run_until_cancelled_owned(trim(Arc::clone(&node.node))));
            let sender = calls.clone();
            let notice = move |address| {
                // If the committer's queue is full, the next walk finds the key again.
                let look = Call::Command { command: Command::Tick, reply: Reply::None };
                let _ = sender.try_send(Envelope::new(address, look));
            };
            let collecting = collect::<LockState>(Arc::clone(&node.node), notice);
            tokio::spawn(running.clone().run_until_cancelled_owned(collecting));
            Ok(Self {
                calls,
                node,
                next_waiter: Arc::default(),
                lists: Arc::new(Semaphore::new(LISTS_MAX)),
                many: Arc::new(Semaphore::new(LOCKED_AT_ONCE)),
                acquire_many: Arc::new(Semaphore::new(ACQUIRE_MANY_AT_ONCE)),
                _running: Arc::new(running.drop_guard()),
            })
        }
        .boxed()
    }

    /// # Errors
    /// When there is no answer; then see [`Failure`] for whether something was done.
    // Not `async fn`: that would keep room for the request as long as it waits.
    pub fn acquire<'a>(
        &'a self,
        address: &'a Address,
        request: LockRequest,
    ) -> impl Future<Output = CallResult<Acquired>> + Send + 'a {
        let sent = self.send_acquire(address, request);
        async {
            let Sent { answer, mut leaving, ends_at_once } = sent?;
            let delivery = answer.instrument(traces::call("acquire")).await;
            leaving.is_armed = false;
            match delivery.map_or_else(|_| Err(unanswered()), Delivery::accept) {
                Ok(Acquired::Refused(refused)) if ends_at_once => {
                    Ok(Acquired::Refused(Refused { why: Refusal::WaitTimeout, ..refused }))
                }
                answer => answer,
            }
        }
    }

    fn send_acquire<'a>(&'a self, address: &'a Address, mut request: LockRequest) -> CallResult<Sent<'a>> {
        // While the node shuts down no caller waits: it gets a ticket at once and resumes at another node.
        let ends_at_once = self.node.closing.is_cancelled() && !request.wait.is_zero();
        if ends_at_once {
            request.wait = Duration::ZERO;
        }
        // The last quarter of the committer's queue is for renewals and releases.
        if self.calls.capacity() < self.calls.max_capacity() / 4 {
            return Err(Failure::Overloaded("too many calls wait for the committer"));
        }
        let id = self.next_waiter();
        let (reply, answer) = oneshot::channel();
        let call = AcquireCall { id, request, requested_at: Instant::now(), is_probe: false, reply };
        self.send(address, Call::Acquire(call))?;
        Ok(Sent { answer, leaving: LeaveOnDrop { calls: &self.calls, address, id, is_armed: true }, ends_at_once })
    }

    /// `metadata`, if any, replace those of the lease.
    ///
    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn renew(
        &self,
        address: &Address,
        lease_id: LeaseId,
        ttl_ms: Option<u64>,
        metadata: Option<Metadata>,
    ) -> CallResult<(Outcome, Timestamp)> {
        let renewal = Command::Renew(Renew { metadata, ..Renew::new(lease_id, ttl_ms) });
        let (outcome, now) = self.carry_out(address, renewal, Reply::Outcome, "renew").await?;
        Ok((in_time(outcome, now)?, now))
    }

    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn release(&self, address: &Address, lease_id: LeaseId) -> CallResult<Outcome> {
        let release = Command::Release(Release { lease_id });
        Ok(self.carry_out(address, release, Reply::Outcome, "release").await?.0)
    }

    /// Carries out a command of an operator or a resource. Returns its outcome and the store's time.
    ///
    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn command(&self, address: &Address, command: Command) -> CallResult<(Outcome, Timestamp)> {
        self.carry_out(address, command, Reply::Outcome, "command").await
    }

    /// # Errors
    /// See [`Locks::acquire`].
    pub async fn inspect(&self, address: &Address) -> CallResult<Inspected> {
        self.carry_out(address, Command::Tick, Reply::Inspect, "inspect").await
    }

    /// Has the committer carry out a command; `name` is that of the call in traces.
    async fn carry_out<T>(
        &self,
        address: &Address,
        command: Command,
        reply: impl FnOnce(oneshot::Sender<CallResult<T>>) -> Reply,
        name: &'static str,
    ) -> CallResult<T> {
        let (sender, answer) = oneshot::channel();
        self.send(address, Call::Command { command, reply: reply(sender) })?;
        answer.instrument(traces::call(name)).await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// States in key order, read from the store, and the store's time.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn list(
        &self,
        app: &App,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> CallResult<(Page, Timestamp)> {
        let (app, prefix, after) = (app.clone(), prefix.to_owned(), after.cloned());
        let list = |engines: EngineSet| async move {
            engines.in_use()?.store.list(&app, &prefix, after.as_ref(), limit).await
        };
        let page = self.read(list).await?;
        Ok((page, self.node.clock.now().unwrap_or_default()))
    }

    /// The first app after this text that has keys.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn app_after(&self, after: &str) -> CallResult<Option<App>> {
        let mut after = after.to_owned();
        loop {
            let from = after.clone();
            let found = self.read(|engines| async move { engines.in_use()?.store.app_after(&from).await }).await?;
            // Rows of an app that is none are passed over: another program has written them.
            match found.as_deref().map(App::parse) {
                Some(Err(_)) => after = found.unwrap_or_default(),
                app => return Ok(app.and_then(Result::ok)),
            }
        }
    }

    /// Whether a lock of the app is held, waited for, delayed, closed or limited; also if the app has too many keys to look through.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn has_locks(&self, app: &App) -> CallResult<bool> {
        let mut after = None;
        for _ in 0..LOOK_PAGES_MAX {
            let (page, now) = self.list(app, "", after.as_ref(), LOOK_PAGE).await?;
            let is_last = page.len() < LOOK_PAGE;
            after = page.last().map(|(key, _)| key.clone());
            if page.into_iter().any(|(_, state)| state.is_none_or(|state| state.is_in_use(now))) {
                return Ok(true);
            }
            if is_last {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads from the store what may be large. Only some such reads run at once.
    pub(super) async fn read<T: Send + 'static, F>(&self, read: impl FnOnce(EngineSet) -> F) -> CallResult<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let permit = Arc::clone(&self.lists).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::Overloaded("too many listings at once"))?;
        let read = read(self.node.store.clone());
        // The permit is returned when the store has answered, and not when the client has gone.
        let bounded = async move {
            let read = read.await;
            drop(permit);
            read
        };
        self.node.read(bounded).await
    }

    /// Whether the store takes commits, and the node is not shutting down.
    pub fn is_ready(&self) -> bool {
        self.trouble().is_none()
    }

    /// Why the node should get no new callers.
    pub fn trouble(&self) -> Option<String> {
        if self.node.closing.is_cancelled() {
            return Some("this node is shutting down".to_owned());
        }
        let risk = || self.node.store.risk().filter(|risk| !risk.is_accepted);
        let unused = || self.node.store.in_use().err().map(|error| error.reason());
        self.node.health.trouble().or_else(unused).or_else(|| risk().map(|risk| risk.what))
    }

    pub fn metrics(&self) -> &LockMetrics {
        &self.node.metrics
    }

    /// How many waiters this node's queues have.
    pub fn waiters(&self) -> u64 {
        self.node.waiters.load(Ordering::Relaxed)
    }

    /// For how long no new lease will be granted, in ms.
    pub fn hold_off_ms(&self) -> u64 {
        let until = self.node.store.in_use().ok().and_then(|used| used.hold_off(self.now()));
        until.map_or(0, |until| until.ms_since(self.now()))
    }

    /// Waits until the store answers again, but no longer than `patience`.
    pub async fn until_ready(&self, patience: Duration) {
        let mut health = self.node.health.watch();
        let _ = tokio::time::timeout(patience, health.wait_for(Option::is_none)).await;
    }

    /// The store's clock, as far as this node knows.
    pub fn now(&self) -> Timestamp {
        self.node.clock.now().unwrap_or_default()
    }

    /// This node's part in the engine set of the locks.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node.node
    }

    /// The store of these locks, or the pair.
    pub fn engines(&self) -> &EngineSet {
        &self.node.store
    }

    pub fn node_id(&self) -> &NodeId {
        &self.node.id
    }

    /// Whether a crash of the store may lose acknowledged leases.
    pub fn is_volatile(&self) -> bool {
        self.node.store.in_use().is_ok_and(|used| used.store.is_volatile())
    }

    /// For how long leases of an engine that was left by force may be live besides those known, in ms.
    pub fn forced_ms(&self) -> Option<u64> {
        let left = self.node.store.in_use().ok()?.forced_until.ms_since(self.now());
        Some(left).filter(|left| *left > 0)
    }

    /// Ends all waits and begins no new ones. All other calls are still served.
    pub fn close(&self) {
        self.node.closing.cancel();
    }

    pub(super) fn next_waiter(&self) -> WaiterId {
        self.next_waiter.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn send(&self, address: &Address, call: Call) -> Result<(), Failure> {
        if !self.node.health.is_up() {
            return Err(Failure::StoreUnavailable("the store does not answer".to_owned()));
        }
        let envelope = Envelope::new(address.clone(), call);
        self.calls.try_send(envelope).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::Overloaded("too many calls wait for the committer"),
            mpsc::error::TrySendError::Closed(_) => Failure::ShuttingDown,
        })
    }
}

/// An acquire that the committer will answer.
struct Sent<'a> {
    answer: oneshot::Receiver<Delivery>,
    leaving: LeaveOnDrop<'a>,
    ends_at_once: bool,
}

/// Leaves the queue when the handler is dropped, because the client has gone.
struct LeaveOnDrop<'a> {
    calls: &'a mpsc::Sender<Envelope>,
    address: &'a Address,
    id: WaiterId,
    is_armed: bool,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            // If its queue is full, the committer notices the closed reply when it comes to this waiter.
            let _ = self.calls.try_send(Envelope::new(self.address.clone(), Call::Leave(self.id)));
        }
    }
}

/// The committer stopped while it served this call.
pub(super) fn unanswered() -> Failure {
    Failure::OutcomeUnknown("the node stopped while it served this".to_owned())
}
