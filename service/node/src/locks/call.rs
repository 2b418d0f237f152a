//! Calls to a node's locks, and their answers.

use std::time::Duration;

use latchgate_core::lock::{
    Closing, Command, GiveBack, GrantId, Group, Lease, LeaseId, LeaseTerms, LockState, Mode, Outcome, Owner,
    PRIORITY_MIN, Position, Refusal, Share, WaiterId,
};
use latchgate_core::{Address, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use crate::failure::{CallResult, Failure};

/// A request for a lease.
#[derive(Clone, Debug)]
pub struct LockRequest {
    pub lease: LeaseTerms,
    pub priority: u8,
    /// How long to wait in the queue; with zero the request does not wait.
    pub wait: Duration,
    /// The position of an earlier wait, which this one resumes.
    pub position: Option<Position>,
    /// The node has made the lease id for this request: no earlier request can have been granted the lease.
    pub is_new_lease: bool,
}

impl LockRequest {
    /// A request for an exclusive lease that does not wait.
    pub const fn new(lease_id: LeaseId, ttl_ms: u64) -> Self {
        let lease = LeaseTerms::new(lease_id, ttl_ms);
        Self { lease, priority: PRIORITY_MIN, wait: Duration::ZERO, position: None, is_new_lease: false }
    }
}

/// The answer to an acquire.
#[derive(Clone, Debug)]
pub enum Acquired {
    /// Granted, or refused for good; with the store's time at the answer.
    Outcome(Outcome, Timestamp),
    Refused(Refused),
    /// The wait has ended, and the store did not say whether the client has the lease.
    WaitFailed {
        failure: Failure,
        /// The caller's position, which it can resume.
        position: Position,
    },
    /// To a probe: its turn has come, and its position is reserved for a moment.
    Notified,
}

/// Why there is no lease, and the present holders.
#[derive(Clone, Debug)]
pub struct Refused {
    pub why: Refusal,
    pub holders: Vec<Lease>,
    /// How many callers wait, at this and at other nodes.
    pub waiters: u64,
    /// The caller's number in the queue, or the number it would have had: 1 is next.
    pub queue_number: u64,
    pub waited: Duration,
    /// The caller's position, which it can resume.
    pub position: Position,
    /// Set while the key is closed.
    pub closed: Option<Closing>,
    /// Set if the request names a group.
    pub group: Option<GroupHeld>,
    pub now: Timestamp,
}

/// The group of a request, and how many permits it has.
#[derive(Clone, Debug)]
pub struct GroupHeld {
    pub group: Group,
    pub limit: Option<u32>,
    pub held: u32,
}

impl GroupHeld {
    pub(super) fn of(state: &LockState, lease: &LeaseTerms) -> Option<Self> {
        let Share { group, limit } = lease.demand.share.as_ref()?;
        Some(Self { group: group.clone(), limit: *limit, held: state.permits_of(Some(group)) })
    }
}

/// A key as it is now.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub state: LockState,
    pub waiters: u64,
    /// The first waiters of this node, in the order of service.
    pub waiting: Vec<Waiting>,
    /// How many of the waiters are not in `waiting`.
    pub waiting_elsewhere: u64,
    pub now: Timestamp,
}

/// A waiter, as other clients see it.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub owner: Option<Owner>,
    pub mode: Mode,
    pub group: Option<Group>,
    pub priority: u8,
    /// When it arrived. A client that returned with a ticket arrived with its first request.
    pub since: Timestamp,
    /// It waits for other keys, too.
    pub is_multilock: bool,
}

pub(super) type AcquireReply = oneshot::Sender<Delivery>;

pub(super) enum Call {
    Acquire(AcquireCall),
    /// A command that has no waiter. [`Command::Tick`] looks at the key in the store.
    Command {
        command: Command,
        reply: Reply,
    },
    /// A waiter's client has gone.
    Leave(WaiterId),
}

impl Call {
    /// Repeated until it succeeds or the lease has expired.
    fn give_back(give_back: GiveBack, until: Instant) -> Self {
        Self::Command { command: Command::GiveBack(give_back.clone()), reply: Reply::GiveBack { give_back, until } }
    }

