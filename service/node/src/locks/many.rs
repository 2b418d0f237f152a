//! Multilocks: many keys in one commit, all or none.
//!
//! While it waits a multilock holds nothing. It has a probe in the queue of the first key that refuses it, with the position
//! of its first arrival. When the probe is notified of its turn, the multilock tries all keys again, and moves its probe to
//! the next key that refuses it.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{
    Acquire, Command, Demand, GiveBack, GrantId, Lease, LeaseTerms, LockState, NodeId, Outcome, Position, QueueNumbers,
    QueuePosition, Refusal, Terms, WaiterId, step,
};
use latchgate_core::{Address, Timestamp};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tracing::Instrument as _;

use super::call::{AcquireCall, Acquired, Call, CallResult, Delivery, Failure, LockRequest, Refused};
use super::handle::{Locks, unanswered};
use super::key_queue::WaitQueue;
use super::multilock_commit::{Decision, Undone};
use super::refusal::{refused, too_late};

/// Keys that one multilock has at most.
pub const MANY_MAX: usize = 64;

/// The pause before another attempt after a failure that may pass.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One key of a multilock.
#[derive(Clone, Debug)]
pub struct RequestedLock {
    pub address: Address,
    pub demand: Demand,
}

/// A request for leases on many keys.
#[derive(Clone, Debug)]
pub struct LockManyRequest {
    /// At most [`MANY_MAX`], none twice.
    pub locks: Vec<RequestedLock>,
    /// Of each lock, except for mode, limit and group.
    pub lease: LeaseTerms,
    pub priority: u8,
    pub wait: Duration,
    /// The position of an earlier wait, which this one resumes.
    pub position: Option<Position>,
}

/// The answer to it. An index is that of a key in the request.
#[derive(Clone, Debug)]
pub enum AcquiredMany {
    /// One lease for each key, with the limit of its permits.
    Granted {
        leases: Vec<(Lease, Option<u32>)>,
        waited: Duration,
        now: Timestamp,
    },
    Refused {
        index: usize,
        refused: Refused,
    },
    /// Refused for good: the lease id is in use, the limit does not match, or the lease is lost.
    Ended {
        index: usize,
        outcome: Outcome,
    },
    /// The wait has ended, and the store did not say whether the client has the leases.
    WaitFailed {
        failure: Failure,
        /// The caller's position, which it can resume.
        position: Position,
    },
}

enum Attempt {
    Granted { leases: Vec<(Lease, Option<u32>)>, is_new: bool },
    Refused { index: usize, refusal: Refusal, state: Box<LockState>, now: Timestamp },
    Ended { index: usize, outcome: Outcome },
}

impl Locks {
    /// # Errors
    /// When there is no answer; then see [`Failure`] for whether something was done.
    pub async fn acquire_many(&self, request: LockManyRequest) -> CallResult<AcquiredMany> {
        let began = Instant::now();
        let (reply, answer) = oneshot::channel();
        // In a task of its own, which runs to its end even if the client goes away.
        let may_wait = !request.wait.is_zero();
        tokio::spawn(acquire_and_answer(self.clone(), request, reply).in_current_span());
        let Ok((answer, received)) = answer.await else { return Err(unanswered()) };
        if may_wait {
            self.node.metrics.wait_seconds.observe(began.elapsed().as_secs_f64());
        }
        let _ = received.send(());
        answer
    }
}

/// An answer on its way to its handler, which confirms that it was received. If the client has gone, the answer is dropped
/// together with the confirmation.
type Reply = oneshot::Sender<(CallResult<AcquiredMany>, oneshot::Sender<()>)>;

/// Answers with the leases; gives them back if the client has gone.
async fn acquire_and_answer(locks: Locks, request: LockManyRequest, mut reply: Reply) {
    let request = Arc::new(request);
    let mut multilock = Multilock::new(&locks, &request);
    let answer = multilock.run(&mut reply).await;
    let undelivered = multilock.undelivered;
    // With these answers the client knows what it may hold. With any other it relies on no lease, but an earlier attempt of
    // unknown outcome may have been granted.
    let is_informed = matches!(
        answer,
        Some(
            Ok(AcquiredMany::Granted { .. } | AcquiredMany::WaitFailed { failure: Failure::OutcomeUnknown(_), .. })
                | Err(Failure::OutcomeUnknown(_))
        )
    );
    let is_received = match answer {
        Some(answer) => {
            let (received, confirmation) = oneshot::channel();
            let _ = reply.send((answer, received));
            confirmation.await.is_ok()
        }
        None => false,
    };
    if !(undelivered.is_empty() || is_received && is_informed) {
        give_back(&locks, &request, undelivered).await;
    }
}

/// One multilock on its way.
struct Multilock<'a> {
    locks: &'a Locks,
    request: &'a Arc<LockManyRequest>,
    requested_at: Instant,
    position: Position,
    /// The grants of each attempt that was granted, or may have been.
    undelivered: Vec<Grants>,
}

/// One grant for each key.
type Grants = Vec<GrantId>;

