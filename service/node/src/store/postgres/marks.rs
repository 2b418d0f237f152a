//! Whether the server has lost commits without a fail-over. A data directory that is put back as it was makes the same system on the same
//! timeline, with less in it.
//!
//! Each node counts in a row of its own, once a second, and remembers the last number that was committed. A row with a lower number, or none,
//! shows that the server was put back. Each new connection is compared before it is used, and so is each reading of the engine record.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::store::engine_record::{Epoch, Reading};

/// How often a node counts.
const EVERY: Duration = Duration::from_secs(1);

/// The first one makes the row, and removes those of nodes that have not counted for a week.
pub(super) const BEGIN: &str = "
with gone as (delete from node_marks where at < now_ms() - 604800000 and node <> $1)
insert into node_marks as m (node, counter, at) values ($1, 1, now_ms())
on conflict (node) do update set counter = m.counter + 1, at = excluded.at
returning counter";

/// A lower number than the remembered one stays: it shows the loss.
pub(super) const COUNT: &str =
    "update node_marks set counter = counter + 1, at = now_ms() where node = $1 and counter >= $2 returning counter";

/// The number that the row of this node has, if any. As one statement without parameters, because it may follow others.
pub(super) fn ask(node: i64) -> String {
    format!("select (select counter from latchgate.node_marks where node = {node})")
}

/// What a node remembers for one engine record.
#[derive(Clone)]
pub(super) struct Marks(Arc<(i64, Mutex<Remembered>)>);

#[derive(Default)]
struct Remembered {
    /// The last number that was committed. `None` before the first, and after a loss.
    counter: Option<i64>,
    /// The epoch of the last loss that the engine record named.
    lost: Epoch,
    /// How many losses were dealt with.
    losses: u64,
    counted_at: Option<Instant>,
}

impl Default for Marks {
    fn default() -> Self {
        Self(Arc::new((rand::random::<i64>().saturating_abs(), Mutex::default())))
    }
}

impl Marks {
    pub(super) fn node(&self) -> i64 {
        self.0.0
    }

    /// What is remembered before a statement is sent: its answer is compared with this, because the node may have counted meanwhile.
    pub(super) fn counter(&self) -> Option<i64> {
        self.0.1.lock().counter
    }

    /// Compares a reading of the engine record with what was remembered before. Returns whether the server has lost commits, and the record
    /// does not say so.
    pub(super) fn has_lost(&self, before: Option<i64>, found: Option<i64>, lost: Epoch) -> bool {
        let mut remembered = self.0.1.lock();
        if is_behind(before, found) && lost <= remembered.lost {
            return true;
        }
        if lost > remembered.lost {
            // A loss that the record names is over: the lower number counts.
            *remembered = Remembered { lost, losses: remembered.losses + 1, ..Remembered::default() };
        }
        false
    }

    /// The engine record has been changed for the loss.
    pub(super) fn forget(&self) {
        let mut remembered = self.0.1.lock();
        *remembered = Remembered { lost: remembered.lost, losses: remembered.losses + 1, ..Remembered::default() };
    }

    /// Whether it is time to count: with the number that was committed before, and how many losses were dealt with.
    pub(super) fn begin_count(&self, reading: &Reading) -> Option<(Option<i64>, u64)> {
        let mut remembered = self.0.1.lock();
        let has_just_counted = remembered.counted_at.is_some_and(|at| at.elapsed() < EVERY);
        if reading.is_after_fail_over || reading.record.is_none() || has_just_counted {
            return None;
        }
        remembered.counted_at = Some(Instant::now());
        Some((remembered.counter, remembered.losses))
    }

    /// The number was committed, unless a loss was dealt with meanwhile.
    pub(super) fn counted(&self, losses: u64, counter: Option<i64>) {
        let mut remembered = self.0.1.lock();
        if remembered.losses == losses {
            remembered.counter = remembered.counter.max(counter);
        }
    }
}

/// Whether the row shows less than what was committed.
pub(super) fn is_behind(before: Option<i64>, found: Option<i64>) -> bool {
    before.is_some_and(|before| found.is_none_or(|found| found < before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_fell_or_is_gone_is_a_loss_until_the_record_says_so() {
        let marks = Marks::default();
        marks.0.1.lock().counter = Some(7);
        let first = Epoch::from_number(1);
        assert!(!marks.has_lost(None, None, Epoch::NONE) && !marks.has_lost(marks.counter(), Some(8), Epoch::NONE));
        for found in [Some(6), None] {
            assert!(marks.has_lost(marks.counter(), found, Epoch::NONE));
            assert!(marks.has_lost(marks.counter(), found, Epoch::NONE));
        }
        assert!(!marks.has_lost(marks.counter(), Some(6), first));
        assert_eq!(marks.counter(), None);
        // It counts on from the lower number, and another loss is one.
        marks.0.1.lock().counter = Some(9);
        assert!(!marks.has_lost(marks.counter(), Some(9), first));
        assert!(
            marks.has_lost(marks.counter(), Some(8), first) && marks.has_lost(marks.counter(), Some(8), Epoch::NONE)
        );
    }
}
