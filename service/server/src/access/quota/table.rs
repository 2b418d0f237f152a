//! What an app has begun at this node and what may not have ended yet: operations.
//!
//! An entry ends when the node learns of its end, and at the latest when its lease passes as far as the node knows. Something that
//! was ended or renewed at another node is found out when the app reaches its limit: the node then looks at the entries in the
//! store, those first that it has not looked at for longest.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use latchgate_core::access::Quota;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Excess, RETRY_AFTER};

/// How many entries the node looks at in the store at once, and the pause between two such looks.
const LOOKS_MAX: usize = 256;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// An entry that was found live is looked at again after as long as it had lasted then, and at the latest after this time: an app that
/// stays at its limit with long leases costs the store little.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Table<K> {
    quota: Quota,
    entries: Mutex<HashMap<K, Entry>>,
    /// No entry ends before this. An app at its limit would have all entries looked through for each request.
    first_end: Mutex<Option<Instant>>,
    /// Held while the node looks at entries in the store: when it last did so.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Entry {
    /// When it ends, as far as the node knows; `None` before it begins.
    ends: Option<Instant>,
    /// Requests that may begin it.
    pending: u32,
    since: Instant,
    /// When the node last looked, or it began.
    seen: Instant,
}

impl Entry {
    fn new() -> Self {
        let now = Instant::now();
        Self { ends: None, pending: 0, since: now, seen: now }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.ends.is_some() && now - self.seen >= (self.seen - self.since).min(LOOK_AGAIN_MAX)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.pending == 0 && self.ends.is_none_or(|ends| ends <= now)
    }
}

