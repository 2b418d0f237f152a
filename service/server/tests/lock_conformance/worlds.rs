//! Starts nodes on a fresh store of each kind.

use std::sync::Arc;
use std::time::Duration;

use latchgate_node::locks::{Limits, Locks};
use latchgate_node::store::Store;
pub use latchgate_testkit::stores::PATIENCE;
use latchgate_testkit::stores::Place;
pub use latchgate_testkit::stores::locks_on as start_with;

/// The store of one test. Clones share it.
#[derive(Clone)]
pub struct World(pub Place);

impl World {
    pub async fn on(place: Place) -> Self {
        Self(place)
    }

    pub async fn store(&self) -> Arc<dyn Store> {
        self.0.open().await.unwrap()
    }

    /// Starts another node. A file can have only one.
    pub async fn node(&self) -> Locks {
        start(self.store().await).await
    }

    pub async fn two(&self) -> (Locks, Locks) {
        (self.node().await, self.node().await)
    }
}

pub async fn start(store: Arc<dyn Store>) -> Locks {
    start_with(store, patient()).await
}

/// Limits with a long time-out, because the disk of a busy machine may be slow.
pub fn patient() -> Limits {
    Limits { store_timeout: PATIENCE, ..Limits::default() }
}

/// Limits of a node that collects what is over without a pause.
pub fn collecting() -> Limits {
    Limits { collect_interval: Duration::from_millis(10), ..patient() }
}
