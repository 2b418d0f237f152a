//! What can be asked of a key.

use super::lease::{LeaseId, Metadata, Mode, Note, Owner};
use super::turn::{NodeId, Place, Turn};
use crate::time::Timestamp;

/// A command to one key's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    GiveBack(GiveBack),
    /// Sets how many permits the key has; `None`: whoever takes the first says so again.
    SetLimit(Option<u32>),
    Revoke(Revoke),
    Force(Force),
    /// Presents a token to the fence register.
    Fence(u64),
    /// A node states or refreshes its turn.
    Stand(Turn),
    /// Nobody waits at this node any more.
    Withdraw(NodeId),
    /// Only let time pass.
    Tick,
}

/// Asks for a lease on behalf of a node's best waiter, or of a caller that does not wait.
///
/// It never changes a turn: a node states its turn by [`Command::Stand`] once it knows who is left waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    pub lease_id: LeaseId,
    /// `None`: the rules make one up that nobody else has.
    pub owner: Option<Owner>,
    pub mode: Mode,
    /// Of the permits, as the asker believes it to be; `None`: whatever the key's limit is.
    pub limit: Option<u32>,
    pub ttl_ms: u64,
    /// The same owner may hold the lock already.
    pub reentrant: bool,
    /// Takes a lock that is free ahead of the queue.
    pub barge: bool,
    /// The lock-delay, in ms, should the lease run out.
    pub delay_ms: u64,
    /// Renewals count no further than this, in ms from the grant.
    pub max_hold_ms: Option<u64>,
    pub node: NodeId,
    pub place: Place,
    /// Somebody stands before the asker at its own node: it may not be granted a free lock now, only what its owner holds
    /// already, and be told of a grant that it had before.
    pub behind: bool,
    /// Until then nothing new is granted, whatever the state says: it may have forgotten leases that are live. Whoever
    /// repeats an acquire is still told of its grant.
    pub hold_off: Option<Timestamp>,
    pub metadata: Option<Metadata>,
}

/// Counts the lease anew from now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    pub lease_id: LeaseId,
    /// `None`: the same length as before.
    pub ttl_ms: Option<u64>,
}

/// Ends the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub lease_id: LeaseId,
}

/// Undoes a grant whose answer reached nobody, unless somebody has been told of the lease since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    pub lease_id: LeaseId,
    /// The token of the grant that reached nobody.
    pub token: u64,
}

/// Asks the holders to give the lock back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoke {
    pub note: Note,
    /// After this their leases end.
    pub grace_ms: u64,
    /// Only the leases with this token; `None`: all.
    pub token: Option<u64>,
}

/// Ends every lease now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Force {
    pub note: Note,
}
