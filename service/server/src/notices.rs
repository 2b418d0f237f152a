//! Notices: events that are not about one lock, on the event stream of an app. A consumer of the stream forwards them to a chat or a
//! pager.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{Blocked, Event, EventKind};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::access::quota::QuotaReached;
use crate::engines::{Engine, EngineNotice, Engines};
use crate::locks::Locks;

/// How often a node looks for what it has to say about engines.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a node looks for owners that wait for each other.
const LOOK_FOR_CYCLES_EVERY: Duration = Duration::from_secs(5);
/// How much of a name a sentence has, in characters.
const NAME_MAX: usize = 80;

/// What happened. The texts of the events are made here, so that all notices read alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An operation may have been carried out twice.
    SuspectedDoubleRun { id: String, why: &'static str },
    /// An app has reached one of its quotas at this node: requests of it are refused.
    QuotaReached { quota: &'static str, limit: u64 },
    /// Owners wait for each other in a circle. Nothing is ended for it.
    Cycle(Vec<Blocked>),
    /// Of the `locks` or the `gate`, to the operators.
    Engine { of: &'static str, what: EngineNotice },
}

/// Clones share it.
#[derive(Clone)]
pub struct Notices {
    inner: Arc<Inner>,
    /// Ends the watching with the last handle.
    _running: Arc<DropGuard>,
}

struct Inner {
    locks: Locks,
    running: CancellationToken,
}

impl Notices {
    /// Notices are events of these locks, if they keep any.
    pub fn start(locks: Locks) -> Self {
        let running = CancellationToken::new();
        let inner = Inner { locks, running: running.clone() };
        Self { inner: Arc::new(inner), _running: Arc::new(running.drop_guard()) }
    }

    /// Puts a notice on the event stream of an app. It never waits, so any part of the node may call it.
    pub fn notice(&self, app: &App, notice: Notice) {
        self.inner.notice(app, notice);
    }

    /// Says which apps reach their quotas.
    pub fn watch_quotas(&self, mut reached: broadcast::Receiver<QuotaReached>) {
        let inner = Arc::clone(&self.inner);
        tokio::spawn(self.inner.running.clone().run_until_cancelled_owned(async move {
            loop {
                match reached.recv().await {
                    Ok(QuotaReached { app, quota, limit }) => {
                        inner.notice(&app, Notice::QuotaReached { quota: quota.as_str(), limit: limit.into() });
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        }));
    }

    /// Says which owners wait for each other in a circle, once for as long as they do.
    pub fn watch_cycles(&self) {
        if !self.inner.locks.keeps_history() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        tokio::spawn(self.inner.running.clone().run_until_cancelled_owned(async move {
            let mut known = HashSet::new();
            loop {
                sleep(LOOK_FOR_CYCLES_EVERY).await;
                // One waiter waits for a holder that does not wait.
                let found = if inner.locks.waiters() < 2 { Ok(Vec::new()) } else { inner.locks.cycles().await };
                // What cannot be read now is looked at again.
                let Ok(found) = found else { continue };
                for (app, cycle) in found.iter().filter(|cycle| !known.contains(*cycle)) {
                    inner.notice(app, Notice::Cycle(cycle.clone()));
                }
                known = found.into_iter().collect();
            }
        }));
    }

    /// Says when these engines are switched, and when a hold-off of them begins or ends.
    pub fn watch<E: ?Sized + Engine>(&self, of: &'static str, engines: Engines<E>) {
        if !self.inner.locks.keeps_history() {
            return;
        }
        let locks = self.inner.locks.clone();
        let watching = async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(unnoticed) = engines.unnoticed().await else { continue };
                let address = Address { app: App::default(), key: Key::of_notices() };
                let event = |what: &EngineNotice| Notice::Engine { of, what: what.clone() }.event(locks.now());
                let events: Vec<_> = unnoticed.notices.iter().map(|what| (address.clone(), event(what))).collect();
                // Written first: if this node ends in between, another one writes them again.
                match locks.engines().log(&events).await {
                    Ok(()) => engines.mark_noticed(&unnoticed).await,
                    Err(error) => tracing::debug!(%error, "notices about engines are written later"),
                }
            }
        };
        tokio::spawn(self.inner.running.clone().run_until_cancelled_owned(watching));
    }
}

impl Inner {
    fn notice(&self, app: &App, notice: Notice) {
        let event = notice.clone().event(self.locks.now());
        let address = Address { app: app.clone(), key: Key::of_notices() };
        if !self.locks.log(&address, event) {
            tracing::warn!(?app, ?notice, "a notice found no room: no event stream has it");
        }
    }
}

impl Notice {
    fn event(self, at: Timestamp) -> Event {
        let (kind, subject, reason, until) = match self {
            Self::SuspectedDoubleRun { id, why } => (EventKind::SuspectedDoubleRun, id, why.to_owned(), None),
            Self::QuotaReached { quota, limit } => {
                let reason = format!("The app has reached its quota {quota}, {limit}, at a node.");
                (EventKind::QuotaReached, quota.to_owned(), reason, None)
            }
            Self::Cycle(cycle) => {
                let first = cycle.first().map(|blocked| blocked.waiter.as_str().to_owned()).unwrap_or_default();
                let waits = cycle.iter().map(|Blocked { waiter, key, holder }| {
                    let [waiter, key, holder] = [waiter.as_str(), key.as_str(), holder.as_str()].map(shortened);
                    format!("{waiter} waits for {key}, which {holder} holds")
                });
                let waits: Vec<String> = waits.collect();
                (EventKind::CycleSeen, first, format!("{}. The leases end it.", waits.join("; ")), None)
            }
            Self::Engine { of, what: EngineNotice::Switched { engine } } => {
                let reason = format!("The engine of the {of} is {engine} from now on.");
                (EventKind::EngineSwitched, engine, reason, None)
            }
            Self::Engine { of, what: EngineNotice::HoldOffBegan { until } } => {
                let reason = match of {
                    "locks" => "A hold-off has begun: no new leases are granted until it ends.",
                    _ => {
                        "A hold-off of the gate has begun: until it ends, a pre with `on_expiry: block` and no record is refused."
                    }
                };
                (EventKind::HoldOffBegan, of.to_owned(), reason.to_owned(), Some(until))
            }
            Self::Engine { of, what: EngineNotice::HoldOffEnded } => {
                (EventKind::HoldOffEnded, of.to_owned(), format!("The hold-off of the {of} has ended."), None)
            }
        };
        Event::notice(kind, subject.into(), reason.into(), until, at)
    }
}

/// The first part of a name.
fn shortened(name: &str) -> String {
    let mut short: String = name.chars().take(NAME_MAX).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}
