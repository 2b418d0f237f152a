//! One reader of events for all watchers of a node: it reads what nodes have committed, and each watcher takes from it what it
//! watches.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::lock::EventKind;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::call::CallResult;
use crate::engines::{EngineSet, EventPage};
use crate::node::{Limits, read};
use crate::observe::metrics::LockMetrics;
use crate::store::{EventCursor, EventQuery, LoggedEvent, Watched};

/// How long watchers may lag behind the commits of other nodes, which do not notify this one.
const READ_EVERY: Duration = Duration::from_millis(500);
/// The pause between two reads, however much is committed.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// The pause is this much longer for each watcher, because each batch wakes all of them.
const PAUSE_PER_WATCHER: Duration = Duration::from_micros(20);
/// Events that one read returns at most.
pub(super) const READ_MAX: usize = 500;

/// What one read has found.
pub(super) struct Batch {
    /// In the order of their commits.
    events: Vec<Arc<LoggedEvent>>,
    by_key: BTreeMap<String, Vec<usize>>,
    /// The positions before and after all events that were read.
    begin: EventCursor,
    pub end: EventCursor,
    /// There are no events, because those between the positions cannot be read.
    is_dropped: bool,
}

impl Batch {
    fn new(begin: EventCursor, EventPage { events, next, is_dropped }: EventPage) -> Self {
        let mut by_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            by_key.entry(event.address.key.as_str().to_owned()).or_default().push(index);
        }
        let events = events.into_iter().map(Arc::new).collect();
        Self { events, by_key, begin, end: next, is_dropped }
    }

    /// Whether a watcher that has seen everything up to `after` misses events. If the store has lost its last ones, the end comes before.
    pub(super) fn drops(&self, after: EventCursor) -> bool {
        self.is_dropped && (after <= self.begin || after < self.end)
    }

    /// The events that are watched and come after `after`.
    pub(super) fn of(&self, watched: &Watched, after: EventCursor) -> Vec<Arc<LoggedEvent>> {
        let mut indices: Vec<usize> = match watched {
            Watched::Key(key) => self.by_key.get(key.as_str()).cloned().unwrap_or_default(),
            Watched::Prefix(prefix) => {
                let from = self.by_key.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
                from.take_while(|(key, _)| key.starts_with(prefix)).flat_map(|(_, indices)| indices).copied().collect()
            }
        };
        indices.sort_unstable();
        let events = indices.into_iter().map(|index| &self.events[index]);
        events.filter(|event| event.cursor > after).map(Arc::clone).collect()
    }
}

struct Feed {
    batches: broadcast::Sender<Arc<Batch>>,
    /// How far the reader has read: the batches that a new watcher receives begin here.
    position: EventCursor,
}

/// The readers of a node: one for each app that is watched, and one for all apps together. A reader ends when it has no watcher left.
pub(super) struct Feeds {
    feeds: Mutex<HashMap<Option<App>, Feed>>,
    store: EngineSet,
    /// Batches that a watcher may be behind.
    lag_max: usize,
    store_timeout: Duration,
    /// Counts the commits of this node that wrote events.
    commits: watch::Receiver<u64>,
    closing: CancellationToken,
    metrics: Arc<LockMetrics>,
}

impl Feeds {
    pub(super) fn new(
        store: EngineSet,
        limits: &Limits,
        commits: watch::Receiver<u64>,
        closing: CancellationToken,
        metrics: Arc<LockMetrics>,
    ) -> Self {
        let (lag_max, store_timeout) = (limits.watcher_lag, limits.store_timeout);
        Self { feeds: Mutex::default(), store, lag_max, store_timeout, commits, closing, metrics }
    }

    /// Joins the reader of this app, or of all, if there is one. Returns where its batches begin, too.
    pub(super) fn join(&self, app: Option<&App>) -> Option<(broadcast::Receiver<Arc<Batch>>, EventCursor)> {
        self.feeds.lock().get(&app.cloned()).map(|feed| (feed.batches.subscribe(), feed.position))
    }

