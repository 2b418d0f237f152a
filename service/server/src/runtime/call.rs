//! What handlers ask of the runtime and what they are told.

use std::time::{Duration, Instant};

use latchgate_core::lock::{
    Command, GiveBack, Lease, LeaseId, LimitMismatch, LockState, Lost, Metadata, Mode, Outcome, Owner, PRIORITY_MIN,
    Place, Refusal,
};
use latchgate_core::{Address, Timestamp};
use tokio::sync::{mpsc, oneshot};

/// An acquire, as a caller puts it.
#[derive(Clone, Debug)]
pub struct Ask {
    pub lease_id: LeaseId,
    pub owner: Option<Owner>,
    pub mode: Mode,
    /// Of the permits; `None`: whatever the key's limit is.
    pub limit: Option<u32>,
    pub ttl_ms: u64,
    pub reentrant: bool,
    pub barge: bool,
    pub delay_ms: u64,
    pub max_hold_ms: Option<u64>,
    pub priority: u8,
    pub metadata: Option<Metadata>,
    /// How long to wait in the queue; zero asks only.
    pub wait: Duration,
    /// The place of an earlier wait, to go on from.
    pub place: Option<Place>,
}

impl Ask {
    /// For the whole lock, without waiting.
    pub fn new(lease_id: LeaseId, ttl_ms: u64) -> Self {
        Self {
            lease_id,
            owner: None,
            mode: Mode::Exclusive,
            limit: None,
            ttl_ms,
            reentrant: true,
            barge: false,
            delay_ms: 0,
            max_hold_ms: None,
            priority: PRIORITY_MIN,
            metadata: None,
            wait: Duration::ZERO,
            place: None,
        }
    }
}

/// What came of an acquire.
#[derive(Clone, Debug)]
pub enum Acquired {
    Granted(Granted),
    Refused(Refused),
    LeaseIdReused,
    LimitMismatch(LimitMismatch),
    UpgradeBlocked,
    LeaseLost(Lost),
    /// To a scout: its turn has come, and its place is kept for a moment.
    Called,
}

#[derive(Clone, Debug)]
pub struct Granted {
    pub lease: Lease,
    /// The key's limit, where the lease has permits.
    pub limit: Option<u32>,
    pub waited: Duration,
    /// The store's clock at the answer.
    pub now: Timestamp,
}

/// Why there is no lease, and who is in the way.
#[derive(Clone, Debug)]
pub struct Refused {
    pub why: RefusedBecause,
    pub holders: Vec<Lease>,
    /// How many wait, here and at other nodes.
    pub waiters: u64,
    /// Where the asker stood, or would have stood, in the queue: 1 is next.
    pub position: u64,
    pub waited: Duration,
    /// Where the asker stood: it may come back to it.
    pub place: Place,
    pub now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBecause {
    Held,
    Reserved,
    /// The lock-delay ends then.
    Delayed(Timestamp),
    /// The store may have forgotten leases, and grants nothing new before then.
    HeldOff(Timestamp),
    WaitTimeout,
}

impl From<Refusal> for RefusedBecause {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Held => Self::Held,
            Refusal::Reserved => Self::Reserved,
            Refusal::Delayed(until) => Self::Delayed(until),
            Refusal::HeldOff(until) => Self::HeldOff(until),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Renewed {
    Renewed { lease: Lease, now: Timestamp },
    LeaseLost(Lost),
}

#[derive(Clone, Debug)]
pub enum Released {
    Released { still_held: u32, already: bool },
    LeaseLost(Lost),
}

/// A key as it is now.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub state: LockState,
    pub waiters: u64,
    pub now: Timestamp,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A bounded queue is full. Nothing was done.
    #[error("too much is asked at once: {0}")]
    Overloaded(&'static str),
    /// Nothing was done.
    #[error("{0}")]
    StoreUnavailable(String),
    /// It may have been done: repeat it with the same lease id.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The store cannot change this key, of those asked for together, in one commit with the first. Nothing was done.
    #[error("these keys cannot be changed in one commit")]
    KeysApart { index: usize },
    /// The store has no order of events over keys.
    #[error("only the events of one key can be watched")]
    OnlyKeysAreWatched,
    /// What has to be durable has no store to be kept in. Nothing was done.
    #[error("there is no durable store")]
    NoDurableStore,
    /// The node is about to stop. Nothing was done.
    #[error("this node is shutting down")]
    ShuttingDown,
}

pub type Answer<T> = Result<T, Failure>;

/// Tells waiters of one process apart.
pub(super) type WaiterId = u64;

pub(super) type AcquireReply = oneshot::Sender<Delivery>;

pub(super) enum Call {
    Acquire {
        id: WaiterId,
        ask: Ask,
        asked: Instant,
        is_scout: bool,
        reply: AcquireReply,
    },
    Renew {
        lease_id: LeaseId,
        ttl_ms: Option<u64>,
        reply: oneshot::Sender<Answer<Renewed>>,
    },
    Release {
        lease_id: LeaseId,
        reply: oneshot::Sender<Answer<Released>>,
    },
    /// Whatever has an outcome and no waiter.
    Command {
        command: Command,
        reply: oneshot::Sender<Answer<(Outcome, Timestamp)>>,
    },
    Inspect {
        reply: oneshot::Sender<Answer<Inspected>>,
    },
    GiveBack(GiveBack),
    /// A waiter's client has gone.
    Leave(WaiterId),
    /// Time has done something to the key that somebody may want to hear of.
    Look,
}

/// A call and the key that it is about.
pub(super) struct Envelope {
    pub address: Address,
    pub call: Call,
}

/// An answer to an acquire on its way to its handler. If it never gets there, because the client has gone, its lease is
/// given back.
pub(super) struct Delivery {
    answer: Option<Answer<Acquired>>,
    give_back: Option<(mpsc::WeakSender<Envelope>, Address, GiveBack)>,
}

impl Delivery {
    pub(super) fn new(answer: Answer<Acquired>) -> Self {
        Self { answer: Some(answer), give_back: None }
    }

    /// The answer with a new grant. A repeated one is not given back: its first answer may have got through.
    pub(super) fn of_new_grant(granted: Granted, address: &Address, home: mpsc::WeakSender<Envelope>) -> Self {
        let give_back = GiveBack { lease_id: granted.lease.lease_id.clone(), token: granted.lease.token };
        let give_back = Some((home, address.clone(), give_back));
        Self { answer: Some(Ok(Acquired::Granted(granted))), give_back }
    }

    pub(super) fn accept(mut self) -> Answer<Acquired> {
        self.give_back = None;
        self.answer.take().unwrap_or(Err(Failure::ShuttingDown))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some((home, address, give_back)) = self.give_back.take() else { return };
        // A lease that cannot be given back, because the shard is full or gone, ends by its expiry.
        if let Some(home) = home.upgrade() {
            let _ = home.try_send(Envelope { address, call: Call::GiveBack(give_back) });
        }
    }
}
