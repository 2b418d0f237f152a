//! Turns: the order in which nodes, and through them their waiters, may take a free lock.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TURN_MS;
use super::state::LockState;
use crate::time::{CLOCK_BOUND_MS, Timestamp};

pub const PRIORITY_MIN: u8 = 1;
pub const PRIORITY_MAX: u8 = 10;

/// A node of the tier, named anew at every start. The one node of an embedded store keeps its name, so that a
/// restart finds its own turn and not a stranger's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(Arc<str>);

impl NodeId {
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a waiter stands: higher priority first, then earlier arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// [`PRIORITY_MIN`]…[`PRIORITY_MAX`], higher first.
    pub priority: u8,
    /// When the waiter first asked, by the store's clock.
    pub arrival: Timestamp,
}

impl Place {
    /// Sorts places in queue order, the first to be served first.
    pub const fn rank(self) -> (Reverse<u8>, Timestamp) {
        (Reverse(self.priority), self.arrival)
    }
}

/// A node's turn: the place of its best waiter. It lapses by itself unless refreshed, so a dead node blocks nobody
/// for longer than [`super::TURN_MS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub node: NodeId,
    pub place: Place,
    /// How many wait at this node, its best one included; as of the last commit.
    pub waiting: u32,
    pub until: Timestamp,
}

impl Turn {
    /// The order among turns is total: two nodes with the same place must agree on who is first.
    fn rank(&self) -> (Reverse<u8>, Timestamp, &NodeId) {
        let (priority, arrival) = self.place.rank();
        (priority, arrival, &self.node)
    }

    /// A turn that stands for longer than any is stated for was stated before the store's clock went back.
    const fn has_lapsed(&self, now: Timestamp) -> bool {
        now.as_ms() >= self.until.as_ms() || self.until.ms_since(now) > TURN_MS + 2 * CLOCK_BOUND_MS
    }
}

impl LockState {
    /// The turns of other nodes that come before `place` at `node`.
    pub(super) fn turns_before<'a>(&'a self, node: &'a NodeId, place: Place) -> impl Iterator<Item = &'a Turn> {
        let (priority, arrival) = place.rank();
        let rank = (priority, arrival, node);
        self.turns.iter().filter(move |turn| turn.node != *node && turn.rank() < rank)
    }

    /// The first turn.
    pub fn first_turn(&self) -> Option<&Turn> {
        self.turns.iter().min_by(|a, b| a.rank().cmp(&b.rank()))
    }

    /// Puts `turn` in the place of its node's, or adds it. Returns whether that changed anything.
    pub(super) fn set_turn(&mut self, turn: &Turn) -> bool {
        match self.turns.iter_mut().find(|other| other.node == turn.node) {
            Some(own) if own == turn => false,
            Some(own) => {
                *own = turn.clone();
                true
            }
            None => {
                self.turns.push(turn.clone());
                true
            }
        }
    }

    /// Takes `node`'s turn out. Returns whether there was one.
    pub(super) fn remove_turn(&mut self, node: &NodeId) -> bool {
        let before = self.turns.len();
        self.turns.retain(|turn| turn.node != *node);
        self.turns.len() != before
    }

    /// Drops turns that nobody refreshed. Returns whether there were any.
    pub(super) fn lapse_turns(&mut self, now: Timestamp) -> bool {
        let before = self.turns.len();
        self.turns.retain(|turn| !turn.has_lapsed(now));
        self.turns.len() != before
    }
}
