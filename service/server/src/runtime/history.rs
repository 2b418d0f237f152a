//! The history of keys: what has happened, for those who look back and those who watch.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::Event;
use latchgate_core::{Address, App, Key};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::Locks;
use super::call::{Answer, Failure};
use super::node::Node;
use crate::store::{EventCursor, LockStore, LoggedEvent, Scope};

/// How long a watcher may be behind what happens at other nodes: nobody tells it, it looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at most often, however much is committed.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Events that a look takes at most.
const LOOK_MAX: usize = 500;
/// More ended waits than this at once are not entered.
const PENDING_MAX: usize = 10_000;
const BATCH_MAX: usize = 512;

/// A node's share in it.
pub(super) struct History {
    is_kept: bool,
    /// Waits that ended without the lock: no change of a state tells of them.
    waits: mpsc::Sender<(Address, Event)>,
    /// Counts the commits of this node that had something to tell.
    news: Arc<watch::Sender<u64>>,
    watchers: Arc<Semaphore>,
}

impl History {
    /// Writes until it is dropped.
    pub(super) fn start(store: Arc<dyn LockStore>, is_kept: bool, watchers_max: usize, time_out: Duration) -> Self {
        let (waits, mut pending) = mpsc::channel(PENDING_MAX);
        let news = Arc::new(watch::Sender::new(0));
        let told = Arc::clone(&news);
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while pending.recv_many(&mut batch, BATCH_MAX).await > 0 {
                match timeout(time_out, store.log(&batch)).await {
                    Ok(Ok(())) => told.send_modify(|count| *count += 1),
                    Ok(Err(error)) => tracing::warn!(%error, "ended waits were not entered into the history"),
                    Err(_) => tracing::warn!("ended waits were not entered into the history: the store took too long"),
                }
                batch.clear();
            }
        });
        Self { is_kept, waits, news, watchers: Arc::new(Semaphore::new(watchers_max)) }
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Enters a wait that ended without the lock.
    pub(super) fn wait_ended(&self, address: &Address, event: Event) {
        if self.is_kept {
            let _ = self.waits.try_send((address.clone(), event));
        }
    }

    /// This node has committed something that watchers want to hear of.
    pub(super) fn has_news(&self) {
        if self.is_kept {
            self.news.send_modify(|count| *count += 1);
        }
    }
}

/// Which keys are watched.
#[derive(Clone, Debug)]
pub enum Watched {
    Key(Key),
    /// Those that begin with it.
    Prefix(String),
}

impl Watched {
    fn scope(&self) -> Scope<'_> {
        match self {
            Self::Key(key) => Scope::Key(key),
            Self::Prefix(prefix) => Scope::Prefix(prefix),
        }
    }
}

/// Somebody who watches keys, through any node's commits.
pub struct Watch {
    node: Arc<Node>,
    app: App,
    watched: Watched,
    after: EventCursor,
    news: watch::Receiver<u64>,
    _place: OwnedSemaphorePermit,
}

impl Watch {
    /// Up to where it has looked: where to go on after a break.
    pub fn seen(&self) -> EventCursor {
        self.after
    }

    /// The next events in the order in which they were committed, or none if only others have passed by; `None` when the
    /// node shuts down or the store does not answer: the watcher comes back with what it has seen.
    pub async fn next(&mut self) -> Option<Vec<LoggedEvent>> {
        loop {
            if self.node.closing.is_cancelled() {
                return None;
            }
            // Seen before the look: what comes during it is looked for again.
            self.news.borrow_and_update();
            let (events, after) = self.look().await.ok()?;
            let has_moved = after != self.after;
            self.after = after;
            if has_moved || !events.is_empty() {
                return Some(events);
            }
            tokio::select! {
                () = self.node.closing.cancelled() => return None,
                _ = timeout(LOOK_EVERY, self.news.changed()) => {}
            }
            // What is committed meanwhile is looked for at once with it.
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn look(&self) -> Answer<(Vec<LoggedEvent>, EventCursor)> {
        let store = Arc::clone(&self.node.store);
        let (app, watched, after) = (self.app.clone(), self.watched.clone(), self.after);
        self.node.read(async move { store.events(&app, watched.scope(), after, LOOK_MAX).await }).await
    }
}

impl Locks {
    /// Whether events are kept at all.
    pub fn keeps_history(&self) -> bool {
        self.node.history.is_kept()
    }

    /// What has happened to a key, the newest first.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn history(
        &self,
        address: &Address,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Answer<Vec<LoggedEvent>> {
        let Address { app, key } = address.clone();
        self.read(|store| async move { store.history(&app, &key, before, limit).await }).await
    }

    /// Watches keys from `after` on, or from now on.
    ///
    /// # Errors
    /// When the store does not answer, or too many watch at this node.
    pub async fn watch(&self, app: &App, watched: Watched, after: Option<EventCursor>) -> Answer<Watch> {
        if self.node.closing.is_cancelled() {
            return Err(Failure::ShuttingDown);
        }
        if matches!(watched, Watched::Prefix(_)) && !self.node.store.tells_of_prefixes() {
            return Err(Failure::OnlyKeysAreWatched);
        }
        let place = Arc::clone(&self.node.history.watchers).try_acquire_owned();
        let place = place.map_err(|_| Failure::Overloaded("too many watch at this node"))?;
        let news = self.node.history.news.subscribe();
        let after = match after {
            Some(after) => after,
            None => {
                let store = Arc::clone(&self.node.store);
                self.node.read(async move { store.last_event().await }).await?
            }
        };
        Ok(Watch { node: Arc::clone(&self.node), app: app.clone(), watched, after, news, _place: place })
    }
}
