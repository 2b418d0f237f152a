//! A node's part in the engine set of the locks, and what the committer shares with the tasks beside it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use latchgate_core::lock::{Event, LockState, Terms, Turn};
use latchgate_core::{Address, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::history::History;
use crate::node::{Node, Round};
use crate::store::{Change, Version};

pub(super) struct LockNode {
    pub node: Arc<Node>,
    pub history: History,
    /// Ends all waits.
    pub closing: CancellationToken,
    /// How many waiters its queues have, as of the last batch.
    pub waiters: AtomicU64,
    /// Tells the committer of a key that was changed beside its batches.
    pub rechecks: mpsc::Sender<Address>,
}

impl Deref for LockNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl LockNode {
    pub(super) fn terms(&self, Round { used, now }: Round<'_>) -> Terms {
        Terms { hold_off: used.hold_off(now), token_min: used.epoch.token_min(), late_ms: used.late_ms(now) }
    }

    /// The change of a state with this version. Without a history it has neither events nor a notice.
    pub(super) fn change(
        &self,
        address: &Address,
        (expected, state): (Version, LockState),
        events: Vec<Event>,
        Round { used, now }: Round<'_>,
    ) -> Change {
        Change {
            address: address.clone(),
            expected,
            events: if self.history.is_kept() { events } else { Vec::new() },
            notice_at: state.next_notice().filter(|_| self.history.is_kept()),
            keep_until: state.idle_from().max(now).plus_ms(self.limits.idle_retention_ms()),
            state,
            epoch: used.epoch,
        }
    }

    /// Notifies the node whose turn it is, if that is another node and the lock can be granted now.
    pub(super) fn notify_next(&self, address: &Address, state: &LockState, now: Timestamp) {
        let Some(first) = state.admissible_turn(now) else {
            // The turns of a node are bounded: perhaps a waiter without one may be admitted.
            if state.may_admit_more(now) {
                let hides_groups = |turn: &&Turn| turn.hides_groups && turn.node != self.id;
                for turn in state.turns().iter().filter(hides_groups) {
                    self.waker.wake(turn.node.clone(), address.clone());
                }
            }
            return;
        };
        // A waiter that resumed with a ticket may have turns with one position at several nodes: any may have it now.
        let is_first = |turn: &&Turn| turn.position == first.position && turn.node != self.id;
        for turn in state.turns().iter().filter(is_first) {
            self.waker.wake(turn.node.clone(), address.clone());
        }
    }

    /// Has the key evaluated again, if it has waiters at this node.
    pub(super) fn recheck(&self, address: &Address) {
        let _ = self.rechecks.try_send(address.clone());
    }
}
