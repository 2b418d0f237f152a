//! Closing a key: an operator orders that it is granted to no client for a time, for example during a release. Holders keep their
//! leases, and waiters their positions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::command::Close;
use super::event::{Event, EventKind};
use super::outcome::{Outcome, Step};
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// Why, since when and until when a key is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    pub reason: Arc<str>,
    pub since: Timestamp,
    /// `None`: until it is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Closing {
    /// When a node treats the closing as over, by its own estimate of the store's clock, which may be ahead by the clock bound.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        self.until.map(|until| until.plus_ms(CLOCK_BOUND_MS))
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.ends_at().is_some_and(|end| end <= now)
    }

    fn event(&self, kind: EventKind, at: Timestamp) -> Event {
        let until = self.until.filter(|_| kind == EventKind::Closed);
        Event::of_key(kind, Some(Arc::clone(&self.reason)), until, at)
    }
}

/// A second closing replaces the reason and the end of the first. One that is over already changes nothing.
pub(super) fn close(state: &mut LockState, request: &Close, now: Timestamp) -> Step {
    let Close { reason, until } = request;
    let since = state.closed.as_ref().map_or(now, |closing| closing.since);
    let closing = Closing { reason: Arc::clone(reason), since, until: *until };
    let outcome = Outcome::Closed(closing.clone());
    if closing.is_over(now) || state.closed.as_ref() == Some(&closing) {
        return Step::unchanged(outcome);
    }
    let event = closing.event(EventKind::Closed, now);
    state.closed = Some(closing);
    Step::changed(outcome).with(event)
}

pub(super) fn open(state: &mut LockState, now: Timestamp) -> Step {
    match state.closed.take() {
        Some(closing) => {
            Step::changed(Outcome::Opened { was_closed: true }).with(closing.event(EventKind::Opened, now))
        }
        None => Step::unchanged(Outcome::Opened { was_closed: false }),
    }
}

impl LockState {
    /// Set while the key is closed.
    pub fn closing(&self, now: Timestamp) -> Option<&Closing> {
        self.closed.as_ref().filter(|closing| !closing.is_over(now))
    }

    /// Opens the key if its closing is over. Returns the event.
    pub(super) fn end_closing(&mut self, now: Timestamp) -> Option<Event> {
        let closing = self.closed.take_if(|closing| closing.is_over(now))?;
        Some(closing.event(EventKind::Opened, closing.until.unwrap_or(now)))
    }
}