impl<K: Clone + Eq + Hash> Table<K> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, entries: Mutex::default(), first_end: Mutex::default(), looked: tokio::sync::Mutex::default() }
    }

    pub(super) fn clear(&self) {
        self.entries.lock().clear();
    }

    /// Whether these may begin.
    ///
    /// # Errors
    /// When there would be more than `limit`. One that is there already may begin again.
    pub fn check(&self, keys: &[K], limit: u32) -> Result<(), Excess> {
        self.space(&mut self.entries.lock(), keys, limit)
    }

    /// Counts these from now on, before they begin. See [`Reserved`].
    ///
    /// # Errors
    /// As those of [`Table::check`].
    pub fn reserve(&self, keys: &[K], limit: u32) -> Result<Reserved<'_, K>, Excess> {
        let mut entries = self.entries.lock();
        self.space(&mut entries, keys, limit)?;
        for key in keys {
            entries.entry(key.clone()).or_insert_with(Entry::new).pending += 1;
        }
        Ok(Reserved { table: self, keys: keys.to_vec() })
    }

    /// These have begun. With `must`, they are counted even beyond the limit.
    ///
    /// # Errors
    /// As those of [`Table::check`]; then none is counted.
    pub fn begin(&self, begun: &[(K, Duration)], limit: u32, must: bool) -> Result<(), Excess> {
        let mut entries = self.entries.lock();
        let keys: Vec<K> = begun.iter().map(|(key, _)| key.clone()).collect();
        if !must {
            self.space(&mut entries, &keys, limit)?;
        }
        for (key, lasts) in begun {
            let entry = entries.entry(key.clone()).or_insert_with(Entry::new);
            self.set_end(entry, *lasts);
        }
        Ok(())
    }

    /// It lasts so long from now on. One that is not counted stays so.
    pub fn extend(&self, key: &K, lasts: Duration) {
        if let Some(entry) = self.entries.lock().get_mut(key)
            && entry.ends.is_some()
        {
            self.set_end(entry, lasts);
        }
    }

    pub fn end(&self, key: &K) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(key) else { return };
        entry.ends = None;
        if entry.pending == 0 {
            entries.remove(key);
        }
    }

    fn set_end(&self, entry: &mut Entry, lasts: Duration) {
        let ends = Instant::now() + lasts;
        entry.ends = Some(ends);
        self.note_end(ends);
    }

    fn note_end(&self, ends: Instant) {
        let mut first = self.first_end.lock();
        *first = Some(first.map_or(ends, |first| first.min(ends)));
    }

    fn drop_ended(&self, entries: &mut HashMap<K, Entry>) {
        let now = Instant::now();
        let mut first = self.first_end.lock();
        if first.is_none_or(|first| first > now) {
            return;
        }
        entries.retain(|_, entry| !entry.is_over(now));
        // One that is pending comes back when it is no longer.
        *first = entries.values().filter_map(|entry| entry.ends.filter(|ends| *ends > now)).min();
    }

    fn space(&self, entries: &mut HashMap<K, Entry>, keys: &[K], limit: u32) -> Result<(), Excess> {
        let limit_len = usize::try_from(limit).unwrap_or(usize::MAX);
        let needed =
            |entries: &HashMap<K, Entry>| entries.len() + keys.iter().filter(|key| !entries.contains_key(key)).count();
        if keys.iter().all(|key| entries.contains_key(key)) || needed(entries) <= limit_len {
            return Ok(());
        }
        self.drop_ended(entries);
        if needed(entries) <= limit_len {
            return Ok(());
        }
        let used = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        Err(Excess { quota: self.quota, limit, remaining: limit.saturating_sub(used), retry_after: RETRY_AFTER })
    }

    /// For an app at its limit: looks at some entries in the store, by `look`, which returns for each how much longer it lasts, or
    /// `None` if it has ended. An entry that `look` leaves out stays as it is. One request looks; the others wait for it.
    pub async fn look<F>(&self, look: impl FnOnce(Vec<K>) -> F)
    where
        F: Future<Output = Vec<(K, Option<Duration>)>>,
    {
        let mut looked = self.looked.lock().await;
        if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        let oldest = self.oldest();
        if oldest.is_empty() {
            return;
        }
        let found = look(oldest.iter().map(|(key, _)| key.clone()).collect()).await;
        let before: HashMap<K, Instant> = oldest.into_iter().collect();
        let mut entries = self.entries.lock();
        for (key, lasts) in found {
            let is_same = entries.get(&key).is_some_and(|entry| entry.ends == before.get(&key).copied());
            match (lasts, entries.get_mut(&key)) {
                // It was renewed here, or began again.
                _ if !is_same => {}
                (Some(lasts), Some(entry)) => self.set_end(entry, lasts),
                (None, Some(entry)) if entry.pending > 0 => entry.ends = None,
                _ => drop(entries.remove(&key)),
            }
        }
        *looked = Some(Instant::now());
    }

    /// Those that have not been looked at for longest, with their ends.
    fn oldest(&self) -> Vec<(K, Instant)> {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let mut oldest: Vec<(Instant, &K)> =
            entries.iter().filter(|(_, entry)| entry.is_due(now)).map(|(key, entry)| (entry.seen, key)).collect();
        if oldest.len() > LOOKS_MAX {
            oldest.select_nth_unstable_by_key(LOOKS_MAX, |(seen, _)| *seen);
            oldest.truncate(LOOKS_MAX);
        }
        let keys: Vec<K> = oldest.into_iter().map(|(_, key)| key.clone()).collect();
        let look_at = |key: K| {
            let entry = entries.get_mut(&key)?;
            entry.seen = now;
            Some((key, entry.ends?))
        };
        keys.into_iter().filter_map(look_at).collect()
    }
}

/// Entries that are counted while a request may begin them. Dropped, those that have not begun are counted no more.
#[derive(Debug)]
pub struct Reserved<'a, K: Clone + Eq + Hash> {
    table: &'a Table<K>,
    keys: Vec<K>,
}

impl<K: Clone + Eq + Hash> Reserved<'_, K> {
    /// It has begun.
    pub fn begin(&self, key: &K, lasts: Duration) {
        if let Some(entry) = self.table.entries.lock().get_mut(key) {
            self.table.set_end(entry, lasts);
        }
    }
}

