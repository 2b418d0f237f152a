//! The locks of a node: the rules in `latchgate_core::lock` meet a store.
//!
//! [`Locks`] sends each call to the committer (`committer.rs`), which serves the keys in batches (`node/batch.rs`), keeps
//! their waiters (`key_queue.rs`), and replies (`answering.rs`).

mod batch_input;
mod call;
mod committer;
mod ended_waits;
mod enqueue;
mod feed;
mod handle;
mod history;
mod key_queue;
mod kind;
mod many;
mod multilock_commit;
mod node;
mod refusal;
mod reply;
mod schedule;
mod watch;

pub use self::call::{Acquired, CallResult, Failure, GroupHeld, Inspected, LockRequest, Refused, Waiting};
pub use self::handle::Locks;
pub use self::many::{AcquiredMany, LockManyRequest, MANY_MAX, RequestedLock};
pub use self::watch::{Next, Watch};
pub use crate::node::Limits;
pub use crate::store::Watched;
