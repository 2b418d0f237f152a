//! The holders as somebody knows them who has read every event and nothing else.

use latchgate_core::Timestamp;
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
    granted_at: Timestamp,
}

impl Replay {
    /// Reads the events of one commit, and compares.
    pub fn follow(&mut self, broken: &mut Broken, events: &[Event], new: &LockState) {
        for event in events {
            let holder =
                |granted_at| Holder { owner: event.owner.clone(), mode: event.mode, token: event.token, granted_at };
            if event.kind == EventKind::Granted {
                self.holders.push(holder(event.at));
            } else {
                // Of leases that are alike, that which has been held for so long.
                let is_meant = |other: &Holder| {
                    holder(other.granted_at) == *other && event.held_ms == Some(event.at.ms_since(other.granted_at))
                };
                let index = self.holders.iter().position(is_meant);
                broken.expect(index.is_some(), Promise::EventsGiveTheHolders, || {
                    format!("{event:?} is of none of {:?}", self.holders)
                });
                if let Some(index) = index.filter(|_| event.kind.is_end()) {
                    self.holders.remove(index);
                }
            }
        }
        let mut left = self.holders.clone();
        let is_told = new.holders().iter().all(|lease| {
            let index = left.iter().position(|holder| {
                let of_lease = (Some(&lease.owner), lease.mode, lease.token, lease.granted_at);
                (holder.owner.as_ref(), holder.mode, holder.token, holder.granted_at) == of_lease
            });
            index.map(|index| left.remove(index)).is_some()
        });
        broken.expect(is_told && left.is_empty(), Promise::EventsGiveTheHolders, || {
            format!("{events:?} lead to {:?}, not to {new:?}", self.holders)
        });
    }
}
