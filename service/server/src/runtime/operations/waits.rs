//! Pres that wait for the end of another's attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchgate_core::gate::OperationAddress;
use tokio::sync::watch;

use crate::runtime::Failure;
use crate::store::gate::WakeUp;

/// Who waits for which operation at this node.
pub(super) struct Waits {
    rooms: Mutex<Rooms>,
    waiters_max: usize,
}

#[derive(Default)]
struct Rooms {
    by_address: HashMap<OperationAddress, Room>,
    waiters: usize,
}

struct Room {
    bell: watch::Sender<()>,
    waiters: usize,
}

/// A place in a room; dropped, it is left.
pub(super) struct Waiting {
    waits: Arc<Waits>,
    address: OperationAddress,
    bell: watch::Receiver<()>,
}

impl Waits {
    pub(super) fn new(waiters_max: usize) -> Arc<Self> {
        Arc::new(Self { rooms: Mutex::default(), waiters_max })
    }

    /// # Errors
    /// When too many wait already.
    pub(super) fn join(self: &Arc<Self>, address: &OperationAddress) -> Result<Waiting, Failure> {
        let mut rooms = self.rooms();
        if rooms.waiters >= self.waiters_max {
            return Err(Failure::Overloaded("too many wait already"));
        }
        rooms.waiters += 1;
        let new_room = || Room { bell: watch::Sender::new(()), waiters: 0 };
        let room = rooms.by_address.entry(address.clone()).or_insert_with(new_room);
        room.waiters += 1;
        Ok(Waiting { waits: Arc::clone(self), address: address.clone(), bell: room.bell.subscribe() })
    }

    pub(super) fn wake(&self, wake_up: &WakeUp) {
        let rooms = self.rooms();
        match wake_up {
            WakeUp::Operation(address) => rooms.by_address.get(address).into_iter().for_each(Room::ring),
            WakeUp::All => rooms.by_address.values().for_each(Room::ring),
        }
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    fn ring(&self) {
        self.bell.send_replace(());
    }
}

impl Waiting {
    /// From here on, a ring is not missed: look, then listen.
    pub(super) fn listen(&mut self) {
        self.bell.mark_unchanged();
    }

    /// Until the bell has rung since [`Waiting::listen`].
    pub(super) async fn rung(&mut self) {
        // The room lives as long as this place in it.
        let _ = self.bell.changed().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut rooms = self.waits.rooms();
        rooms.waiters -= 1;
        let is_last = rooms.by_address.get_mut(&self.address).is_some_and(|room| {
            room.waiters -= 1;
            room.waiters == 0
        });
        if is_last {
            rooms.by_address.remove(&self.address);
        }
    }
}
