//! Which situations a commit shows.

use latchgate_core::lock::{EventKind, Lease, Mode, WaiterId};

use super::grants::Way;
use super::node::Evaluated;
use super::steps::Ending;
use super::store::Stored;
use super::world::World;

impl World {
    pub fn note_events(&mut self, evaluated: &Evaluated) {
        evaluated.events.iter().for_each(|event| self.seen.note(event.kind.as_str()));
        for Ending { lease: ended, why, .. } in &evaluated.endings {
            let is_down = |lease: &Lease| lease.owner == ended.owner && lease.mode == Mode::Shared;
            let is_downgrade = *why == EventKind::Released && ended.mode == Mode::Exclusive;
            self.seen.note_if(is_downgrade && evaluated.state.holders().iter().any(is_down), "downgrade");
        }
    }

    pub fn note_granted(&mut self, index: usize, id: WaiterId, lease: &Lease, way: Way, old: &Stored) {
        let seen = &mut self.seen;
        match way {
            Way::Free => {}
            Way::Barge => seen.note("barge"),
            Way::Nested => seen.note("nested"),
            Way::Upgrade => seen.note("upgrade"),
        }
        seen.note_if(lease.revocation.is_some(), "nested while revoked");
        let node = &self.nodes[index];
        let Some(winner) = node.waiter(id) else { return };
        let waited = winner.deadline.is_some() && winner.reply.requested_at < self.store.now;
        seen.note(if waited { "granted after a wait" } else { "granted at once" });
        seen.note_if(winner.reply.has_moved, "granted after it had moved to another node");
        let turns = old.state.turns();
        let is_alike = turns.iter().any(|turn| turn.node != node.id && turn.position == winner.request.position);
        seen.note_if(is_alike, "granted at a position that another node's turn still has");
    }

    pub fn note_shared(&mut self, old: &Stored, evaluated: &Evaluated) {
        let holders = evaluated.state.holders();
        let owners_differ = |mode: fn(Mode) -> bool| {
            let mut of_mode = holders.iter().filter(|lease| mode(lease.mode));
            let first = of_mode.next();
            of_mode.any(|lease| first.is_some_and(|first| first.owner != lease.owner))
        };
        let readers =
            evaluated.grants.iter().filter(|grant| grant.lease.mode == Mode::Shared && grant.way == Way::Free);
        self.seen.note_if(readers.count() > 1, "readers admitted together");
        self.seen.note_if(owners_differ(|mode| mode == Mode::Shared), "readers together");
        self.seen.note_if(owners_differ(|mode| mode.permits() > 0), "permits shared");
        let limit = evaluated.state.limit_in_force();
        let is_above = |lease: &Lease| lease.slots.iter().any(|number| limit.is_some_and(|limit| number >= limit));
        self.seen.note_if(holders.iter().any(is_above), "a number above the limit");
        self.seen.note_if(!evaluated.state.kept().is_empty(), "permits kept");
        let is_over = evaluated.state.limit_in_force().is_some_and(|limit| limit < evaluated.state.permits_held());
        self.seen.note_if(is_over && old.state.permits_held() > 0, "a limit below what is held");
    }
}
