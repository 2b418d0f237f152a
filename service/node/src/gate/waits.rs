//! Calls that wait for the end of an attempt, in the order of their arrival at this node. Only the first of an operation looks at the record,
//! when it is woken or a time is over; what decides for all wakes all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::lock::NodeId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::failure::Failure;
use crate::store::WakeUp;

/// The calls at this node that wait, by operation.
pub(super) struct Waits {
    waiters: Mutex<Waiters>,
    waiters_max: usize,
}

#[derive(Default)]
struct Waiters {
    by_address: HashMap<Address, Queue>,
    /// In all.
    count: usize,
    /// Of the next one that arrives.
    number: u64,
}

/// Those that wait for one operation.
#[derive(Default)]
struct Queue {
    /// By their number.
    waiters: BTreeMap<u64, Arc<Notify>>,
    /// Those up to this number have been told of a decision: each of them finds it, and need not tell the others again.
    told: u64,
}

/// One call that waits, until it is dropped.
pub(super) struct Waiting {
    waits: Arc<Waits>,
    address: Address,
    number: u64,
    woken: Arc<Notify>,
}

impl Waits {
    pub(super) fn new(waiters_max: usize) -> Arc<Self> {
        Arc::new(Self { waiters: Mutex::default(), waiters_max })
    }

    /// # Errors
    /// When too many calls wait already.
    pub(super) fn join(self: &Arc<Self>, address: &Address) -> Result<Waiting, Failure> {
        let mut waiters = self.waiters.lock();
        if waiters.count >= self.waiters_max {
            return Err(Failure::Overloaded("too many wait already"));
        }
        waiters.count += 1;
        waiters.number += 1;
        let (number, woken) = (waiters.number, Arc::new(Notify::new()));
        waiters.by_address.entry(address.clone()).or_default().waiters.insert(number, Arc::clone(&woken));
        Ok(Waiting { waits: Arc::clone(self), address: address.clone(), number, woken })
    }

    /// In wake-ups it stands for all nodes: a record says that callers wait for it, and not where.
    pub(super) fn node() -> NodeId {
        NodeId::new("operations")
    }

    /// Something has happened that callers wait for.
    pub(super) fn wake(&self, address: &Address) {
        self.waiters.lock().by_address.get(address).into_iter().for_each(wake_first);
    }

    pub(super) fn woken(&self, wake_up: WakeUp) {
        match wake_up {
            WakeUp::Key(address) => self.wake(&address),
            WakeUp::All => self.waiters.lock().by_address.values().for_each(wake_first),
        }
    }
}

fn wake_first(queue: &Queue) {
    queue.waiters.values().take(1).for_each(|woken| woken.notify_one());
}

impl Waiting {
    pub(super) fn is_first(&self) -> bool {
        let waiters = self.waits.waiters.lock();
        let first = waiters.by_address.get(&self.address).and_then(|queue| queue.waiters.first_key_value());
        first.is_some_and(|(number, _)| *number == self.number)
    }

    /// Returns after a notification since the last return, also one from before this call.
    pub(super) async fn notified(&self) {
        if let Some(queue) = self.waits.waiters.lock().by_address.get_mut(&self.address) {
            // What it was told was no decision for it.
            queue.told = queue.told.min(self.number - 1);
        }
        self.woken.notified().await;
    }

    /// The operation is decided: the others can be answered too.
    pub(super) fn wake_others(&self) {
        let mut waiters = self.waits.waiters.lock();
        let Some(Queue { waiters, told }) = waiters.by_address.get_mut(&self.address) else { return };
        waiters.range(*told + 1..).for_each(|(_, woken)| woken.notify_one());
        *told = waiters.last_key_value().map_or(*told, |(number, _)| *number);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = self.waits.waiters.lock();
        waiters.count -= 1;
        let Some(queue) = waiters.by_address.get_mut(&self.address) else { return };
        let was_first = queue.waiters.first_key_value().is_some_and(|(number, _)| *number == self.number);
        queue.waiters.remove(&self.number);
        if queue.waiters.is_empty() {
            waiters.by_address.remove(&self.address);
        } else if was_first {
            wake_first(queue);
        }
    }
}
