//! What one batch brings to its keys.

use std::collections::BTreeMap;

use latchgate_core::Address;
use latchgate_core::lock::{Command, Rank};
use smallvec::SmallVec;

use super::call::{Failure, Reply};
use super::key_queue::KeyQueue;

/// What one batch brings to one key. Most often it is one call, for which no list is allocated.
#[derive(Default)]
pub(super) struct BatchInput {
    /// The waiters, from the evaluation to the answers.
    pub queue: KeyQueue,
    pub commands: Vec<Command>,
    /// One for each command, in order.
    pub replies: SmallVec<[Reply; 1]>,
    /// Waiters that joined the queue with this batch.
    pub arrived: SmallVec<[Rank; 1]>,
    /// Waiters whose wait ends with this batch.
    pub ended: Vec<Rank>,
    /// Why the batch was not evaluated, or its changes not written.
    pub failure: Option<Failure>,
    /// The state must be loaded, whatever is cached.
    pub must_load: bool,
    /// A timer found the key, and no call or notification did.
    pub is_timed: bool,
}

impl BatchInput {
    pub(super) fn calls(&self) -> usize {
        self.commands.len() + self.arrived.len()
    }
}

/// In the order of the keys.
pub(super) type Inputs = BTreeMap<Address, BatchInput>;
