//! Waits that have ended without the lock. An event says so, unless the client goes on with its ticket soon: most clients wait in calls of
//! some seconds, and all of them together are one wait.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use latchgate_core::Address;
use latchgate_core::lock::{Event, Position};
use tokio::time::Instant;

/// How soon a client that goes on comes back.
const RETURN_MAX: Duration = Duration::from_secs(2);
/// Beyond that, events are not held back.
const HELD_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct EndedWaits {
    /// In the order in which their events are due. The wait may have gone on meanwhile.
    due: VecDeque<(Instant, Position)>,
    events: HashMap<Position, (Instant, Address, Event)>,
}

impl EndedWaits {
    /// Holds the event back. Returns one that must be logged now.
    pub(super) fn hold(&mut self, address: &Address, position: Position, event: Event) -> Option<(Address, Event)> {
        if self.due.len() >= HELD_MAX {
            return Some((address.clone(), event));
        }
        let at = Instant::now() + RETURN_MAX;
        self.due.push_back((at, position));
        let replaced = self.events.insert(position, (at, address.clone(), event));
        replaced.filter(|(_, other, _)| other != address).map(|(_, address, event)| (address, event))
    }

    /// The client has come back with its ticket.
    pub(super) fn resumed(&mut self, address: &Address, position: Position) {
        if self.events.get(&position).is_some_and(|(_, ended, _)| ended == address) {
            self.events.remove(&position);
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.front().map(|(at, _)| *at)
    }

    /// The next event that is due until then.
    pub(super) fn pop(&mut self, until: Instant) -> Option<(Address, Event)> {
        while let Some((at, position)) = self.due.pop_front_if(|(at, _)| *at <= until) {
            if self.events.get(&position).is_some_and(|(ended, _, _)| *ended == at) {
                return self.events.remove(&position).map(|(_, address, event)| (address, event));
            }
        }
        None
    }
}
