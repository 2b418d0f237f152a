//! Engine records in SQLite: one row each, read and written by the thread that writes, so none changes while a transaction is open.

use latchgate_core::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::database::not_read;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Purpose, Reading};
use crate::store::{StoreError, random_number};

const READ: &str = "select revision, copied, body from engine_records where purpose = ?1";

const WRITE: &str = "
insert or replace into engine_records (purpose, revision, state, epoch, copied, body) values (?1, ?2, ?3, ?4, 0, ?5)";

const IS_IN_FORCE: &str =
    "select exists (select 1 from engine_records where purpose = ?1 and state = ?2 and epoch = ?3)";

const COUNT: &str = "update engine_records set copied = max(copied, ?2) where purpose = ?1";

/// # Errors
/// `EpochOver` unless the record has this state and epoch.
pub(super) fn check(
    connection: &Connection,
    purpose: Purpose,
    (state, epoch): (EngineState, Epoch),
) -> Result<(), StoreError> {
    let params = params![purpose.as_str(), state.as_str(), epoch.number().cast_signed()];
    let is_in_force = connection.prepare_cached(IS_IN_FORCE)?.query_row(params, |row| row.get(0))?;
    if is_in_force { Ok(()) } else { Err(StoreError::EpochOver) }
}

pub(super) fn read(connection: &Connection, purpose: Purpose, now: Timestamp) -> Result<Reading, StoreError> {
    let row = connection.prepare_cached(READ)?.query_row([purpose.as_str()], |row| {
        let record: EngineRecord = serde_json::from_str(row.get_ref(2)?.as_str()?).map_err(not_read)?;
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, record))
    });
    let Some((revision, copied, record)) = row.optional()? else { return Ok(Reading { now, ..Reading::default() }) };
    let (revision, copied) = (revision.cast_unsigned(), copied.cast_unsigned());
    Ok(Reading { record: Some(record), revision, copied, now, ..Reading::default() })
}

pub(super) fn write(
    connection: &Connection,
    purpose: Purpose,
    read: &Reading,
    next: &EngineRecord,
) -> Result<bool, StoreError> {
    if self::read(connection, purpose, read.now)?.revision != read.revision {
        return Ok(false);
    }
    let body = serde_json::to_string(next).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let (revision, epoch) = (random_number().cast_signed(), next.epoch.number().cast_signed());
    let params = params![purpose.as_str(), revision, next.state.as_str(), epoch, body];
    connection.prepare_cached(WRITE)?.execute(params)?;
    Ok(true)
}

pub(super) fn count(connection: &Connection, purpose: Purpose, copied: u64) -> Result<(), StoreError> {
    connection.prepare_cached(COUNT)?.execute(params![purpose.as_str(), copied.cast_signed()])?;
    Ok(())
}