impl<K: Clone + Eq + Hash> Drop for Reserved<'_, K> {
    fn drop(&mut self) {
        let mut entries = self.table.entries.lock();
        for key in &self.keys {
            let Some(entry) = entries.get_mut(key) else { continue };
            entry.pending = entry.pending.saturating_sub(1);
            match entry.ends {
                Some(ends) => self.table.note_end(ends),
                None if entry.pending == 0 => drop(entries.remove(key)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn table() -> Table<u32> {
        Table::new(Quota::Operations)
    }

    #[tokio::test(start_paused = true)]
    async fn what_expires_or_ends_leaves_space_and_what_is_there_may_begin_again() {
        let table = table();
        table.begin(&[(1, LONG), (2, LONG / 2)], 2, false).unwrap();
        assert_eq!(table.begin(&[(3, LONG)], 2, false).unwrap_err().remaining, 0);
        table.begin(&[(1, LONG)], 2, false).unwrap();
        tokio::time::advance(LONG / 2).await;
        table.begin(&[(3, LONG)], 2, false).unwrap();
        table.end(&1);
        table.extend(&1, LONG);
        assert_eq!(table.check(&[4, 5], 2).unwrap_err().remaining, 1);
        table.begin(&[(4, LONG)], 2, false).unwrap();
        // A grant that the client relies on already is counted whatever the limit is.
        table.begin(&[(5, LONG)], 2, true).unwrap();
        assert!(table.check(&[6], 3).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_may_begin_an_operation_count_it_once_until_they_end() {
        let table = table();
        let one = table.reserve(&[1, 2], 2).unwrap();
        let same = table.reserve(&[1], 2).unwrap();
        assert!(table.reserve(&[3], 2).is_err());
        one.begin(&2, LONG);
        drop(one);
        assert!(table.reserve(&[3], 2).is_err(), "another request may begin 1");
        drop(same);
        table.reserve(&[3], 2).unwrap();
        table.end(&2);
        table.reserve(&[3, 4], 2).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_the_node_finds_what_has_ended_elsewhere() {
        let table = table();
        let many: Vec<(u32, Duration)> = (0..300).map(|key| (key, LONG)).collect();
        table.begin(&many, 300, false).unwrap();
        tokio::time::advance(LONG / 2).await;
        let ended = |keys: Vec<u32>| async move { keys.into_iter().map(|key| (key, None)).collect() };
        table.look(ended).await;
        assert_eq!(table.entries.lock().len(), 300 - LOOKS_MAX);
        // Not again at once.
        table.look(ended).await;
        assert_eq!(table.entries.lock().len(), 300 - LOOKS_MAX);
        tokio::time::advance(LOOK_EVERY).await;
        let lasts = |keys: Vec<u32>| async move { keys.into_iter().map(|key| (key, Some(LONG))).collect() };
        table.look(lasts).await;
        tokio::time::advance(LONG / 2).await;
        assert!(table.check(&[999], 300 - u32::try_from(LOOKS_MAX).unwrap()).is_err(), "they were renewed elsewhere");
        tokio::time::advance(LONG / 2).await;
        table.check(&[999], 1).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_found_live_is_looked_at_again_after_as_long_as_it_had_lasted() {
        let table = table();
        table.begin(&[(1, LONG)], 1, false).unwrap();
        for (pause, is_looked_at) in [(400, true), (300, false), (100, true), (700, false), (100, true)] {
            tokio::time::advance(Duration::from_millis(pause)).await;
            let mut looked_at = false;
            let look = |keys: Vec<u32>| {
                looked_at = true;
                async move { keys.into_iter().map(|key| (key, Some(LONG))).collect() }
            };
            table.look(look).await;
            assert_eq!(looked_at, is_looked_at, "after {pause} ms");
        }
    }
}
