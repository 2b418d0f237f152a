//! Groups: permits are shared fairly among the groups that wait for them, for example among tenants.
//!
//! The first request of each group competes for the next free permit: by priority, then by arrival. Of these requests, that of the
//! group with the fewest permits comes first. Groups with as many permits take turns: a group waits since its earliest request
//! arrived, or since it was last granted a permit, if that is later. A group whose first request would exceed the limit of its group
//! lets the other groups pass. Requests that name no group are one group.

use std::collections::BTreeMap;

use super::command::{Acquire, LeaseTerms};
use super::group::{Group, Share};
use super::kept::Kept;
use super::lease::{Lease, Mode};
use super::position::{NodeId, Turn};
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// What a group has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Of its leases, and those that are kept.
    pub permits: u32,
    /// When it was last granted a permit, as far as that is known: while a lease of that grant lives, or the group has a turn.
    pub served: Timestamp,
}

/// After a grant, a group rejoins the order this many ms later, so that clocks that differ within their bound cannot put it first again.
pub const SERVED_MARGIN_MS: u64 = 2 * CLOCK_BOUND_MS + 1;

/// The order of groups: the smaller comes first, and among equals that with the smaller name.
pub(super) type GroupOrder = (u32, Timestamp);

impl Held {
    /// The order of a group whose first request has this mode, and whose earliest request arrived then. A request in another mode than
    /// permits counts as of a group without permits; otherwise groups that come later could pass it for ever.
    pub(super) fn order(self, mode: Mode, earliest: Timestamp) -> GroupOrder {
        if mode.permits() == 0 {
            return (0, earliest);
        }
        let was_served = self.served > Timestamp::default();
        let since = if was_served { self.served.plus_ms(SERVED_MARGIN_MS) } else { self.served };
        (self.permits, earliest.max(since))
    }

    /// Whether the group would have more permits than its limit allows.
    pub(super) fn is_at_limit(self, mode: Mode, limit: Option<u32>) -> bool {
        limit.is_some_and(|limit| self.permits.saturating_add(mode.permits()) > limit)
    }

    /// With the time of a later grant, if this is one.
    pub(super) fn served_at(self, served: Timestamp) -> Self {
        Self { served: self.served.max(served), ..self }
    }

    fn add(&mut self, permits: u32, served: Timestamp) {
        self.permits = self.permits.saturating_add(permits);
        self.served = self.served.max(served);
    }
}

/// What each group has.
pub(super) struct Shares<'a>(BTreeMap<Option<&'a Group>, Held>);

impl Shares<'_> {
    pub(super) fn of(&self, group: Option<&Group>) -> Held {
        self.0.get(&group).copied().unwrap_or_default()
    }

    fn order(&self, first: &FirstTurn<'_>) -> GroupOrder {
        self.of(first.turn.group()).order(first.turn.mode, first.earliest)
    }

    fn is_at_limit(&self, FirstTurn { turn, .. }: &FirstTurn<'_>) -> bool {
        self.of(turn.group()).is_at_limit(turn.mode, turn.share.as_ref().and_then(|share| share.limit))
    }
}

impl LockState {
    /// How many permits a group has: of its leases, and those that are kept.
    pub fn permits_of(&self, group: Option<&Group>) -> u32 {
        let held = self.holders.iter().filter(|lease| lease.group.as_ref() == group).map(|lease| lease.mode.permits());
        let kept = self.kept.iter().filter(|kept| kept.group.as_ref() == group).map(|kept| kept.permits);
        held.chain(kept).fold(0, u32::saturating_add)
    }

    /// Whether the request would give its group more permits than it allows.
    pub(super) fn is_at_group_limit(&self, terms: &LeaseTerms) -> bool {
        let Some(Share { group, limit: Some(limit) }) = &terms.demand.share else { return false };
        self.permits_of(Some(group)).saturating_add(terms.demand.mode.permits()) > *limit
    }

    /// Whether a node waits for permits of a group. If none does, all turns are of the group without a name.
    pub(super) fn has_grouped_turns(&self) -> bool {
        self.turns.iter().any(|turn| turn.share.is_some())
    }

    pub(super) fn shares(&self) -> Shares<'_> {
        let mut shares = Shares(BTreeMap::new());
        for lease in self.holders.iter().filter(|lease| lease.mode.permits() > 0) {
            shares.0.entry(lease.group.as_ref()).or_default().add(lease.mode.permits(), lease.granted_at);
        }
        for Kept { permits, group, .. } in &self.kept {
            shares.0.entry(group.as_ref()).or_default().add(*permits, Timestamp::default());
        }
        for turn in &self.turns {
            shares.0.entry(turn.group()).or_default().add(0, turn.served);
        }
        shares
    }

    /// Remembers in the turns of its group when a lease was granted that has now ended: the group has been served since then. In the
    /// turns, because only a group that waits is compared with others.
    pub(super) fn note_served(&mut self, lease: &Lease) {
        if lease.mode.permits() == 0 || !self.has_grouped_turns() {
            return;
        }
        for turn in self.turns.iter_mut().filter(|turn| turn.group() == lease.group.as_ref()) {
            turn.served = turn.served.max(lease.granted_at);
        }
    }

    /// The first turn of all groups.
    pub(super) fn first_of_groups(&self) -> Option<&Turn> {
        let shares = self.shares();
        let firsts = first_of_each(self.turns.iter()).into_values().filter(|first| !shares.is_at_limit(first));
        // Of equals the first: they are in the order of their names.
        firsts.min_by_key(|first| shares.order(first)).map(|first| first.turn)
    }

    /// Whether a turn of another node comes before this request, by the state alone.
    pub(super) fn is_behind_turns(&self, request: &Acquire) -> bool {
        let Acquire { lease, position, .. } = request;
        let others = || self.turns_of_others(&request.node);
        if lease.demand.share.is_none() && !self.has_grouped_turns() {
            return others().any(|turn| turn.position.rank() < position.rank());
        }
        let mut firsts = first_of_each(others());
        let in_group = firsts.remove(&lease.demand.group());
        if in_group.as_ref().is_some_and(|first| first.turn.position.rank() < position.rank()) {
            return true;
        }
        let shares = self.shares();
        let earliest = in_group.map_or(position.arrival, |first| first.earliest.min(position.arrival));
        let order = (shares.of(lease.demand.group()).order(lease.demand.mode, earliest), lease.demand.group());
        firsts.iter().any(|(group, first)| !shares.is_at_limit(first) && (shares.order(first), *group) < order)
    }

    pub(super) fn turns_of_others<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = &'a Turn> {
        self.turns.iter().filter(move |turn| turn.node != *node)
    }
}

/// The first turn of a group, and when the earliest request of the group arrived.
pub(super) struct FirstTurn<'a> {
    pub turn: &'a Turn,
    pub earliest: Timestamp,
}

/// The first turn of each group.
pub(super) fn first_of_each<'a>(turns: impl Iterator<Item = &'a Turn>) -> BTreeMap<Option<&'a Group>, FirstTurn<'a>> {
    let mut firsts: BTreeMap<Option<&Group>, FirstTurn<'a>> = BTreeMap::new();
    for turn in turns {
        let earliest = turn.earliest();
        let first = firsts.entry(turn.group()).or_insert(FirstTurn { turn, earliest });
        first.earliest = first.earliest.min(earliest);
        if (turn.position.rank(), &turn.node) < (first.turn.position.rank(), &first.turn.node) {
            first.turn = turn;
        }
    }
    firsts
}
