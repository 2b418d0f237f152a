//! What happens to the nodes, as values that read well when they have shrunk.

use std::fmt;

use latchgate_core::lock::Mode;

#[derive(Clone, Debug)]
pub struct History {
    /// How far each node's clock is from the store's at the start, in ms.
    pub offsets_ms: Vec<i64>,
    pub events: Vec<Event>,
}

#[derive(Clone)]
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
#[derive(Clone)]
pub struct Batch {
    pub node: usize,
    pub calls: Vec<Call>,
    /// Begin with the state that the node remembers, however old.
    pub from_cache: bool,
    /// Between the decision and the commit.
    pub takes_ms: u64,
    pub fate: Fate,
}

#[derive(Clone)]
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
    Force,
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

#[derive(Clone)]
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

/// One line for each event: a shrunk history is to be read.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass { ms } => write!(f, "{ms} ms pass"),
            Self::Drift { node, offset_ms } => write!(f, "the clock of node {node} goes {offset_ms:+} ms off"),
            Self::Resume { lease, from, to } => write!(f, "lease {lease} goes from node {from} to wait at node {to}"),
            Self::Crash { node } => write!(f, "node {node} crashes"),
            Self::Batch(batch) => fmt::Debug::fmt(batch, f),
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(|call| format!("{call:?}")).collect();
        let base = if self.from_cache { ", from its cache" } else { "" };
        let Self { node, takes_ms, fate, .. } = self;
        write!(f, "node {node}: {}{base}, in {takes_ms} ms, {fate:?}", calls.join(" + "))
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(asking) => fmt::Debug::fmt(asking, f),
            Self::Renew { lease, ttl_ms: None } => write!(f, "renew lease {lease}"),
            Self::Renew { lease, ttl_ms: Some(ttl_ms) } => write!(f, "renew lease {lease} for {ttl_ms} ms"),
            Self::Release { lease } => write!(f, "release lease {lease}"),
            Self::Leave { lease } => write!(f, "the client of lease {lease} leaves"),
            Self::WaitEnds { lease } => write!(f, "the wait of lease {lease} ends"),
            Self::GiveBackArrives { nth, again } => {
                write!(f, "give-back {nth} arrives{}", if *again { " and will again" } else { "" })
            }
            Self::SetLimit(Some(permits)) => write!(f, "set the limit to {permits}"),
            Self::SetLimit(None) => f.write_str("unset the limit"),
            Self::Revoke { grace_ms, token: None } => write!(f, "revoke all within {grace_ms} ms"),
            Self::Revoke { grace_ms, token: Some(token) } => write!(f, "revoke token {token:?} within {grace_ms} ms"),
            Self::Force => f.write_str("force"),
            Self::Fence(token) => write!(f, "fence token {token:?}"),
            Self::Close { until_ms: None } => f.write_str("close"),
            Self::Close { until_ms: Some(ms) } => write!(f, "close for {ms} ms"),
            Self::Open => f.write_str("open"),
            Self::Look => f.write_str("look"),
        }
    }
}

/// What is as usual is left out.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lease, caller, mode, ttl_ms, priority, .. } = self;
        write!(f, "acquire lease {lease} by {caller:?} {mode:?}")?;
        if let Some(limit) = self.limit {
            write!(f, " of {limit}")?;
        }
        match self.share {
            Some((group, Some(limit))) => write!(f, " for group {group} with at most {limit}")?,
            Some((group, None)) => write!(f, " for group {group}")?,
            None => {}
        }
        write!(f, " for {ttl_ms} ms at priority {priority}")?;
        let unusual = [
            (self.waits, "waits"),
            (!self.reentrant, "not reentrant"),
            (self.barge, "barges"),
            (self.delay_ms > 0, "has a delay"),
        ];
        for (_, what) in unusual.iter().filter(|(is_so, _)| *is_so) {
            write!(f, ", {what}")?;
        }
        if self.delay_ms > 0 {
            write!(f, " of {} ms", self.delay_ms)?;
        }
        if self.min_hold_ms > 0 {
            write!(f, ", holds at least {} ms", self.min_hold_ms)?;
        }
        match self.max_hold_ms {
            Some(max_hold_ms) => write!(f, ", holds at most {max_hold_ms} ms"),
            None => Ok(()),
        }
    }
}
