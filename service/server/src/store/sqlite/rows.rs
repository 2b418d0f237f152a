//! What the statements answer with.

use latchgate_core::lock::LockState;
use latchgate_core::{Address, App, Key};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Json;

use crate::store::{Stored, Version};

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

pub(super) fn read_dumped(row: &SqliteRow) -> Result<(Address, Stored), sqlx::Error> {
    let Json(state) = row.try_get(3)?;
    let version = Version::from_number(row.try_get::<i64, _>(2)?.cast_unsigned());
    Ok((read_address(row)?, Stored { version, state }))
}

pub(super) fn read_listed(row: &SqliteRow) -> Result<(Key, LockState), sqlx::Error> {
    let key = Key::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let Json(state) = row.try_get(1)?;
    Ok((key, state))
}
