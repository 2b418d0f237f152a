//! Operations whose records other sessions have kept locked lately: a caller's transaction has posted and not ended yet. A statement
//! with such a record waits for it, and everything else in the statement waits too. So these operations get statements of
//! their own, and the other operations do not notice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::OperationAddress;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// For how long a record that was locked counts as busy, unless it is written before.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// How many busy operations are remembered.
const BUSY_MAX: usize = 1_024;
/// Statements for busy operations at once. They may wait for locks all the time, so most connections are left for the others.
const AT_ONCE: usize = 4;
/// How long a write of a busy operation waits for its statement to begin.
const IN_LINE: Duration = Duration::from_millis(500);

pub(super) struct Busy {
    operations: Arc<Mutex<Operations>>,
    statements: Arc<Semaphore>,
}

type Operations = HashMap<OperationAddress, Locked>;

struct Locked {
    until: Instant,
    /// A write of it is under way. The next ones would only wait behind it.
    is_under_way: bool,
}

/// How a write may begin.
pub(super) enum Turn {
    /// With others.
    Together,
    /// In a statement of its own, until this is dropped.
    Alone(Alone),
    /// Not now: another write of the operation is under way, or too many operations are busy.
    Refused,
}

pub(super) struct Alone {
    operations: Arc<Mutex<Operations>>,
    address: OperationAddress,
    permit: Option<OwnedSemaphorePermit>,
}

impl Default for Busy {
    fn default() -> Self {
        Self { operations: Arc::default(), statements: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Busy {
    pub(super) async fn turn(&self, address: &OperationAddress) -> Turn {
        match self.operations.lock().get_mut(address) {
            Some(busy) if busy.is_under_way => return Turn::Refused,
            Some(busy) if busy.until > Instant::now() => busy.is_under_way = true,
            _ => return Turn::Together,
        }
        let mut alone = Alone { operations: Arc::clone(&self.operations), address: address.clone(), permit: None };
        match timeout(IN_LINE, Arc::clone(&self.statements).acquire_owned()).await {
            Ok(Ok(permit)) => {
                alone.permit = Some(permit);
                Turn::Alone(alone)
            }
            _ => Turn::Refused,
        }
    }

    /// What became of a statement that had this operation only.
    pub(super) fn note(&self, address: &OperationAddress, is_locked: bool) {
        let mut operations = self.operations.lock();
        if !is_locked {
            operations.remove(address);
            return;
        }
        let now = Instant::now();
        if operations.len() >= BUSY_MAX {
            operations.retain(|_, busy| busy.is_under_way || busy.until > now);
        }
        if let Some(busy) = operations.get_mut(address) {
            busy.until = now + BUSY_FOR;
        } else if operations.len() < BUSY_MAX {
            operations.insert(address.clone(), Locked { until: now + BUSY_FOR, is_under_way: false });
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(busy) = self.operations.lock().get_mut(&self.address) {
            busy.is_under_way = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::App;
    use latchgate_core::gate::OperationId;

    use super::*;

    fn operation(id: u8) -> OperationAddress {
        OperationAddress { app: App::default(), id: OperationId::from_bytes([id; 16]) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_locked_operation_goes_alone_one_write_at_a_time_until_it_is_written_or_its_time_is_over() {
        let (busy, one, other) = (Busy::default(), operation(1), operation(2));
        assert!(matches!(busy.turn(&one).await, Turn::Together));
        busy.note(&one, true);
        let first = busy.turn(&one).await;
        assert!(matches!(first, Turn::Alone(_)));
        assert!(matches!(busy.turn(&one).await, Turn::Refused));
        assert!(matches!(busy.turn(&other).await, Turn::Together));
        drop(first);
        assert!(matches!(busy.turn(&one).await, Turn::Alone(_)));
        busy.note(&one, false);
        assert!(matches!(busy.turn(&one).await, Turn::Together), "it was written");
        busy.note(&one, true);
        tokio::time::advance(BUSY_FOR).await;
        assert!(matches!(busy.turn(&one).await, Turn::Together));
    }

    #[tokio::test(start_paused = true)]
    async fn locked_operations_use_few_connections_at_once() {
        let busy = Busy::default();
        let mut turns = Vec::new();
        for id in 0..=AT_ONCE {
            let address = operation(u8::try_from(id).unwrap());
            busy.note(&address, true);
            turns.push(busy.turn(&address).await);
        }
        assert!(matches!(turns.pop(), Some(Turn::Refused)));
        assert!(turns.iter().all(|turn| matches!(turn, Turn::Alone(_))));
    }
}
