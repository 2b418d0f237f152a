//! The states that a shard has loaded or committed last.
//!
//! A cached state decides changes, because the commit checks its version. No answer is given from it alone.

use std::num::NonZeroUsize;
use std::time::Duration;

use latchgate_core::Address;
use latchgate_core::lock::{LockState, NodeId};
use lru::LruCache;
use tokio::time::Instant;

use crate::store::{Epoch, Stored};

/// An older state is loaded again. Idle rows are kept for much longer.
pub(super) const CACHE_MAX_AGE: Duration = Duration::from_secs(30);

pub(super) struct Cache {
    states: LruCache<Address, Cached>,
}

struct Cached {
    stored: Stored,
    /// The epoch in which it was loaded or committed.
    epoch: Epoch,
    at: Instant,
}

impl Cache {
    pub(super) fn new(keys_max: usize) -> Self {
        Self { states: LruCache::new(NonZeroUsize::new(keys_max).unwrap_or(NonZeroUsize::MIN)) }
    }

    pub(super) fn put(&mut self, address: Address, stored: Stored, epoch: Epoch) {
        self.states.put(address, Cached { stored, epoch, at: Instant::now() });
    }

    pub(super) fn remove(&mut self, address: &Address) {
        self.states.pop(address);
    }

    /// The state that was last known, however old.
    pub(super) fn last_known(&self, address: &Address) -> Option<&LockState> {
        self.states.peek(address).map(|cached| &cached.stored.state)
    }

    /// A state to begin a change with. There is none if other nodes wait for the key: they have most likely changed it.
    pub(super) fn base(&mut self, address: &Address, node: &NodeId, epoch: Epoch) -> Option<Stored> {
        let cached = self.states.get(address)?;
        let is_shared = cached.stored.state.turns().iter().any(|turn| turn.node != *node);
        let is_usable = cached.at.elapsed() < CACHE_MAX_AGE && !is_shared && cached.epoch == epoch;
        is_usable.then(|| cached.stored.clone())
    }

    /// The state that was last known in this epoch, however old.
    pub(super) fn last_known_in(&self, address: &Address, epoch: Epoch) -> Option<&LockState> {
        let cached = self.states.peek(address).filter(|cached| cached.epoch == epoch);
        cached.map(|cached| &cached.stored.state)
    }
}
