//! Locks: one small state per key and one pure function, [`step`], that changes it.
//!
//! A free lock may only be taken by the first [`Turn`]. Waiters stand in their node's own queue; the state knows one
//! turn per node, its best waiter's place. See ARCHITECTURE.md.

mod acquire;
mod command;
mod compatibility;
mod event;
mod expiry;
mod fence;
mod give_back;
mod intervention;
mod lease;
mod outcome;
mod recent;
mod release;
mod renew;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod token;
mod transfer;
mod turn;

pub use command::{Acquire, Command, Force, GiveBack, Release, Renew, Revoke};
pub use event::{Event, EventKind};
pub use lease::{EndReason, InvalidLeaseId, Lease, LeaseId, Metadata, Mode, Note, Owner, Revocation};
pub use outcome::{Grant, LimitMismatch, Lost, Outcome, Refusal, Step};
pub use state::LockState;
pub use step::step;
pub use turn::{NodeId, PRIORITY_MAX, PRIORITY_MIN, Place, Turn};

/// Leases that one key has at most.
pub const HOLDERS_MAX: usize = 1_024;

/// How many ended leases a state remembers. More would let one retried release find its lease on a busier key, at
/// the price of a larger row in every commit of every key.
pub const RECENT_MAX: usize = 8;

/// How long a node's turn stands unless it is refreshed, in ms.
pub const TURN_MS: u64 = 5_000;
