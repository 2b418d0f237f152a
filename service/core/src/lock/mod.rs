//! Locks: one small state per key and one pure function, [`step()`], that changes it.
//!
//! Each node keeps the waiters of a key in a [`WaitQueue`]. The state has one [`Turn`] per node and [`Group`]: the position of the
//! node's first waiter of the group. Only the first turn may take a free lock. [`evaluate()`] applies one batch of a node to one key: its commands,
//! its waiters, its turn.

mod acquire;
mod close;
mod closing;
mod command;
mod compatibility;
mod evaluate;
mod event;
mod expiry;
mod fence;
mod give_back;
mod group;
mod intervention;
mod kept;
mod lanes;
mod lease;
mod lock_delay;
mod min_hold;
mod number;
mod outcome;
mod position;
mod queue;
mod recent;
mod release;
mod renew;
mod shares;
mod size;
mod slots;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod token;
mod transfer;
mod turn;
mod upgrade;

pub use closing::Closing;
pub use command::{
    Acquire, Close, Command, Demand, Force, GiveBack, LeaseTerms, QueuePosition, Release, Renew, Revoke, Terms,
};
pub use evaluate::{Batch, Evaluation, can_only_wait, evaluate, evaluate_with};
pub use event::{Event, EventKind};
pub use group::{Group, Share};
pub use kept::Kept;
pub use lease::{
    EndReason, GrantId, InvalidLeaseId, LEASE_ID_MAX_BYTES, Lease, LeaseId, Lost, Metadata, Mode, Note, Owner,
    Revocation,
};
pub use number::QueueNumbers;
pub use outcome::{Grant, KeyFull, LimitMismatch, Outcome, Refusal, Step};
pub use position::{NodeId, PRIORITY_MAX, PRIORITY_MIN, Position, Turn};
pub use queue::{Rank, ReplyHandle, WaitQueue, Waiter, WaiterId};
pub use shares::SERVED_MARGIN_MS;
pub use slots::{SLOTS_MAX, Slots};
pub use state::LockState;
pub use step::step;
pub use token::{at as token_at, time_of as token_time};

/// How long a state may become by what callers add to it, in bytes. Each commit of a key writes its whole state.
pub const STATE_BYTES_MAX: usize = 64 << 10;

/// Longest owner, in bytes of UTF-8.
pub const OWNER_MAX_BYTES: usize = 256;

/// How many ended leases a state remembers: the last.
pub const RECENT_MAX: usize = 8;

/// How long a node's turn lasts unless the node refreshes it, in ms.
pub const TURN_MS: u64 = 5_000;

/// How many turns a node publishes for one key at most, one for each group: those of the groups that come first.
pub const TURNS_PER_NODE_MAX: usize = 16;

/// A node with turns of several groups publishes only its first in a state that is longer than this, in bytes.
pub const TURNS_BYTES_MAX: usize = STATE_BYTES_MAX / 2;

/// A node refreshes its turn this long before its end, in ms: each 2 s.
pub const TURN_REFRESH_BEFORE_MS: u64 = TURN_MS - 2_000;
