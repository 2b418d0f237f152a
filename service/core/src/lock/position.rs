//! Positions in the queue of a key, and the turns of nodes, as the state holds them.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TURN_MS;
use super::group::{Group, Share};
use super::lease::{Mode, is_zero};
use crate::time::{CLOCK_BOUND_MS, Timestamp};

pub const PRIORITY_MIN: u8 = 1;
pub const PRIORITY_MAX: u8 = 10;

/// The name of a node. A node takes a new name at every start. The only node of an embedded store keeps its name, so that
/// it finds its own turn after a restart.
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

/// A waiter's position in the queue of a key: higher priority first, then earlier arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// [`PRIORITY_MIN`]…[`PRIORITY_MAX`], higher first.
    pub priority: u8,
    /// When the waiter's first request arrived, by the store's clock.
    pub arrival: Timestamp,
    /// Tells apart waiters that arrived at one node in the same ms. Two turns with the same position belong to one waiter
    /// that has moved to another node.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial: u64,
}

impl Position {
    /// Sorts positions in the order of service.
    pub const fn rank(self) -> (Reverse<u8>, Timestamp, u64) {
        (Reverse(self.priority), self.arrival, self.serial)
    }
}

/// A node's turn: the position and the request of its first waiter of a group. It lapses unless the node refreshes it, so a dead node
/// blocks other waiters for no longer than [`super::TURN_MS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub node: NodeId,
    pub position: Position,
    #[serde(default, skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// When the earliest request of its group at the node arrived, if that is not the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When its group was last granted a permit, as far as the state remembers. Kept by the rules: see [`super::Group`].
    #[serde(default, skip_serializing_if = "is_never")]
    pub served: Timestamp,
    /// How many waiters of the group the node has, as of its last commit.
    pub waiting: u32,
    /// The node has waiters of groups without a turn, because a node publishes few. They are counted here.
    #[serde(default, rename = "stands_for_more", skip_serializing_if = "std::ops::Not::not")]
    pub hides_groups: bool,
    pub until: Timestamp,
}

fn is_never(at: &Timestamp) -> bool {
    *at == Timestamp::default()
}

impl Turn {
    pub fn group(&self) -> Option<&Group> {
        self.share.as_ref().map(|share| &share.group)
    }

    /// When the earliest request of its group at the node arrived.
    pub fn earliest(&self) -> Timestamp {
        self.since.unwrap_or(self.position.arrival)
    }

    /// A turn that would last longer than any is published for was published before the store's clock went back: it has
    /// lapsed too.
    pub(super) const fn has_lapsed(&self, now: Timestamp) -> bool {
        now.as_ms() >= self.until.as_ms() || self.until.ms_since(now) > TURN_MS + 2 * CLOCK_BOUND_MS
    }
}
