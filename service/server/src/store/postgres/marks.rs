//! Whether the server has lost commits without a fail-over. A data directory that is put back as it was makes the same system on the same
//! timeline, with less in it.
//!
//! Each node counts in a row of its own, once a second, and remembers the last number that was committed. A row with a lower number, or none,
//! shows that the server was put back. Each new connection is compared before it is used, and so is each reading of the engine record.

use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::Row as _;
use tokio::time::{Duration, Instant};

use super::sessions::Sessions;
use crate::store::engine_record::{Epoch, Reading};

/// How often a node counts.
const EVERY: Duration = Duration::from_secs(1);

/// The first one makes the row, and removes those of nodes that have not counted for a week.
const BEGIN: &str = "
with gone as (delete from node_marks where at < now_ms() - 604800000 and node <> $1)
insert into node_marks as m (node, counter, at) values ($1, 1, now_ms())
on conflict (node) do update set counter = m.counter + 1, at = excluded.at
returning counter";

/// A lower number than the remembered one stays: it shows the loss.
const COUNT: &str =
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

    /// Counts, unless it has just done so. Nothing waits for that: if it fails, the number that was committed before is still remembered.
    pub(super) fn count(&self, sessions: &Sessions, reading: &Reading) {
        if reading.is_after_fail_over || reading.record.is_none() {
            return;
        }
        let (before, losses) = {
            let mut remembered = self.0.1.lock();
            if remembered.counted_at.is_some_and(|at| at.elapsed() < EVERY) {
                return;
            }
            remembered.counted_at = Some(Instant::now());
            (remembered.counter, remembered.losses)
        };
        let (marks, sessions) = (self.clone(), sessions.clone());
        tokio::spawn(async move {
            let Ok(mut session) = sessions.check_out().await else { return };
            let count = match before {
                Some(before) => session.query(COUNT).bind(marks.node()).bind(before),
                None => session.query(BEGIN).bind(marks.node()),
            };
            let counted = count.fetch_optional(&mut *session).await;
            let counted = counted.and_then(|row| row.map(|row| row.try_get::<i64, _>(0)).transpose());
            let Ok(counted) = session.written(counted).await else { return };
            let mut remembered = marks.0.1.lock();
            if remembered.losses == losses {
                remembered.counter = remembered.counter.max(counted);
            }
        });
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
