//! Engine records in SQLite: one row each, with a copy in memory that commits are checked against. One process has the
//! file, and the row is read and written through the writing connection only, so the copy is the row.

use std::sync::{Mutex, MutexGuard, PoisonError};

use latchgate_core::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{commit, unavailable};
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Purpose, Reading};
use crate::store::{StoreError, random_number};

const READ: &str = "select revision, copied, body from engine_records where purpose = ?1";

const WRITE: &str = "
insert into engine_records (purpose, revision, copied, body) values (?1, ?2, 0, ?3)
on conflict (purpose) do update set revision = excluded.revision, copied = 0, body = excluded.body";

const COUNT: &str = "update engine_records set copied = max(copied, ?2) where purpose = ?1";

pub(super) struct FileRecord {
    purpose: Purpose,
    known: Mutex<Reading>,
}

impl FileRecord {
    pub(super) fn new(purpose: Purpose) -> Self {
        Self { purpose, known: Mutex::default() }
    }

    pub(super) const fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub(super) fn is_in_force(&self, state: EngineState, epoch: Epoch) -> bool {
        let known = self.known();
        known.is(state) && known.epoch() == epoch
    }

    /// Reads the row through the writing connection.
    pub(super) async fn read(&self, writer: &mut SqliteConnection, now: Timestamp) -> Result<Reading, StoreError> {
        let row = sqlx::query(READ).bind(self.purpose.as_str()).fetch_optional(writer).await;
        let mut reading = Reading { now, ..Reading::default() };
        if let Some(row) = row.map_err(|error| unavailable(&error))? {
            let read = |row: &sqlx::sqlite::SqliteRow| {
                let (revision, copied): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
                let body: String = row.try_get(2)?;
                Ok((revision.cast_unsigned(), copied.cast_unsigned(), body))
            };
            let (revision, copied, body) = read(&row).map_err(|error| unavailable(&error))?;
            let record = serde_json::from_str(&body);
            let record = record.map_err(|error| StoreError::Unavailable(format!("the engine record: {error}")))?;
            reading = Reading { record: Some(record), revision, copied, ..reading };
        }
        *self.known() = reading.clone();
        Ok(reading)
    }

    pub(super) async fn write(
        &self,
        writer: &mut SqliteConnection,
        read: &Reading,
        next: &EngineRecord,
    ) -> Result<bool, StoreError> {
        if self.read(writer, read.now).await?.revision != read.revision {
            return Ok(false);
        }
        let revision = random_number();
        let body = serde_json::to_string(next).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        // Until it is known whether the row was written, nothing is in force.
        *self.known() = Reading::default();
        commit::begin(writer).await.map_err(|error| unavailable(&error))?;
        let written = sqlx::query(WRITE)
            .bind(self.purpose.as_str())
            .bind(revision.cast_signed())
            .bind(body)
            .execute(&mut *writer);
        written.await.map_err(|error| unavailable(&error))?;
        commit::commit(writer).await?;
        *self.known() = Reading { record: Some(next.clone()), revision, ..Reading::default() };
        Ok(true)
    }

    pub(super) async fn count(&self, writer: &mut SqliteConnection, copied: u64) -> Result<(), StoreError> {
        let counted = sqlx::query(COUNT).bind(self.purpose.as_str()).bind(copied.cast_signed()).execute(writer).await;
        counted.map_err(|error| unavailable(&error))?;
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Reading> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
