//! What the committer keeps of a key that has waiters.

use latchgate_core::lock::{self, GrantId, Rank};
use tokio::time::Instant;

use super::call::{AcquireReply, Acquired, CallResult, Delivery, GiveBackOnDrop};

/// The way back to the caller of an acquire.
pub(super) struct ReplyHandle {
    pub sender: AcquireReply,
    pub requested_at: Instant,
    /// The grants that the caller has no answer of. If it leaves the queue without an answer, they are given back.
    pub give_back: GiveBackOnDrop,
}

impl ReplyHandle {
    pub(super) fn answer(self, answer: CallResult<Acquired>) {
        let _ = self.sender.send(Delivery::new(answer, self.give_back));
    }
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
    /// Waiters that a commit of unknown outcome may have granted the lock: see their replies.
    pub uncertain: Vec<Rank>,
}

impl KeyQueue {
    pub(super) fn uncertain_grants(&self) -> Vec<(Rank, GrantId)> {
        let waiters = self.uncertain.iter().filter_map(|rank| Some((*rank, self.queue.get(*rank)?)));
        waiters.flat_map(|(rank, waiter)| waiter.reply.give_back.grants().map(move |grant| (rank, grant))).collect()
    }
}
