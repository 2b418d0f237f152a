//! The states that a committer has loaded or committed last.
//!
//! A cached state decides changes, because the commit checks its version. No answer is given from it alone. The same holds for the
//! guess that a key has no state.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Address;
use lru::LruCache;
use tokio::time::Instant;

use crate::store::{Epoch, RowState, Stored};

/// An older state is loaded again. Idle rows are kept for much longer.
pub(crate) const CACHE_MAX_AGE: Duration = Duration::from_secs(30);

/// After a wrong guess, so many keys that are not here are loaded. Then keys that others use, or that are more than there is room
/// for, cost few commits in vain.
const GUESS_PAUSE: u32 = 16;

pub(crate) struct Cache<S> {
    states: LruCache<Address, Cached<S>>,
    /// How long the states are together, and at most.
    bytes: usize,
    bytes_max: usize,
    /// How many keys that are not here are loaded before the next guess.
    guess_pause: u32,
}

struct Cached<S> {
    stored: Arc<Stored<S>>,
    /// The epoch in which it was loaded or committed.
    epoch: Epoch,
    at: Instant,
    bytes: usize,
}

impl<S> Cached<S> {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < CACHE_MAX_AGE
    }
}

impl<S: RowState> Cache<S> {
    pub(crate) fn new(keys_max: usize, bytes_max: usize) -> Self {
        let states = LruCache::new(NonZeroUsize::new(keys_max).unwrap_or(NonZeroUsize::MIN));
        Self { states, bytes: 0, bytes_max, guess_pause: 0 }
    }

    pub(crate) fn put(&mut self, address: Address, stored: Stored<S>, epoch: Epoch) {
        let bytes = stored.state.bytes();
        self.bytes += bytes;
        let stored = Arc::new(stored);
        let replaced = self.states.push(address, Cached { stored, epoch, at: Instant::now(), bytes });
        self.bytes -= replaced.map_or(0, |(_, cached)| cached.bytes);
        // The state that was put stays, however long it is.
        while self.bytes > self.bytes_max && self.states.len() > 1 {
            self.bytes -= self.states.pop_lru().map_or(0, |(_, cached)| cached.bytes);
        }
    }

    pub(crate) fn remove(&mut self, address: &Address) {
        self.bytes -= self.states.pop(address).map_or(0, |cached| cached.bytes);
    }

    /// The state that was last known, however old.
    pub(crate) fn last_known(&self, address: &Address) -> Option<&S> {
        self.states.peek(address).map(|cached| &cached.stored.state)
    }

    /// A state to begin a change with.
    pub(crate) fn base(&mut self, address: &Address, epoch: Epoch) -> Option<Arc<Stored<S>>> {
        let cached = self.states.get(address)?;
        (cached.is_recent() && cached.epoch == epoch).then(|| Arc::clone(&cached.stored))
    }

    /// Whether to take the key to have no state, without a load: this node has not met it. Its commit finds out.
    pub(crate) fn may_guess_absent(&mut self, address: &Address) -> bool {
        if self.states.contains(address) {
            return false;
        }
        let may_guess = self.guess_pause == 0;
        self.guess_pause = self.guess_pause.saturating_sub(1);
        may_guess
    }

    pub(crate) fn guessed_wrong(&mut self) {
        self.guess_pause = GUESS_PAUSE;
    }

    /// The state that was last known in this epoch, however old.
    pub(crate) fn last_known_in(&self, address: &Address, epoch: Epoch) -> Option<&S> {
        let cached = self.states.peek(address).filter(|cached| cached.epoch == epoch);
        cached.map(|cached| &cached.stored.state)
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::lock::LockState;
    use latchgate_core::{App, Key};

    use super::*;

    #[test]
    fn unknown_keys_are_guessed_absent_except_for_some_after_a_wrong_guess() {
        let address = |number: u32| Address { app: App::default(), key: Key::parse(&number.to_string()).unwrap() };
        let mut cache = Cache::<LockState>::new(100, usize::MAX);
        assert!(cache.may_guess_absent(&address(0)) && cache.may_guess_absent(&address(0)));
        cache.put(address(0), Stored::default(), Epoch::default());
        assert!(!cache.may_guess_absent(&address(0)));
        cache.guessed_wrong();
        let loaded = (1..100).take_while(|number| !cache.may_guess_absent(&address(*number))).count();
        assert_eq!(loaded, GUESS_PAUSE as usize);
    }

    #[test]
    fn the_states_are_bounded_in_number_and_in_bytes() {
        let address = |number: u32| Address { app: App::default(), key: Key::parse(&number.to_string()).unwrap() };
        let one = LockState::default().bytes();
        for (keys_max, bytes_max, kept) in [(3, usize::MAX, 3), (100, 5 * one, 5), (100, 0, 1)] {
            let mut cache = Cache::<LockState>::new(keys_max, bytes_max);
            for number in 0..10 {
                cache.put(address(number), Stored::default(), Epoch::default());
                cache.put(address(number), Stored::default(), Epoch::default());
            }
            assert_eq!((cache.states.len(), cache.bytes), (kept, kept * one));
            assert!(cache.last_known(&address(9)).is_some());
            cache.remove(&address(9));
            cache.remove(&address(9));
            assert_eq!(cache.bytes, (kept - 1) * one);
        }
    }
}
