//! How far a copy is.

use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::store::engine_record::Epoch;

/// A copy whose count has not risen for so long is given up.
const STALLED: Duration = Duration::from_secs(10);

/// A copy that is under way, as a node follows it from look to look.
pub(super) struct Copying {
    pub epoch: Epoch,
    pub copied: u64,
    pub progressed: Instant,
    /// This node copies.
    pub is_own: bool,
    pub task: Option<AbortOnDropHandle<()>>,
}

impl Copying {
    pub(super) fn new(epoch: Epoch, is_own: bool) -> Self {
        Self { epoch, copied: 0, progressed: Instant::now(), is_own, task: None }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.progressed.elapsed() > STALLED
    }
}
