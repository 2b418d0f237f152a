//! Which situations a commit shows.

use latchgate_core::lock::{Command, Event, EventKind, Lease, Mode, Outcome, WaiterId};

use super::grants::Way;
use super::node::Evaluated;
use super::store::Stored;
use super::world::World;

impl World {
    pub fn note_ended(&mut self, evaluated: &Evaluated) {
        for ending in &evaluated.endings {
            self.seen.note(match ending.why {
                EventKind::Released => "released",
                EventKind::GivenBack => "given back",
                EventKind::Revoked => "revoked",
                EventKind::Forced => "forced",
                _ => "expired",
            });
            let is_early = |event: &Event| {
                event.kind == EventKind::Released
                    && event.token == ending.lease.token
                    && event.held_ms < Some(ending.lease.min_hold_ms)
            };
            self.seen.note_if(evaluated.events.iter().any(is_early), "released early");
            let is_down = |lease: &Lease| lease.owner == ending.lease.owner && lease.mode == Mode::Shared;
            let is_downgrade = ending.why == EventKind::Released && ending.lease.mode == Mode::Exclusive;
            self.seen.note_if(is_downgrade && evaluated.state.holders().iter().any(is_down), "downgrade");
        }
        let is_opened = evaluated.events.iter().any(|event| event.kind == EventKind::Opened);
        let is_by_order = |(_, outcome): &(Command, Outcome)| *outcome == Outcome::Opened { was_closed: true };
        let is_ordered = evaluated.outcomes.iter().any(is_by_order);
        self.seen.note_if(is_ordered, "opened by an operator");
        self.seen.note_if(is_opened && !is_ordered, "opened by time");
        let is_warned = evaluated.events.iter().any(|event| event.kind == EventKind::HeldTooLong);
        self.seen.note_if(is_warned, "held too long");
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
