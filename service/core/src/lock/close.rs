//! Closing a key: an operator orders that it is granted to no client for a time, for example during a release. Holders keep their
//! leases, and waiters their positions.

use std::sync::Arc;

use super::closing::Closing;
use super::command::Close;
use super::event::{Event, EventKind};
use super::outcome::{Outcome, Step};
use super::state::LockState;
use crate::time::Timestamp;

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
