//! Reads the rows that the statements return.

use latchgate_core::lock::LockState;
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Json;

use crate::store::{CopiedState, Stored, Version};

pub(super) fn read_address(row: &SqliteRow) -> Result<Address, sqlx::Error> {
    let app = App::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let key = Key::parse(row.try_get(1)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Address { app, key })
}

pub(super) fn read_stored(row: &SqliteRow) -> Result<Stored, sqlx::Error> {
    let Some(version) = row.try_get::<Option<i64>, _>(0)? else { return Ok(Stored::default()) };
    let Json(state) = row.try_get(1)?;
    Ok(Stored { version: Version::from_number(version.cast_unsigned()), state })
}

pub(super) fn read_dumped(row: &SqliteRow) -> Result<CopiedState, sqlx::Error> {
    let timestamp = |ms: i64| Timestamp::from_ms(ms.cast_unsigned());
    let Json(state) = row.try_get(4)?;
    let notice_at = row.try_get::<Option<i64>, _>(2)?.map(timestamp);
    Ok(CopiedState { address: read_address(row)?, state, notice_at, keep_until: timestamp(row.try_get(3)?) })
}

pub(super) fn read_listed(row: &SqliteRow) -> Result<(Key, LockState), sqlx::Error> {
    let key = Key::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let Json(state) = row.try_get(1)?;
    Ok((key, state))
}
