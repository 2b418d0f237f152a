//! Keys with large states: they get a share of the time of a shard, or of the multilocks, and no more.
//!
//! Each commit of a key writes its whole state. Without this, one key with a thousand leases would take most of the time of
//! every key that shares its shard or its store.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchgate_core::Address;
use lru::LruCache;
use tokio::time::Instant;

/// A state of this many bytes is large. The other keys of a shard do not wait for it.
pub(super) const LARGE_BYTES: usize = 16 << 10;
/// States of this many bytes count when a multilock is large together.
const NOTED_BYTES: usize = 2 << 10;
/// Most keys whose size is noted. More are forgotten, those that were used last are not.
const NOTED_MAX: usize = 10_000;
/// One batch of large keys takes keys until their states have this many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Large keys get one part in this many of the time if there are others, and more if many large keys wait.
const SHARE: u32 = 10;
/// The longest pause between two calls of one large key, and of large multilocks. Renewals wait for it too.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The sizes of the larger states that this node has seen last.
pub(super) struct LargeKeys {
    sizes: Mutex<LruCache<Address, usize>>,
    /// How many there are. Most nodes have none, and then nothing is locked.
    noted: AtomicUsize,
    /// Held by the large multilock that runs, and during the pause after it.
    pub turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for LargeKeys {
    fn default() -> Self {
        let sizes = LruCache::new(NonZeroUsize::new(NOTED_MAX).unwrap_or(NonZeroUsize::MIN));
        Self { sizes: Mutex::new(sizes), noted: AtomicUsize::new(0), turn: Arc::default() }
    }
}

impl LargeKeys {
    pub(super) fn is_empty(&self) -> bool {
        self.noted.load(Ordering::Relaxed) == 0
    }

    pub(super) fn note(&self, address: &Address, bytes: usize) {
        if bytes < NOTED_BYTES && self.is_empty() {
            return;
        }
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes < NOTED_BYTES {
            sizes.pop(address);
        } else {
            sizes.put(address.clone(), bytes);
        }
        self.noted.store(sizes.len(), Ordering::Relaxed);
    }

    /// How long these states are together, as far as they are noted.
    pub(super) fn bytes<'a>(&self, addresses: impl IntoIterator<Item = &'a Address>) -> usize {
        if self.is_empty() {
            return 0;
        }
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.into_iter().filter_map(|address| sizes.peek(address)).sum()
    }
}

/// How long the large keys pause after they have used the store for `took`.
pub(super) fn pause_after(took: Duration) -> Duration {
    (took * (SHARE - 1)).min(PAUSE_MAX)
}

/// The calls of a shard's large keys, which wait for their share of its time.
pub(super) struct Deferred<T> {
    inputs: BTreeMap<Address, T>,
    /// The last key that was served, so that the keys take turns.
    last: Option<Address>,
    ended_at: Instant,
    took: Duration,
    /// Whether other keys were served since.
    has_others: bool,
}

impl<T> Default for Deferred<T> {
    fn default() -> Self {
        let now = Instant::now();
        Self { inputs: BTreeMap::new(), last: None, ended_at: now, took: Duration::ZERO, has_others: false }
    }
}

impl<T> Deferred<T> {
    pub(super) fn get(&self, address: &Address) -> Option<&T> {
        self.inputs.get(address)
    }

    pub(super) fn entry(&mut self, address: Address) -> Entry<'_, Address, T> {
        self.inputs.entry(address)
    }

    /// When the next batch may be served; `None` if no calls wait.
    pub(super) fn next(&self) -> Option<Instant> {
        // Each batch takes one key at least, so the pauses before a waiting key's turn are `PAUSE_MAX` together at most.
        let keys = u32::try_from(self.inputs.len()).unwrap_or(u32::MAX);
        let longest = PAUSE_MAX.checked_div(keys)?;
        let pause = if self.has_others { pause_after(self.took) } else { self.took };
        Some(self.ended_at + pause.min(longest))
    }

    /// Other keys were served.
    pub(super) fn others_were_served(&mut self) {
        self.has_others = true;
    }

    /// The keys of the next batch: those after the last one that was served, as many as may be written at once.
    pub(super) fn take(&mut self, bytes_of: impl Fn(&Address) -> usize) -> BTreeMap<Address, T> {
        let mut batch = BTreeMap::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(address) = self.after_last()
            && let Some(input) = self.inputs.remove(&address)
        {
            bytes += bytes_of(&address);
            self.last = Some(address.clone());
            batch.insert(address, input);
        }
        batch
    }

    pub(super) fn was_served(&mut self, since: Instant) {
        self.ended_at = Instant::now();
        self.took = self.ended_at - since;
        self.has_others = false;
    }

    fn after_last(&self) -> Option<Address> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut following = self.inputs.range::<Address, _>((after, Bound::Unbounded));
        following.next().or_else(|| self.inputs.first_key_value()).map(|(address, _)| address.clone())
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::{App, Key};

    use super::*;

    fn address(number: usize) -> Address {
        Address { app: App::default(), key: Key::parse(&number.to_string()).unwrap() }
    }

    fn waiting(keys: usize) -> Deferred<()> {
        let mut deferred = Deferred::default();
        for number in 0..keys {
            deferred.entry(address(number)).or_default();
        }
        deferred
    }

    #[test]
    fn a_batch_of_large_keys_is_bounded_in_bytes_and_the_keys_take_turns() {
        let mut deferred = waiting(3);
        let mut served = Vec::new();
        for _ in 0..6 {
            let batch = deferred.take(|_| BATCH_BYTES);
            assert_eq!(batch.len(), 1);
            served.extend(batch.into_keys());
            // Its callers call again.
            deferred.entry(served.last().unwrap().clone()).or_default();
        }
        assert_eq!(served, [0, 1, 2, 0, 1, 2].map(address));
        assert_eq!(waiting(3).take(|_| BATCH_BYTES / 2).len(), 2);
        assert_eq!(waiting(3).take(|_| 0).len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn large_keys_pause_for_nine_times_as_long_as_they_took_if_there_are_others() {
        let mut deferred = waiting(1);
        let began = Instant::now();
        assert!(deferred.next().unwrap() <= began);
        tokio::time::advance(Duration::from_millis(10)).await;
        let ended = Instant::now();
        deferred.was_served(began);
        assert_eq!(deferred.next(), Some(ended + Duration::from_millis(10)));
        deferred.others_were_served();
        assert_eq!(deferred.next(), Some(ended + Duration::from_millis(90)));
        deferred.take(|_| 0);
        assert_eq!(deferred.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_large_keys_wait_each_has_its_turn_within_the_longest_pause() {
        let mut deferred = waiting(100);
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        deferred.was_served(began);
        deferred.others_were_served();
        assert_eq!(deferred.next(), Some(Instant::now() + PAUSE_MAX / 100));
    }

    #[test]
    fn only_larger_states_are_noted() {
        let large = LargeKeys::default();
        for (number, bytes) in [(0, NOTED_BYTES - 1), (1, NOTED_BYTES), (2, LARGE_BYTES)] {
            large.note(&address(number), bytes);
        }
        let all: Vec<Address> = (0..3).map(address).collect();
        assert_eq!(large.bytes(&all), NOTED_BYTES + LARGE_BYTES);
        large.note(&address(2), 100);
        assert_eq!(large.bytes(&all), NOTED_BYTES);
        large.note(&address(1), 100);
        assert_eq!((large.bytes(&all), large.noted.load(Ordering::Relaxed)), (0, 0));
    }
}