impl<'a> Multilock<'a> {
    fn new(locks: &'a Locks, request: &'a Arc<LockManyRequest>) -> Self {
        let requested_at = Instant::now();
        let arrival = locks.node.clock.arrival(requested_at).unwrap_or_default();
        let new = || Position { priority: request.priority, arrival, serial: locks.next_waiter() };
        let position = request.position.unwrap_or_else(new);
        Self { locks, request, requested_at, position, undelivered: Vec::new() }
    }

    /// Tries all keys, waits for the turn of the probe, and tries again, until there is an answer. Returns `None` if the client
    /// has gone.
    async fn run(&mut self, reply: &mut Reply) -> Option<CallResult<AcquiredMany>> {
        let Self { locks, request, requested_at, position, .. } = *self;
        let deadline = requested_at + request.wait;
        let failed = |failure: Failure, has_waited: bool| {
            let is_wait = has_waited && is_passing(&failure);
            Some(if is_wait { Ok(AcquiredMany::WaitFailed { failure, position }) } else { Err(failure) })
        };
        // It leaves its queue when it is dropped.
        let mut probe: Option<Probe> = None;
        loop {
            let (index, refused) = match self.attempt().await {
                // As with one key, a waiter goes on waiting. Its lease id makes another attempt safe.
                Err(failure)
                    if probe.is_some()
                        && requested_at.elapsed() + RETRY_PAUSE < request.wait
                        && is_passing(&failure) =>
                {
                    tokio::select! {
                        biased;
                        () = reply.closed() => return None,
                        () = tokio::time::sleep(RETRY_PAUSE) => continue,
                    }
                }
                Err(failure) => return failed(failure, probe.is_some()),
                Ok(Attempt::Ended { index, outcome }) => return Some(Ok(AcquiredMany::Ended { index, outcome })),
                Ok(Attempt::Granted { leases, is_new }) => return Some(self.granted(leases, is_new)),
                Ok(Attempt::Refused { index, refusal, state, now }) => {
                    let acquire = request.acquire(index, &apart_from(&locks.node.id), position);
                    let waiters = state.turns().iter().map(|turn| u64::from(turn.waiting)).sum();
                    let number = QueueNumbers::new(&state, &acquire.node).of(&WaitQueue::default(), None, &acquire);
                    (index, refused(&state, refusal, (&acquire, requested_at), (number, waiters), now))
                }
            };
            let now = Instant::now();
            if request.wait.is_zero() {
                return Some(Ok(AcquiredMany::Refused { index, refused }));
            }
            if now >= deadline || locks.node.closing.is_cancelled() {
                let refused = Refused { why: Refusal::WaitTimeout, ..refused };
                return Some(Ok(AcquiredMany::Refused { index, refused }));
            }
            let next = match Probe::join(locks, request, index, position, deadline - now) {
                Ok(next) => next,
                Err(failure) => return Some(Err(failure)),
            };
            // Only now the earlier probe leaves its queue.
            let next = probe.insert(next);
            let delivery = tokio::select! {
                biased;
                () = reply.closed() => return None,
                delivery = &mut next.notification => delivery,
            };
            match delivery.map_err(|_| Failure::ShuttingDown).and_then(Delivery::accept) {
                Ok(Acquired::Refused(mut refused)) => {
                    refused.waited = requested_at.elapsed();
                    return Some(Ok(AcquiredMany::Refused { index, refused }));
                }
                Ok(Acquired::WaitFailed { failure, .. }) => return failed(failure, true),
                // Its turn has come, or its key has an answer that only an attempt on all keys gives.
                Ok(_) => {}
                Err(failure) => return Some(Err(failure)),
            }
        }
    }

    /// One attempt. Remembers the grants of unknown outcome.
    async fn attempt(&mut self) -> CallResult<Attempt> {
        let attempt = attempt(self.locks, self.request, self.position, self.undelivered.clone()).await;
        attempt.map_err(|Undone { failure, uncertain }| {
            if let Some(Attempt::Granted { leases, is_new: true }) = uncertain {
                self.undelivered.push(leases.iter().map(|(lease, _)| lease.grant_id()).collect());
            }
            failure
        })
    }

    /// The answer with leases that have been committed.
    fn granted(&mut self, leases: Vec<(Lease, Option<u32>)>, is_new: bool) -> CallResult<AcquiredMany> {
        // A repeated grant is not given back: its first answer may have arrived.
        self.undelivered.clear();
        if is_new {
            self.undelivered.push(leases.iter().map(|(lease, _)| lease.grant_id()).collect());
        }
        let now = self.locks.node.clock.latest().unwrap_or_default();
        if leases.iter().any(|(lease, _)| lease.expires_at <= now) {
            return Err(too_late());
        }
        Ok(AcquiredMany::Granted { leases, waited: self.requested_at.elapsed(), now })
    }
}

/// Whether another attempt may succeed.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure, Failure::Overloaded(_) | Failure::StoreUnavailable(_) | Failure::OutcomeUnknown(_))
}

/// Not this node's name, so that the turn of its waiters counts like any other. The turn of the multilock's own probe has the same position
/// and does not block it.
fn apart_from(node: &NodeId) -> NodeId {
    NodeId::new(&format!("{}+", node.as_str()))
}

