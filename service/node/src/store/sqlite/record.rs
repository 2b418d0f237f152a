//! Engine records in SQLite: one row each, read and written by the thread that writes, so none changes while a transaction is open.

use latchgate_core::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::database::not_read;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use crate::store::{StoreError, random_number};

const READ: &str = "select revision, copied, body from engine_records";

const WRITE: &str = "
insert or replace into engine_records (purpose, revision, state, epoch, copied, body) values ('locks', ?1, ?2, ?3, 0, ?4)";

const IS_IN_FORCE: &str = "select exists (select 1 from engine_records where state = ?1 and epoch = ?2)";

const COUNT: &str = "update engine_records set copied = max(copied, ?1)";

/// # Errors
/// `EpochOver` unless the record has this state and epoch.
pub(super) fn check(connection: &Connection, (state, epoch): (EngineState, Epoch)) -> Result<(), StoreError> {
    let params = params![state.as_str(), epoch.number().cast_signed()];
    let is_in_force = connection.prepare_cached(IS_IN_FORCE)?.query_row(params, |row| row.get(0))?;
    if is_in_force { Ok(()) } else { Err(StoreError::EpochOver) }
}

pub(super) fn read(connection: &Connection, now: Timestamp) -> Result<Reading, StoreError> {
    let row = connection.prepare_cached(READ)?.query_row([], |row| {
        let record: EngineRecord = serde_json::from_str(row.get_ref(2)?.as_str()?).map_err(not_read)?;
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, record))
    });
    let Some((revision, copied, record)) = row.optional()? else { return Ok(Reading { now, ..Reading::default() }) };
    let (revision, copied) = (revision.cast_unsigned(), copied.cast_unsigned());
    Ok(Reading { record: Some(record), revision, copied, now, ..Reading::default() })
}

pub(super) fn write(connection: &Connection, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
    if self::read(connection, read.now)?.revision != read.revision {
        return Ok(false);
    }
    let body = serde_json::to_string(next).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let (revision, epoch) = (random_number().cast_signed(), next.epoch.number().cast_signed());
    let params = params![revision, next.state.as_str(), epoch, body];
    connection.prepare_cached(WRITE)?.execute(params)?;
    Ok(true)
}

pub(super) fn count(connection: &Connection, copied: u64) -> Result<(), StoreError> {
    connection.prepare_cached(COUNT)?.execute(params![copied.cast_signed()])?;
    Ok(())
}
