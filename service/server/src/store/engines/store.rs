//! The set as a store: every call goes to the active engine, and what it has answered counts only if it was asked by right.

use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, sleep, timeout};

use super::slot::shown;
use super::{EngineSet, START_TIMEOUT, Serving, no_right};
use crate::store::{
    Board, Change, Collected, CommitResult, Committed, DumpPage, EventCursor, Loaded, LockStore, LockedStates,
    LoggedEvent, Page, Scope, StoreError, Term, WAKE_UPS_MAX, WakeUp,
};

/// Before the next try to be told of wake-ups.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

#[async_trait]
impl LockStore for EngineSet {
    fn name(&self) -> &'static str {
        self.last_active().map_or("none", |store| store.name())
    }

    fn shards(&self) -> usize {
        self.shards
    }

    fn is_volatile(&self) -> bool {
        self.last_active().is_some_and(|store| store.is_volatile())
    }

    fn first_apart(&self, addresses: &[Address]) -> Option<usize> {
        self.last_active()?.first_apart(addresses)
    }

    fn tells_of_prefixes(&self) -> bool {
        self.last_active().is_none_or(|store| store.tells_of_prefixes())
    }

    fn node_id(&self) -> NodeId {
        self.node.clone()
    }

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError> {
        let serving = self.use_active().await?;
        let loaded = serving.store.load(addresses).await?;
        if serving.vouch(loaded.now) { Ok(loaded) } else { Err(no_right()) }
    }

    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        let serving = self.use_active().await?;
        if is_of_other_term(&serving, changes) {
            let now = shown(&serving.store, self.slots.timeout).await?;
            return Ok(Committed { now, result: CommitResult::TermOver });
        }
        let committed = serving.store.commit(now, changes).await?;
        counted(&serving, committed)
    }

    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError> {
        let serving = self.use_active().await?;
        let (loaded, locked) = serving.store.lock(addresses).await?;
        if !serving.vouch(loaded.now) {
            let _ = locked.give_up().await;
            return Err(no_right());
        }
        Ok((loaded, Box::new(Locked { serving, locked })))
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        self.use_active().await?.store.list(app, prefix, after, limit).await
    }

    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError> {
        self.use_active().await?.store.collect(after, limit).await
    }

    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError> {
        self.use_active().await?.store.log(events).await
    }

    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        let serving = self.use_active().await?;
        let (events, after) = serving.store.events(app, scope, serving.inner(after), limit).await?;
        Ok((serving.all_outer(events), serving.outer(after)))
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        let serving = self.use_active().await?;
        Ok(serving.outer(serving.store.last_event().await?))
    }

    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError> {
        let serving = self.use_active().await?;
        // A page of another engine's history goes on with the newest of this one's.
        let before = before.filter(|before| before.era() == serving.record.since).map(|before| before.of_era(0));
        Ok(serving.all_outer(serving.store.history(app, key, before, limit).await?))
    }

    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.use_active().await?.store.trim(older_than, renewed_before, limit).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        self.use_active().await?.store.wake(wake_ups).await
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        tokio::spawn(pass_on(self.serving.clone(), node.clone(), sender));
        Ok(receiver)
    }

    async fn cluster_secret(&self, _fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut view = self.view.clone();
        let view = view.wait_for(|view| !view.record.secret.is_empty()).await.map_err(|_| no_right())?;
        view.secret().ok_or_else(|| StoreError::Unavailable("the record's secret cannot be read".to_owned()))
    }

    fn term(&self) -> Term {
        self.serving.borrow().as_ref().map_or_else(Term::default, |serving| serving.term())
    }

    fn forced_until(&self) -> Option<Timestamp> {
        self.serving.borrow().as_ref().map(|serving| serving.record.forced_until)
    }

    async fn expect_leases_of(&self, ttl_ms_max: u64) -> Result<(), StoreError> {
        self.wishes.send_modify(|wishes| wishes.ttl_ms_max = ttl_ms_max.max(wishes.ttl_ms_max));
        let mut view = self.view.clone();
        let is_known = view.wait_for(|view| view.record.ttl_ms_max >= ttl_ms_max);
        if matches!(timeout(START_TIMEOUT, is_known).await, Ok(Ok(_))) { Ok(()) } else { Err(no_right()) }
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let serving = self.use_active().await?;
        let now = serving.store.ping().await?;
        if serving.vouch(now) { Ok(now) } else { Err(no_right()) }
    }

    async fn board(&self) -> Result<Board, StoreError> {
        self.use_active().await?.store.board().await
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        self.use_active().await?.store.write_board(expected, text).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        self.use_active().await?.store.dump(from, limit).await
    }
}

