//! How far a copy is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::store::engine_record::Epoch;

/// A copy whose count has not risen for so long is given up.
const STALLED: Duration = Duration::from_secs(10);

/// A copy that is under way, as a node follows it from poll to poll.
pub(super) struct Copying {
    pub epoch: Epoch,
    /// What the target counts, which is that of the node that is furthest.
    pub copied: u64,
    /// How many this node has copied at most since it took over, and how many it had at the last poll.
    pub own: Arc<Own>,
    pub own_before: u64,
    pub progressed: Instant,
    /// This node copies.
    pub is_own: bool,
    pub task: Option<AbortOnDropHandle<()>>,
}

/// How far this node is with its own copy.
#[derive(Default)]
pub(super) struct Own {
    pub copied: AtomicU64,
    /// It has not begun, because transactions of callers are open that rely on the engine.
    pub awaits_callers: AtomicBool,
}

impl Copying {
    pub(super) fn new(epoch: Epoch, is_own: bool) -> Self {
        let own = Arc::default();
        Self { epoch, copied: 0, own, own_before: 0, progressed: Instant::now(), is_own, task: None }
    }

    /// `copied`: what the target counts now.
    pub(super) fn follow(&mut self, copied: u64) {
        let own = self.own.copied.load(Ordering::Relaxed);
        if copied > self.copied || own > self.own_before {
            self.progressed = Instant::now();
        }
        (self.copied, self.own_before) = (copied.max(self.copied), own);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.progressed.elapsed() > STALLED
    }

    pub(super) fn awaits_callers(&self) -> bool {
        self.own.awaits_callers.load(Ordering::Relaxed)
    }
}
