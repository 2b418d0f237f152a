//! The end of a history: no new clients and no more faults, until all waiters have been served.

use latchgate_core::lock::{Lease, LeaseId, TURN_MS};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use super::history::{Batch, Call, Fate};
use super::node::Node;
use super::promise::Promise;
use super::world::{World, lease_id};

/// How often nodes evaluate the lock at the end.
const LOOK_MS: u64 = 500;
/// Every waiter must be served within this many evaluations.
const LOOKS_MAX: u64 = 1_000;

impl World {
    /// A waiter that is granted the lock releases it. All other leases expire.
    pub fn serve_all_waiters(&mut self) {
        let patience_ms = if self.has_lost_something { TURN_MS } else { 0 } + 2 * CLOCK_BOUND_MS + 2 * LOOK_MS;
        let mut free_since: Option<Timestamp> = None;
        for node in 0..self.nodes.len() {
            self.calmly(node, vec![Call::Open]);
        }
        for _ in 0..LOOKS_MAX {
            if !self.nodes.iter().any(Node::has_waiters) {
                return;
            }
            let (granted, waiting) = (self.granted_at.len(), self.waiting());
            for node in 0..self.nodes.len() {
                // A node without waiters has no timer for the key.
                if self.nodes[node].has_waiters() {
                    self.calmly(node, vec![Call::Look]);
                }
            }
            let newly = self.granted_at.split_off(granted);
            for (lease_id, _, node) in &newly {
                self.release(*node, lease_id);
            }
            let since = free_since.take().unwrap_or(self.store.now);
            // A waiter that is answered otherwise may have stood before others.
            if self.is_free() && newly.is_empty() && self.waiting() == waiting {
                free_since = Some(since);
                if self.store.now.ms_since(since) > patience_ms {
                    break;
                }
            }
            self.store.pass(LOOK_MS);
        }
        let state = &self.store.stored.state;
        let how = || format!("a waiter is left; the lock is {state:?}");
        self.ledger.broken.expect(false, Promise::WaitersAreServed, how);
    }

    fn waiting(&self) -> usize {
        self.nodes.iter().map(|node| node.queue.waiting()).sum()
    }

    /// By every clock.
    fn is_free(&self) -> bool {
        let state = &self.store.stored.state;
        let now = self.store.now;
        let latest = |lease: &Lease| lease.expires_at.plus_ms(lease.delay_ms + 2 * CLOCK_BOUND_MS);
        let is_over = |lease: &Lease| latest(lease) <= now;
        let is_delayed = state.delayed_until(now).is_some_and(|until| until.plus_ms(CLOCK_BOUND_MS) > now);
        let is_kept = state.kept().iter().any(|kept| kept.until.plus_ms(CLOCK_BOUND_MS) > now);
        state.holders().iter().all(is_over) && !is_delayed && !is_kept
    }

    fn release(&mut self, node: usize, id: &LeaseId) {
        if let Some(lease) = (0..).find(|number| lease_id(*number) == *id) {
            self.calmly(node, vec![Call::Release { lease }]);
        }
    }

    fn calmly(&mut self, node: usize, calls: Vec<Call>) {
        self.batch(&Batch { node, calls, from_cache: false, takes_ms: 0, fate: Fate::Fine });
    }
}