    /// Answers a call that is not served.
    pub(super) fn refuse(self, failure: Failure, address: &Address, home: &mpsc::WeakSender<Envelope>) {
        match self {
            Self::Acquire(call) => {
                let nothing = GiveBackOnDrop::new(home.clone(), address.clone());
                let _ = call.reply.send(Delivery::new(Err(failure), nothing));
            }
            Self::Command { reply, .. } => reply.fail(failure, address, home),
            // The waiter's reply is closed.
            Self::Leave(_) => {}
        }
    }
}

pub(super) struct AcquireCall {
    pub id: WaiterId,
    pub request: LockRequest,
    pub requested_at: Instant,
    /// Only to be notified when its turn comes.
    pub is_probe: bool,
    pub reply: AcquireReply,
}

/// A call and its key.
pub(super) struct Envelope {
    pub address: Address,
    pub call: Call,
    pub sent_at: Instant,
}

impl Envelope {
    pub(super) fn new(address: Address, call: Call) -> Self {
        Self { address, call, sent_at: Instant::now() }
    }
}

/// Where the outcome of a command goes.
pub(super) enum Reply {
    Inspect(oneshot::Sender<CallResult<Inspected>>),
    Outcome(oneshot::Sender<CallResult<(Outcome, Timestamp)>>),
    /// No caller waits for it, and it is repeated if it fails, until the lease has expired.
    GiveBack {
        give_back: GiveBack,
        until: Instant,
    },
    /// No caller waits for it.
    None,
}

/// Between two attempts to give a lease back.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The answer to an acquire on its way to its handler. If it does not arrive, because the client has gone, its lease is given
/// back.
pub(super) struct Delivery {
    answer: Option<CallResult<Acquired>>,
    give_back: GiveBackOnDrop,
}

impl Delivery {
    pub(super) fn new(answer: CallResult<Acquired>, give_back: GiveBackOnDrop) -> Self {
        Self { answer: Some(answer), give_back }
    }

    pub(super) fn accept(mut self) -> CallResult<Acquired> {
        self.give_back.forget();
        self.answer.take().unwrap_or(Err(Failure::ShuttingDown))
    }
}

/// The grants that were made, or may have been made, for one request whose client does not know of them yet. They are given
/// back when this is dropped.
pub(super) struct GiveBackOnDrop {
    home: mpsc::WeakSender<Envelope>,
    address: Address,
    /// With the time by which the lease has expired.
    grants: Vec<(GiveBack, Instant)>,
}

impl GiveBackOnDrop {
    pub(super) fn new(home: mpsc::WeakSender<Envelope>, address: Address) -> Self {
        Self { home, address, grants: Vec::new() }
    }

    /// Adds a grant. With `is_uncertain`, the outcome of its commit is unknown.
    pub(super) fn add(&mut self, lease: &Lease, is_uncertain: bool) {
        let give_back = GiveBack { lease_id: lease.lease_id.clone(), grant: lease.grant_id(), is_uncertain };
        // The same grant may be uncertain again and again.
        if self.grants.iter().any(|(known, _)| known.grant == give_back.grant && known.lease_id == give_back.lease_id) {
            return;
        }
        self.grants.push((give_back, Instant::now() + Duration::from_millis(lease.ttl_ms)));
    }

    pub(super) fn grants(&self) -> impl Iterator<Item = GrantId> {
        self.grants.iter().map(|(give_back, _)| give_back.grant)
    }

    /// The client has its answer, or it is certain that the grants were not made.
    pub(super) fn forget(&mut self) {
        self.grants.clear();
    }
}

impl Drop for GiveBackOnDrop {
    fn drop(&mut self) {
        let Some(calls) = self.home.upgrade() else { return };
        for (give_back, until) in self.grants.drain(..) {
            let envelope = Envelope::new(self.address.clone(), Call::give_back(give_back, until));
            if let Err(mpsc::error::TrySendError::Full(envelope)) = calls.try_send(envelope)
                && let Ok(runtime) = Handle::try_current()
            {
                let calls = calls.clone();
                runtime.spawn(async move { calls.send(envelope).await });
            }
        }
    }
}

/// Gives a lease back again after an attempt that failed, unless the lease has expired.
pub(super) fn give_back_later(home: mpsc::WeakSender<Envelope>, address: Address, give_back: GiveBack, until: Instant) {
    tokio::spawn(async move {
        tokio::time::sleep(RETRY_PAUSE).await;
        if Instant::now() < until
            && let Some(calls) = home.upgrade()
        {
            let _ = calls.send(Envelope::new(address, Call::give_back(give_back, until))).await;
        }
    });
}
