//! The events of keys, for readers of a history and for watchers.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::{Address, App, Key};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::Locks;
use super::call::{Answer, Failure};
use super::node::Node;
use crate::store::{EventCursor, LoggedEvent, Scope};

/// How long a watcher may lag behind the commits of other nodes, which do not notify it.
const READ_EVERY: Duration = Duration::from_millis(500);
/// The pause between two reads, however much is committed.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// Events that one read returns at most.
const READ_MAX: usize = 500;

/// Which keys are watched.
#[derive(Clone, Debug)]
pub enum Watched {
    Key(Key),
    /// The keys that begin with this text.
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

/// A watcher of keys. It reads the commits of all nodes.
pub struct Watch {
    node: Arc<Node>,
    app: App,
    watched: Watched,
    after: EventCursor,
    commits: watch::Receiver<u64>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// How far the watcher has read: where it resumes after a break.
    pub fn seen(&self) -> EventCursor {
        self.after
    }

    /// The next events in the order of their commits; empty if only events of other keys were read. `None` if the node shuts
    /// down or the store does not answer: the watcher resumes from [`Watch::seen`].
    pub async fn next(&mut self) -> Option<Vec<LoggedEvent>> {
        loop {
            if self.node.closing.is_cancelled() {
                return None;
            }
            // Marked as seen before the read: a commit during the read causes another one.
            self.commits.borrow_and_update();
            let (events, after) = self.read().await.ok()?;
            let has_moved = after != self.after;
            self.after = after;
            if has_moved || !events.is_empty() {
                return Some(events);
            }
            tokio::select! {
                biased;
                () = self.node.closing.cancelled() => return None,
                _ = timeout(READ_EVERY, self.commits.changed()) => {}
            }
            // One read serves all commits of this pause.
            tokio::time::sleep(READ_PAUSE).await;
        }
    }

    async fn read(&self) -> Answer<(Vec<LoggedEvent>, EventCursor)> {
        let store = self.node.store.clone();
        let (app, watched, after) = (self.app.clone(), self.watched.clone(), self.after);
        self.node.read(async move { store.events(&app, watched.scope(), after, READ_MAX).await }).await
    }
}

impl Locks {
    /// Whether events are kept at all.
    pub fn keeps_history(&self) -> bool {
        self.node.history.is_kept()
    }

    /// The events of a key, the newest first.
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

    /// Watches keys from `after`, or from now.
    ///
    /// # Errors
    /// When the store does not answer, or this node has too many watchers.
    pub async fn watch(&self, app: &App, watched: Watched, after: Option<EventCursor>) -> Answer<Watch> {
        if self.node.closing.is_cancelled() {
            return Err(Failure::ShuttingDown);
        }
        if matches!(watched, Watched::Prefix(_)) && !self.node.store.tells_of_prefixes() {
            return Err(Failure::OnlyKeysAreWatched);
        }
        let permit = Arc::clone(&self.node.history.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::Overloaded("this node has too many watchers"))?;
        let commits = self.node.history.commits.subscribe();
        let after = match after {
            Some(after) => after,
            None => {
                let store = self.node.store.clone();
                self.node.read(async move { store.last_event().await }).await?
            }
        };
        Ok(Watch { node: Arc::clone(&self.node), app: app.clone(), watched, after, commits, _permit: permit })
    }
}