/// Events of several engines are told apart by when these became active.
impl Serving {
    /// What has been seen of an earlier engine's events says nothing of this one's: it goes on with those since the switch.
    fn inner(&self, cursor: EventCursor) -> EventCursor {
        if cursor.era() == self.record.since {
            return cursor.of_era(0);
        }
        self.record.events_from.parse().unwrap_or(EventCursor::START)
    }

    fn outer(&self, cursor: EventCursor) -> EventCursor {
        cursor.of_era(self.record.since)
    }

    fn all_outer(&self, events: Vec<LoggedEvent>) -> Vec<LoggedEvent> {
        let outer = |logged: LoggedEvent| LoggedEvent { cursor: self.outer(logged.cursor), ..logged };
        events.into_iter().map(outer).collect()
    }
}

/// What was judged on another engine's states is nothing for this one.
fn is_of_other_term(serving: &Serving, changes: &[Change]) -> bool {
    changes.first().is_some_and(|change| change.term != serving.term().id)
}

/// What was written when the right was over may be left behind by a switch: nobody is to rely on it.
fn counted(serving: &Serving, committed: Committed) -> Result<Committed, StoreError> {
    match committed.result {
        CommitResult::Checked(_) if !serving.vouch(committed.now) => {
            Err(StoreError::OutcomeUnknown("the engine may have been left while it answered".to_owned()))
        }
        CommitResult::ClockOff | CommitResult::TermOver => {
            serving.doubt();
            Ok(committed)
        }
        CommitResult::Checked(_) => Ok(committed),
    }
}

struct Locked {
    serving: Arc<Serving>,
    locked: Box<dyn LockedStates>,
}

impl Locked {
    async fn write(self, now: Timestamp, changes: &[Change], all_or_none: bool) -> Result<Committed, StoreError> {
        let Self { serving, locked } = self;
        if is_of_other_term(&serving, changes) {
            locked.give_up().await?;
            return Ok(Committed { now, result: CommitResult::TermOver });
        }
        let committed =
            if all_or_none { locked.commit_all(now, changes).await } else { locked.commit(now, changes).await };
        counted(&serving, committed?)
    }
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, false).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, true).await
    }

    async fn give_up(self: Box<Self>) -> Result<(), StoreError> {
        self.locked.give_up().await
    }
}

/// Wake-ups of whichever engine serves. Each switch is a gap.
async fn pass_on(mut served: watch::Receiver<Option<Arc<Serving>>>, node: NodeId, told: mpsc::Sender<WakeUp>) {
    loop {
        let serving = match served.wait_for(Option::is_some).await {
            Ok(serving) => serving.clone(),
            Err(_) => return,
        };
        let Some(serving) = serving else { continue };
        let Ok(mut wake_ups) = serving.store.wake_ups(&node).await else {
            sleep(LISTEN_PAUSE).await;
            continue;
        };
        if told.send(WakeUp::All).await.is_err() {
            return;
        }
        let since = serving.record.since;
        let is_other =
            |serving: &Option<Arc<Serving>>| serving.as_ref().is_none_or(|serving| serving.record.since != since);
        loop {
            tokio::select! {
                is_known = async { served.wait_for(is_other).await.is_ok() } => {
                    if !is_known {
                        return;
                    }
                    break;
                }
                // An engine that tells of none goes on with none.
                Some(wake_up) = wake_ups.recv() => {
                    if told.send(wake_up).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