/// `uncertain`: the grants of earlier attempts of unknown outcome.
async fn attempt(
    locks: &Locks,
    request: &Arc<LockManyRequest>,
    position: Position,
    uncertain: Vec<Grants>,
) -> Result<Attempt, Undone<Attempt>> {
    let addresses = request.locks.iter().map(|key| key.address.clone()).collect();
    let node = apart_from(&locks.node.id);
    let request = Arc::clone(request);
    let decide = move |states: Vec<LockState>, now: Timestamp, terms: Terms| {
        let (mut leases, mut writes, mut is_new) = (Vec::new(), Vec::new(), false);
        for (index, mut state) in states.into_iter().enumerate() {
            // Served as a repeated acquire, the lease would count as acknowledged and could not be given back.
            let mut earlier = uncertain.iter().map(|grants| grants[index]);
            if let Some(grant) = earlier.find_map(|grant| state.unused_grant(&request.lease.lease_id, grant, now)) {
                is_new = true;
                leases.push((grant.lease, grant.limit));
                continue;
            }
            let acquire = request.acquire(index, &node, position);
            let done = step(&mut state, &Command::Acquire(acquire), now, terms);
            let result = match done.outcome {
                Outcome::Granted(grant) => {
                    is_new |= !grant.repeated;
                    leases.push((grant.lease, grant.limit));
                    if done.changed {
                        writes.push((index, state, done.events));
                    }
                    continue;
                }
                Outcome::Refused(refusal) => Attempt::Refused { index, refusal, state: Box::new(state.clone()), now },
                outcome => Attempt::Ended { index, outcome },
            };
            // No lease is granted. But the end of an expired lease is written before the caller is answered that it is lost.
            let ends = matches!(&result, Attempt::Ended { outcome: Outcome::LeaseLost(_), .. }) && done.changed;
            let writes = if ends { vec![(index, state, done.events)] } else { Vec::new() };
            return Decision { result, writes };
        }
        Decision { result: Attempt::Granted { leases, is_new }, writes }
    };
    let permits = Arc::clone(&locks.acquire_many);
    let Ok(Ok(_permit)) = timeout(locks.node.limits.store_timeout, permits.acquire_owned()).await else {
        return Err(Undone::before(Failure::Overloaded("too many multilocks at once")));
    };
    locks.together(addresses, decide).await
}

impl LockManyRequest {
    /// The request for one key.
    fn acquire(&self, index: usize, node: &NodeId, position: Position) -> Acquire {
        let (lease, node) = (self.lease_of(&self.locks[index]), node.clone());
        Acquire { lease, node, position, queue_position: QueuePosition::Unknown }
    }

    /// The lease of one key.
    fn lease_of(&self, key: &RequestedLock) -> LeaseTerms {
        LeaseTerms { demand: key.demand.clone(), ..self.lease.clone() }
    }
}

/// Gives the leases of all attempts back. Repeated until that is committed, or the leases have expired.
async fn give_back(locks: &Locks, request: &LockManyRequest, attempts: Vec<Grants>) {
    let until = Instant::now() + Duration::from_millis(request.lease.ttl_ms);
    let addresses: Vec<Address> = request.locks.iter().map(|key| key.address.clone()).collect();
    let lease_id = request.lease.lease_id.clone();
    let decide = move |states: Vec<LockState>, now: Timestamp, terms: Terms| {
        let mut writes = Vec::new();
        for (index, mut state) in states.into_iter().enumerate() {
            let (mut changed, mut events) = (false, Vec::new());
            for grants in &attempts {
                let give_back = GiveBack { lease_id: lease_id.clone(), grant: grants[index], is_uncertain: true };
                let mut done = step(&mut state, &Command::GiveBack(give_back), now, terms);
                changed |= done.changed;
                events.append(&mut done.events);
            }
            if changed {
                writes.push((index, state, events));
            }
        }
        Decision { result: (), writes }
    };
    while Instant::now() < until {
        if locks.together(addresses.clone(), decide.clone()).await.is_ok() {
            return;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// A probe in the queue of one key. It leaves the queue when it is dropped.
struct Probe {
    locks: Locks,
    address: Address,
    id: WaiterId,
    notification: oneshot::Receiver<Delivery>,
}

impl Probe {
    fn join(
        locks: &Locks,
        request: &LockManyRequest,
        index: usize,
        position: Position,
        wait: Duration,
    ) -> CallResult<Self> {
        let key = &request.locks[index];
        let id = locks.next_waiter();
        let (reply, notification) = oneshot::channel();
        let request = LockRequest {
            lease: LeaseTerms { metadata: None, ..request.lease_of(key) },
            priority: request.priority,
            wait,
            position: Some(position),
            is_new_lease: false,
        };
        let call = AcquireCall { id, request, requested_at: Instant::now(), is_probe: true, reply };
        locks.send(&key.address, Call::Acquire(call))?;
        Ok(Self { locks: locks.clone(), address: key.address.clone(), id, notification })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // If the queue of the committer is full, the reservation lapses.
        let _ = self.locks.send(&self.address, Call::Leave(self.id));
    }
}
