//! What can be asked of a key.

use super::lease::{LeaseId, Metadata, Owner};
use super::turn::{NodeId, Place, Turn};

/// A command to one key's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    GiveBack(GiveBack),
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
    pub ttl_ms: u64,
    pub node: NodeId,
    pub place: Place,
    /// Somebody stands before the asker at its own node: it may not be granted anything now, only be told of a grant
    /// that it had before.
    pub behind: bool,
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
