//! The commands that a key's state accepts.

use std::sync::Arc;

use super::group::{Group, Share};
use super::lease::{GrantId, LeaseId, Metadata, Mode, Note, Owner};
use super::position::{NodeId, Position, Turn};
use crate::time::Timestamp;

/// A command to one key's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    GiveBack(GiveBack),
    /// Sets how many permits the key has. With `None`, the first request for permits sets it again.
    SetLimit(Option<u32>),
    Revoke(Revoke),
    Force(Force),
    Close(Close),
    /// Opens a key that is closed.
    Open,
    /// Presents a token to the fence register.
    Fence(u64),
    /// A node publishes or refreshes its turns, each of another group, in place of those that it has. Without waiters it has none.
    Publish(NodeId, Vec<Turn>),
    /// Only let time pass.
    Tick,
}

/// What a request asks of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub mode: Mode,
    /// The number of permits that the key has, as the caller believes; `None` accepts the key's limit.
    pub limit: Option<u32>,
    /// The group that shares the permits, only in mode permits.
    pub share: Option<Share>,
}

impl Demand {
    /// Without permits.
    pub const fn of(mode: Mode) -> Self {
        Self { mode, limit: None, share: None }
    }

    pub fn group(&self) -> Option<&Group> {
        self.share.as_ref().map(|share| &share.group)
    }

    pub(super) fn group_limit(&self) -> Option<u32> {
        self.share.as_ref().and_then(|share| share.limit)
    }
}

/// A lease as a request describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    pub lease_id: LeaseId,
    /// With `None`, the rules make a unique one.
    pub owner: Option<Owner>,
    pub demand: Demand,
    pub ttl_ms: u64,
    /// The owner may take the lock again while it holds it.
    pub reentrant: bool,
    /// Takes a free lock ahead of the queue.
    pub barge: bool,
    /// The lock-delay, in ms, that begins if the lease expires.
    pub delay_ms: u64,
    /// If the lease is released earlier than this after its grant, in ms, the lock is granted to no client until then. Permits stay
    /// taken for so long however their lease ends.
    pub min_hold_ms: u64,
    /// Renewals extend the lease no further than this, in ms from the grant.
    pub max_hold_ms: Option<u64>,
    /// The event `held_too_long` comes this long after the grant at the latest, in ms.
    pub warn_after_ms: Option<u64>,
    pub metadata: Option<Metadata>,
}

impl LeaseTerms {
    /// An exclusive lease without further terms.
    pub const fn new(lease_id: LeaseId, ttl_ms: u64) -> Self {
        Self {
            lease_id,
            owner: None,
            demand: Demand::of(Mode::Exclusive),
            ttl_ms,
            reentrant: false,
            barge: false,
            delay_ms: 0,
            min_hold_ms: 0,
            max_hold_ms: None,
            warn_after_ms: None,
            metadata: None,
        }
    }
}

/// A request for a lease, by a waiter or by a caller that does not wait.
///
/// It never changes a turn: a node publishes its turn by [`Command::Publish`] once it knows which waiters are left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    pub lease: LeaseTerms,
    pub node: NodeId,
    pub position: Position,
    pub queue_position: QueuePosition,
}

/// How a request stands to the other waiters of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePosition {
    /// It comes first at its node. The turns of other nodes decide whether it comes first.
    #[default]
    Unknown,
    /// It comes first: its node has compared it with the waiters of all groups, its own and those of the turns.
    First,
    /// Another waiter comes first. The request is refused a free lock, but can nest, and gets an earlier grant of its lease id
    /// again.
    NotFirst,
}

/// On what terms the server grants new leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Until then no new lease is granted, because the state may lack live leases. A repeated acquire still gets its
    /// earlier grant.
    pub hold_off: Option<Timestamp>,
    /// No new token is lower. The state may lack the key's last tokens.
    pub token_min: u64,
    /// By how much leases end later than they say, in ms: the clock has jumped ahead since they were granted.
    pub late_ms: u64,
}

impl Terms {
    /// The state is complete.
    pub const FREE: Self = Self { hold_off: None, token_min: 0, late_ms: 0 };

    /// The end of the hold-off, if it is still to come.
    pub(super) fn held_off_until(self, now: Timestamp) -> Option<Timestamp> {
        self.hold_off.filter(|until| *until > now)
    }
}

/// Extends a lease: its length counts from now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    pub lease_id: LeaseId,
    /// `None` keeps the length.
    pub ttl_ms: Option<u64>,
    /// `None` keeps the metadata.
    pub metadata: Option<Metadata>,
}

impl Renew {
    /// A renewal that keeps the metadata.
    pub const fn new(lease_id: LeaseId, ttl_ms: Option<u64>) -> Self {
        Self { lease_id, ttl_ms, metadata: None }
    }
}

/// Ends the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub lease_id: LeaseId,
}

/// Undoes a grant whose answer did not reach the client, unless the lease has been acknowledged since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    pub lease_id: LeaseId,
    pub grant: GrantId,
    /// The outcome of the grant's commit is unknown. The state is written even if it has no such lease, so that a commit that
    /// is still on its way can no longer be made.
    pub is_uncertain: bool,
}

/// Asks the holders to release the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoke {
    pub note: Note,
    /// Their leases end after this.
    pub grace_ms: u64,
    /// Only the leases with this token; `None` means all.
    pub token: Option<u64>,
}

/// Ends leases now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Force {
    pub note: Note,
    /// Only the leases with this token; `None` means all.
    pub token: Option<u64>,
}

/// Closes the key: from now on it is granted to no client. Holders keep their leases, and waiters their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    pub reason: Arc<str>,
    /// The key opens by itself then; `None`: it must be opened.
    pub until: Option<Timestamp>,
}
