//! Turns: the order in which nodes, and through them their waiters, may take a free lock.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TURN_MS;
use super::lease::{Mode, is_zero};
use super::state::{Limit, LockState};
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
    /// Tells apart those who came to one node in the same ms. Two turns with the same place are one waiter that has
    /// moved on to another node.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial: u64,
}

impl Place {
    /// Sorts places in queue order, the first to be served first.
    pub const fn rank(self) -> (Reverse<u8>, Timestamp, u64) {
        (Reverse(self.priority), self.arrival, self.serial)
    }
}

/// A node's turn: the place of its best waiter. It lapses by itself unless refreshed, so a dead node blocks nobody
/// for longer than [`super::TURN_MS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub node: NodeId,
    pub place: Place,
    /// What that waiter wishes for.
    #[serde(default, skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How many wait at this node, its best one included; as of the last commit.
    pub waiting: u32,
    pub until: Timestamp,
}

impl Turn {
    /// A turn that stands for longer than any is stated for was stated before the store's clock went back.
    const fn has_lapsed(&self, now: Timestamp) -> bool {
        now.as_ms() >= self.until.as_ms() || self.until.ms_since(now) > TURN_MS + 2 * CLOCK_BOUND_MS
    }
}

impl LockState {
    /// The turns of other nodes that come before `place` at `node`.
    pub(super) fn turns_before<'a>(&'a self, node: &'a NodeId, place: Place) -> impl Iterator<Item = &'a Turn> {
        self.turns.iter().filter(move |turn| turn.node != *node && turn.place.rank() < place.rank())
    }

    /// The first turn.
    pub fn first_turn(&self) -> Option<&Turn> {
        self.turns.iter().min_by(|a, b| (a.place.rank(), &a.node).cmp(&(b.place.rank(), &b.node)))
    }

    /// Puts `turn` in the place of its node's, or adds it. Returns whether that changed anything.
    pub(super) fn set_turn(&mut self, turn: &Turn) -> bool {
        // With it, the limit that its waiter believes in is in force, if none was.
        let limit = turn.limit.filter(|_| self.limit_in_force().is_none());
        let set = self.put_turn(turn);
        let Some(permits) = limit else { return set };
        let before = self.limit.replace(Limit { permits, is_set: false });
        set || self.limit != before
    }

    fn put_turn(&mut self, turn: &Turn) -> bool {
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
