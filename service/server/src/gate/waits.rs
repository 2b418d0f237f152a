//! Pres that wait for the end of another attempt.

use std::collections::HashMap;
use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::lock::NodeId;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::store::WakeUp;

/// The pres at this node that wait, by operation.
pub(super) struct Waits {
    waiters: Mutex<Waiters>,
    waiters_max: usize,
}

#[derive(Default)]
struct Waiters {
    by_address: HashMap<Address, Awaited>,
    /// In all.
    count: usize,
}

/// An operation that pres wait for.
struct Awaited {
    ends: watch::Sender<()>,
    waiters: usize,
}

/// One pre that waits, until it is dropped.
pub(super) struct Waiting {
    waits: Arc<Waits>,
    address: Address,
    ends: watch::Receiver<()>,
}

impl Waits {
    pub(super) fn new(waiters_max: usize) -> Arc<Self> {
        Arc::new(Self { waiters: Mutex::default(), waiters_max })
    }

    /// # Errors
    /// When too many pres wait already.
    pub(super) fn join(self: &Arc<Self>, address: &Address) -> Result<Waiting, Failure> {
        let mut waiters = self.waiters.lock();
        if waiters.count >= self.waiters_max {
            return Err(Failure::Overloaded("too many wait already"));
        }
        waiters.count += 1;
        let fresh = || Awaited { ends: watch::Sender::new(()), waiters: 0 };
        let operation = waiters.by_address.entry(address.clone()).or_insert_with(fresh);
        operation.waiters += 1;
        Ok(Waiting { waits: Arc::clone(self), address: address.clone(), ends: operation.ends.subscribe() })
    }

    /// In wake-ups it stands for all nodes: a record says that callers wait for it, and not where.
    pub(super) fn node() -> NodeId {
        NodeId::new("operations")
    }

    /// Something has happened that callers wait for.
    pub(super) fn wake(&self, address: &Address) {
        self.waiters.lock().by_address.get(address).into_iter().for_each(Awaited::notify);
    }

    pub(super) fn woken(&self, wake_up: WakeUp) {
        match wake_up {
            WakeUp::Key(address) => self.wake(&address),
            WakeUp::All => self.waiters.lock().by_address.values().for_each(Awaited::notify),
        }
    }
}

impl Awaited {
    fn notify(&self) {
        self.ends.send_replace(());
    }
}

impl Waiting {
    /// From here on, no notification is missed: call this before looking at the record.
    pub(super) fn listen(&mut self) {
        self.ends.mark_unchanged();
    }

    /// Returns after a notification since [`Waiting::listen`].
    pub(super) async fn notified(&mut self) {
        // The sender lives as long as this waiter.
        let _ = self.ends.changed().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = self.waits.waiters.lock();
        waiters.count -= 1;
        let is_last = waiters.by_address.get_mut(&self.address).is_some_and(|operation| {
            operation.waiters -= 1;
            operation.waiters == 0
        });
        if is_last {
            waiters.by_address.remove(&self.address);
        }
    }
}
