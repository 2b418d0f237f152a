//! The holders as a reader of all events knows them.

use latchgate_core::lock::{Event, EventKind, LockState, Mode, Owner};

use crate::promise::{Broken, Promise};

#[derive(Default)]
pub struct Replay {
    holders: Vec<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    owner: Option<Owner>,
    mode: Mode,
    token: u64,
}

impl Replay {
    /// Reads the events of one commit, and compares.
    pub fn follow(&mut self, broken: &mut Broken, events: &[Event], new: &LockState) {
        let is_of_lease = |event: &&Event| !matches!(event.kind, EventKind::Closed | EventKind::Opened);
        for event in events.iter().filter(is_of_lease) {
            let holder = Holder { owner: event.owner.clone(), mode: event.mode, token: event.token };
            let index = self.holders.iter().position(|other| *other == holder);
            let is_of_holder = index.is_some() || event.kind == EventKind::Granted;
            broken.expect(is_of_holder, Promise::EventsGiveTheHolders, || {
                format!("{event:?} is of none of {:?}", self.holders)
            });
            match index {
                _ if event.kind == EventKind::Granted => self.holders.push(holder),
                Some(index) if event.kind.is_end() => drop(self.holders.remove(index)),
                _ => {}
            }
        }
        let mut left = self.holders.clone();
        let is_told = new.holders().iter().all(|lease| {
            let index = left.iter().position(|holder| {
                (holder.owner.as_ref(), holder.mode, holder.token) == (Some(&lease.owner), lease.mode, lease.token)
            });
            index.map(|index| left.remove(index)).is_some()
        });
        broken.expect(is_told && left.is_empty(), Promise::EventsGiveTheHolders, || {
            format!("{events:?} lead to {:?}, not to {new:?}", self.holders)
        });
    }
}
