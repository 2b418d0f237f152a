//! The events of keys, for readers of a history and for watchers.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::{Address, App};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::{Instant, sleep, sleep_until};

use super::call::{CallResult, Failure};
use super::feed::{Batch, READ_MAX};
use super::handle::Locks;
use super::node::LockNode;
use crate::store::{EventCursor, LoggedEvent, Watched};

/// A watcher without events learns its position this often, if it has moved.
const POSITION_EVERY: Duration = Duration::from_secs(1);

/// Counts a read of so many events, whatever the watcher sees of them. The error says when it may be made.
type CountRead = Box<dyn Fn(usize) -> Result<(), Duration> + Send + Sync>;

/// What a watcher sees next.
pub enum Next {
    /// In the order of their commits; none if only the position has moved.
    Events(Vec<Arc<LoggedEvent>>),
    /// Events between these positions cannot be read. The watcher goes on after them.
    Dropped { from: EventCursor, to: EventCursor },
}

/// A watcher of keys. It sees the commits of all nodes.
pub struct Watch {
    node: Arc<LockNode>,
    /// `None`: of all apps.
    app: Option<App>,
    watched: Watched,
    /// How far it has seen.
    after: EventCursor,
    /// The position that the client knows, and since when.
    known: (EventCursor, Instant),
    /// Its own reads go on to here: from here on the batches have everything.
    catches_up_to: Option<EventCursor>,
    count_read: CountRead,
    /// It has read by itself before.
    has_read: bool,
    batches: broadcast::Receiver<Arc<Batch>>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// How far the watcher has read: where it resumes after a break.
    pub fn seen(&self) -> EventCursor {
        self.after
    }

    /// Counts the reads that this watcher makes alone, from before it joined the others, but the first. While one may not be made, it pauses.
    pub fn counting(self, count_read: impl Fn(usize) -> Result<(), Duration> + Send + Sync + 'static) -> Self {
        Self { count_read: Box::new(count_read), ..self }
    }

    /// What comes next. `None` if the node shuts down; or if the store does not answer while the watcher catches up: it resumes from
    /// [`Watch::seen`].
    pub async fn next(&mut self) -> Option<Next> {
        loop {
            if let Some(end) = self.catches_up_to {
                let next = self.catch_up(end).await?;
                self.known = (self.after, Instant::now());
                return Some(next);
            }
            let (known, known_at) = self.known;
            tokio::select! {
                biased;
                () = self.node.closing.cancelled() => return None,
                batch = self.batches.recv() => match batch {
                    Ok(batch) if batch.drops(self.after) => {
                        let from = std::mem::replace(&mut self.after, batch.end);
                        self.known = (self.after, Instant::now());
                        return Some(self.dropped(from));
                    }
                    Ok(batch) => {
                        let events = batch.of(&self.watched, self.after);
                        self.after = self.after.max(batch.end);
                        if !events.is_empty() {
                            self.known = (self.after, Instant::now());
                            return Some(Next::Events(events));
                        }
                    }
                    // The client reads slowly. The watcher reads what it has missed by itself.
                    Err(RecvError::Lagged(_)) => {
                        let (batches, begin) = self.node.history.feeds.join(self.app.as_ref())?;
                        self.batches = batches;
                        self.catches_up_to = Some(begin);
                    }
                    Err(RecvError::Closed) => return None,
                },
                () = sleep_until(known_at + POSITION_EVERY), if known != self.after => {
                    self.known = (self.after, Instant::now());
                    return Some(Next::Events(Vec::new()));
                }
            }
        }
    }

    /// Reads events from before the watcher joined the reader. Few watchers do so at once.
    async fn catch_up(&mut self, end: EventCursor) -> Option<Next> {
        let node = Arc::clone(&self.node);
        // The request for the stream counts for the first read, which often finds that little was missed.
        while self.has_read
            && let Err(pause) = (self.count_read)(READ_MAX)
        {
            tokio::select! {
                () = sleep(pause) => {}
                () = node.closing.cancelled() => return None,
            }
        }
        let _permit = tokio::select! {
            permit = node.history.catch_ups.acquire() => permit.ok()?,
            () = node.closing.cancelled() => return None,
        };
        let page = node.history.feeds.read(self.app.as_ref(), &self.watched, self.after).await.ok()?;
        self.has_read = true;
        if page.next == self.after || page.next >= end {
            self.catches_up_to = None;
        }
        let from = std::mem::replace(&mut self.after, page.next);
        Some(if page.is_dropped {
            self.dropped(from)
        } else {
            Next::Events(page.events.into_iter().map(Arc::new).collect())
        })
    }

    fn dropped(&self, from: EventCursor) -> Next {
        self.node.metrics.events_dropped.inc();
        Next::Dropped { from, to: self.after }
    }
}

impl Locks {
    /// Whether events are kept at all.
    pub fn keeps_history(&self) -> bool {
        self.node.history.is_kept()
    }

    /// Waits until the events of all answers are written, but no longer than `patience`.
    pub async fn flush_events(&self, patience: Duration) {
        self.node.history.flush(patience).await;
    }

    /// The events of a key, the newest first. `None` if those before `before` cannot be read any more.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn history(
        &self,
        address: &Address,
        before: Option<EventCursor>,
        limit: usize,
    ) -> CallResult<Option<Vec<LoggedEvent>>> {
        let address = address.clone();
        let events = self.read(|store| async move { store.history(&address, before, limit).await }).await?;
        self.node.history.feeds.count_unreadable(events.as_deref().unwrap_or_default());
        Ok(events)
    }

    /// Watches keys of an app, or of all apps, from `after`, or from now: a few events from just before the call may come.
    ///
    /// # Errors
    /// When the store does not answer, or this node has too many watchers.
    pub async fn watch(&self, app: Option<&App>, watched: Watched, after: Option<EventCursor>) -> CallResult<Watch> {
        if self.node.closing.is_cancelled() {
            return Err(Failure::ShuttingDown);
        }
        let permit = Arc::clone(&self.node.history.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::Overloaded("this node has too many watchers"))?;
        let (batches, begin) = self.node.history.feeds.join_or_start(app).await?;
        let after = after.unwrap_or(begin);
        Ok(Watch {
            node: Arc::clone(&self.node),
            app: app.cloned(),
            watched,
            after,
            known: (after, Instant::now()),
            catches_up_to: (after != begin).then_some(begin),
            count_read: Box::new(|_| Ok(())),
            has_read: false,
            batches,
            _permit: permit,
        })
    }
}
