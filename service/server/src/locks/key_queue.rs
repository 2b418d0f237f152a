//! What a shard keeps of a key that has waiters.

use latchgate_core::lock::{self, Rank};
use tokio::time::Instant;

use super::call::AcquireReply;

/// The way back to the caller of an acquire.
pub(super) struct ReplyHandle {
    pub sender: AcquireReply,
    pub requested_at: Instant,
}

impl lock::ReplyHandle for ReplyHandle {
    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

pub(super) type Waiter = lock::Waiter<ReplyHandle, Instant>;
pub(super) type WaitQueue = lock::WaitQueue<ReplyHandle, Instant>;

#[derive(Default)]
pub(super) struct KeyQueue {
    pub queue: WaitQueue,
    /// Waiters that a commit of unknown outcome may have granted the lock. They are evaluated again, as if their clients
    /// had repeated the acquire.
    pub uncertain: Vec<Rank>,
}
