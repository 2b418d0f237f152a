//! Whether the server has lost commits without a fail-over. A data directory that is put back as it was makes the same system on the same
//! timeline, with less in it.
//!
//! A node remembers how much of the server's log (WAL) it has seen on disk. Recovery after a crash ends behind all of that, and a start
//! writes or finds a checkpoint where it begins. So a server that was started since, and began before the remembered position, has lost
//! commits. Neither time nor later writes of other clients hide that, until the server's next checkpoint.

use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::sessions::Session;
use crate::store::engine_record::Epoch;

/// When the process of the server was started, in µs since the Unix epoch. Only another start can have another data directory.
macro_rules! started_at {
    () => {
        "(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint"
    };
}

/// Three columns: when the server was started, where its last checkpoint begins, and how much of its log is on disk. Not
/// `pg_current_wal_lsn()`: what is not on disk yet, a crash may undo without the loss of a commit.
macro_rules! log_position {
    () => {
        concat!(
            started_at!(),
            ", (select redo_lsn - '0/0' from pg_control_checkpoint())::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint"
        )
    };
}

pub(super) const STARTED_AT: &str = concat!("select ", started_at!());
const HERE: &str = concat!("select server_here(true), ", log_position!());

/// As read in one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    /// System and timeline.
    pub server: String,
    pub started_at: i64,
    /// Where the last checkpoint begins: of a server that has made none since its start, where it began to write.
    pub checkpoint: i64,
    /// The highest position that was on disk.
    pub flushed: i64,
    /// The epoch of the last loss that the engine record names.
    pub lost: Epoch,
}

impl LogPosition {
    /// Reads the columns of [`log_position`] from `index`.
    pub(super) fn of_row(row: &PgRow, index: usize, server: String, lost: Epoch) -> Result<Self, sqlx::Error> {
        let (started_at, checkpoint, flushed) = (row.try_get(index)?, row.try_get(index + 1)?, row.try_get(index + 2)?);
        Ok(Self { server, started_at, checkpoint, flushed, lost })
    }

    async fn here(session: &mut Session, lost: Epoch) -> Result<Self, sqlx::Error> {
        let row = session.query(HERE).fetch_one(&mut **session).await?;
        Self::of_row(&row, 1, row.try_get(0)?, lost)
    }

    /// Whether what was on disk at `before` is missing here, and the engine record does not say so. On another timeline this is not the
    /// question: the record names it. Within one run the position never falls, but in a machine that was put back with its memory.
    fn has_lost(&self, before: &Self) -> bool {
        let begun = if self.started_at == before.started_at { self.flushed } else { self.checkpoint };
        self.server == before.server && begun < before.flushed && self.lost <= before.lost
    }
}

/// What a node remembers for one engine record.
#[derive(Clone, Default)]
pub(super) struct Remembered(Arc<Mutex<Option<LogPosition>>>);

impl Remembered {
    /// What is remembered before a statement is sent: its answer is compared with this, because another answer may come first.
    pub(super) fn get(&self) -> Option<LogPosition> {
        self.0.lock().clone()
    }

    /// Compares what was read with the engine record. Returns whether the server has lost commits since, and the record does not say
    /// so. Then the lower position is not remembered.
    pub(super) fn learn(&self, before: Option<&LogPosition>, here: LogPosition) -> bool {
        if before.is_some_and(|before| here.has_lost(before)) {
            return true;
        }
        let mut known = self.0.lock();
        match &mut *known {
            Some(known) if known.server == here.server && known.started_at == here.started_at => {
                // A loss that the record names is over: the lower position counts.
                let is_over = here.lost > known.lost;
                known.flushed = if is_over { here.flushed } else { known.flushed.max(here.flushed) };
                known.lost = known.lost.max(here.lost);
            }
            // Another answer came first if this is not what was remembered.
            other if other.as_ref().map(|known| known.started_at) == before.map(|before| before.started_at) => {
                // Late answers of the run before have shown more since.
                if other.as_ref().is_some_and(|known| here.has_lost(known)) {
                    return true;
                }
                *other = Some(here);
            }
            _ => {}
        }
        false
    }

    /// The engine record has been changed for the loss.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// Whether the session may be used: it is one to the server as it is remembered, or that has been started since and has lost nothing.
    pub(super) async fn allows(&self, session: &mut Session) -> Result<bool, sqlx::Error> {
        // Each transaction asks: nothing is copied if the server is as it was.
        let is_other = |known: &&LogPosition| known.started_at != session.started_at();
        let before = self.0.lock().as_ref().filter(is_other).cloned();
        let Some(before) = before else { return Ok(true) };
        let here = LogPosition::here(session, before.lost).await?;
        Ok(!self.learn(Some(&before), here))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: &str, started_at: i64, checkpoint: i64, flushed: i64) -> LogPosition {
        LogPosition { server: server.to_owned(), started_at, checkpoint, flushed, lost: Epoch::from_number(1) }
    }

    #[test]
    fn only_a_server_that_was_started_behind_what_was_on_disk_has_lost_commits() {
        let before = at("a/1", 1, 100, 500);
        for (here, has_lost) in [
            // The same run: its checkpoint is always behind.
            (at("a/1", 1, 100, 500), false),
            (at("a/1", 1, 100, 499), true),
            // A restart, also after a crash, ends behind what was on disk.
            (at("a/1", 2, 500, 500), false),
            (at("a/1", 2, 600, 700), false),
            (at("a/1", 2, 499, 500), true),
            // It has written more since than was lost.
            (at("a/1", 2, 400, 9_000), true),
            (at("a/2", 2, 400, 400), false),
        ] {
            let remembered = Remembered::default();
            assert!(!remembered.learn(None, before.clone()));
            assert_eq!(remembered.learn(remembered.get().as_ref(), here.clone()), has_lost, "{here:?}");
            // It is reported until the record says so.
            assert_eq!(remembered.learn(remembered.get().as_ref(), here.clone()), has_lost, "{here:?}");
            let declared = LogPosition { lost: Epoch::from_number(2), ..here };
            assert!(!remembered.learn(remembered.get().as_ref(), declared.clone()));
            assert!(!remembered.learn(remembered.get().as_ref(), declared));
        }
    }

    #[test]
    fn an_answer_of_the_run_before_that_arrives_late_is_no_loss() {
        let remembered = Remembered::default();
        assert!(!remembered.learn(None, at("a/1", 1, 100, 500)));
        let before = remembered.get();
        assert!(!remembered.learn(before.as_ref(), at("a/1", 2, 600, 700)));
        assert!(!remembered.learn(before.as_ref(), at("a/1", 1, 100, 550)));
        assert_eq!(remembered.get(), Some(at("a/1", 2, 600, 700)));
    }
}
