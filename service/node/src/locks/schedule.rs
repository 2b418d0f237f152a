//! When the committer evaluates a key again although no call for it has arrived.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use latchgate_core::lock::{LockState, Position, TURN_REFRESH_BEFORE_MS};
use latchgate_core::{Address, Timestamp};
use tokio::time::Instant;

use super::node::LockNode;

/// How often a key with waiters is evaluated while its state is not known, because the store is down.
pub(super) const DOWN_PAUSE: Duration = Duration::from_millis(250);

/// The next recheck of each key that has waiters.
#[derive(Default)]
pub(super) struct Schedule {
    due: BTreeSet<(Instant, Address)>,
    at: HashMap<Address, Instant>,
}

impl Schedule {
    /// Sets the key's next recheck, in place of the one before.
    pub(super) fn set(&mut self, address: Address, at: Instant) {
        self.remove(&address);
        self.at.insert(address.clone(), at);
        self.due.insert((at, address));
    }

    pub(super) fn remove(&mut self, address: &Address) {
        if !self.at.is_empty()
            && let Some((address, at)) = self.at.remove_entry(address)
        {
            self.due.remove(&(at, address));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns the first key whose recheck is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Address> {
        if self.next()? > now {
            return None;
        }
        let (_, address) = self.due.pop_first()?;
        self.at.remove(&address);
        Some(address)
    }
}

/// When time next changes the state in a way that may admit the node's first waiter, or the node's turn must be refreshed.
pub(super) fn next_recheck(node: &LockNode, state: &LockState, first: Position, now: Instant) -> Instant {
    let own = state.turns().iter().filter(|turn| turn.node == node.id).map(|turn| turn.until).min();
    let refresh = own.map(|until| Timestamp::from_ms(until.as_ms().saturating_sub(TURN_REFRESH_BEFORE_MS)));
    let change = state.next_change(&node.id, first, node.clock.now().unwrap_or_default());
    let used = node.clock.now().zip(node.store.in_use().ok());
    let hold_off = used.as_ref().and_then(|(now, used)| used.hold_off(*now));
    let late_ms = used.map_or(0, |(now, used)| used.late_ms(now));
    let change = change.map(|change| change.plus_ms(late_ms));
    let next = refresh.into_iter().chain(change).chain(hold_off).min();
    let wait = next.map_or(DOWN_PAUSE, |next| node.clock.until(next.plus_ms(1), now));
    now + wait.max(Duration::from_millis(1))
}
