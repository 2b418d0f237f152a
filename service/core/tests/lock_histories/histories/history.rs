//! What happens to the nodes, as values that read well when they have shrunk.

use latchgate_core::lock::Mode;

#[derive(Clone, Debug)]
pub struct History {
    /// How far each node's clock is from the store's at the start, in ms.
    pub offsets_ms: Vec<i64>,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub enum Event {
    Pass {
        ms: u64,
    },
    /// A node's clock moves, within the bound.
    Drift {
        node: usize,
        offset_ms: i64,
    },
    Batch(Batch),
    /// A waiter presents its ticket at another node, before its first node has noticed that it is gone.
    Resume {
        lease: usize,
        from: usize,
        to: usize,
    },
    /// The node vanishes, with its waiters and what it had not yet answered.
    Crash {
        node: usize,
    },
}

/// What arrives together at one node.
#[derive(Clone, Debug)]
pub struct Batch {
    pub node: usize,
    pub calls: Vec<Call>,
    /// Begin with the state that the node remembers, however old.
    pub from_cache: bool,
    /// Between the decision and the commit.
    pub takes_ms: u64,
    pub fate: Fate,
}

#[derive(Clone, Debug)]
pub enum Call {
    Acquire(Request),
    Renew {
        lease: usize,
        ttl_ms: Option<u64>,
    },
    Release {
        lease: usize,
    },
    /// A waiter's client goes away.
    Leave {
        lease: usize,
    },
    /// A waiter's wait ends with this batch.
    WaitEnds {
        lease: usize,
    },
    /// One of the node's give-backs that are under way arrives; perhaps not for the last time.
    GiveBackArrives {
        nth: usize,
        again: bool,
    },
    SetLimit(Option<u32>),
    Revoke {
        grace_ms: u64,
        token: Option<Presented>,
    },
    Force {
        token: Option<Presented>,
    },
    Fence(Presented),
    Close {
        until_ms: Option<u64>,
    },
    Open,
    /// A timer: a refresh, or an expiry.
    Look,
}

/// A group, and its limit.
pub type Share = (usize, Option<u32>);

#[derive(Clone, Debug)]
pub struct Request {
    pub lease: usize,
    pub caller: Caller,
    pub mode: Mode,
    pub limit: Option<u32>,
    pub share: Option<Share>,
    pub ttl_ms: u64,
    pub priority: u8,
    pub waits: bool,
    pub reentrant: bool,
    pub barge: bool,
    pub delay_ms: u64,
    pub min_hold_ms: u64,
    pub max_hold_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub enum Caller {
    /// One of few, so that an owner asks for more than one lease.
    Itself,
    Anonymous,
    Other,
}

/// A token that a client may present.
#[derive(Clone, Copy, Debug)]
pub enum Presented {
    /// Of a lease that is there.
    Live(usize),
    Last,
    /// Of one of the grants that there have been.
    Old(usize),
    Never,
}

/// What becomes of a batch's commit and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Fine,
    /// The commit never reaches the store.
    LostBefore,
    /// The commit is made, and no client is answered.
    LostAfter,
    /// New grants do not reach their clients, and must be given back.
    Undelivered,
}