    /// The same, with a new reader that begins now if there is none yet.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) async fn join_or_start(
        self: &Arc<Self>,
        app: Option<&App>,
    ) -> CallResult<(broadcast::Receiver<Arc<Batch>>, EventCursor)> {
        if let Some(joined) = self.join(app) {
            return Ok(joined);
        }
        let store = self.store.clone();
        let now = read(self.store_timeout, async move { store.last_event().await }).await?;
        let mut joined = self.feeds.lock();
        let feed = joined.entry(app.cloned()).or_insert_with(|| {
            tokio::spawn(read_on(Arc::clone(self), app.cloned(), now));
            Feed { batches: broadcast::Sender::new(self.lag_max), position: now }
        });
        Ok((feed.batches.subscribe(), feed.position))
    }

    /// Reads events after `after`.
    ///
    /// # Errors
    /// When the store does not answer.
    pub(super) async fn read(&self, app: Option<&App>, watched: &Watched, after: EventCursor) -> CallResult<EventPage> {
        let (store, app, watched) = (self.store.clone(), app.cloned(), watched.clone());
        let page = async move {
            let query = EventQuery { app: app.as_ref(), watched: &watched, after, limit: READ_MAX };
            store.events(query).await
        };
        let page = read(self.store_timeout, page).await?;
        self.count_unreadable(&page.events);
        Ok(page)
    }

    /// Counts the events that the store has and this node cannot decode.
    pub(super) fn count_unreadable(&self, events: &[LoggedEvent]) {
        let unreadable = events.iter().filter(|logged| logged.event.kind == EventKind::Unreadable).count();
        self.metrics.events_unreadable.inc_by(unreadable as u64);
    }

    /// Gives a batch to the watchers; `None`: only looks for them. Returns how many there are. With none, the reader is removed.
    fn publish(&self, app: Option<&App>, batch: Option<Batch>) -> usize {
        let mut feeds = self.feeds.lock();
        let Entry::Occupied(mut entry) = feeds.entry(app.cloned()) else { return 0 };
        let feed = entry.get_mut();
        let watchers = feed.batches.receiver_count();
        if watchers == 0 {
            entry.remove();
        } else if let Some(batch) = batch {
            feed.position = batch.end;
            let _ = feed.batches.send(Arc::new(batch));
        }
        watchers
    }
}

/// Reads on while there are watchers. While the store does not answer, they wait.
async fn read_on(feeds: Arc<Feeds>, app: Option<App>, mut position: EventCursor) {
    let (mut commits, all) = (feeds.commits.clone(), Watched::Prefix(String::new()));
    loop {
        // Marked as seen before the read: a commit during the read causes another one.
        commits.borrow_and_update();
        let batch = match feeds.read(app.as_ref(), &all, position).await {
            Ok(page) if page.next != position => Some(Batch::new(position, page)),
            _ => None,
        };
        let has_moved = batch.is_some();
        position = batch.as_ref().map_or(position, |batch| batch.end);
        let watchers = feeds.publish(app.as_ref(), batch);
        if watchers == 0 {
            return;
        }
        let pause = async {
            if !has_moved {
                let _ = timeout(READ_EVERY, commits.changed()).await;
            }
            // One read serves all commits of this pause.
            sleep(READ_PAUSE + PAUSE_PER_WATCHER * u32::try_from(watchers).unwrap_or(u32::MAX)).await;
        };
        tokio::select! {
            () = pause => {}
            // The streams end by themselves.
            () = feeds.closing.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::lock::{Event, Mode};
    use latchgate_core::{Address, Key, Timestamp};

    use super::*;

    fn cursor(number: u64) -> EventCursor {
        format!("0-{number}").parse().unwrap()
    }

    fn batch(keys: &[&str]) -> Batch {
        let logged = |(number, key): (u64, &&str)| LoggedEvent {
            cursor: cursor(number),
            address: Address { app: App::default(), key: Key::parse(key).unwrap() },
            event: Event::waited(None, Mode::Exclusive, 0, Timestamp::from_ms(1)),
        };
        let events = (1..).zip(keys).map(logged).collect();
        Batch::new(cursor(0), EventPage { events, next: cursor(keys.len() as u64), is_dropped: false })
    }

    #[test]
    fn a_watcher_takes_what_it_watches_in_order_and_nothing_twice() {
        let batch = batch(&["b", "a1", "a", "a2", "b", "a1"]);
        let keys = |watched: &Watched, after: u64| -> Vec<String> {
            let events = batch.of(watched, cursor(after));
            events.iter().map(|event| event.address.key.as_str().to_owned()).collect()
        };
        let prefix = |text: &str| Watched::Prefix(text.to_owned());
        assert_eq!(keys(&prefix("a"), 0), ["a1", "a", "a2", "a1"]);
        assert_eq!(keys(&prefix(""), 4), ["b", "a1"]);
        assert_eq!(keys(&Watched::Key(Key::parse("a").unwrap()), 0), ["a"]);
        assert_eq!(keys(&Watched::Key(Key::parse("b").unwrap()), 1), ["b"]);
        assert_eq!(keys(&prefix("c"), 0), [""; 0]);
    }
}
