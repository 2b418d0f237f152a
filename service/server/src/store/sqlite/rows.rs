//! Reads the rows that the statements return.

use latchgate_core::lock::LockState;
use latchgate_core::{Address, App, Key, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::store::{CopiedState, Stored, UnreadableState, Version, decode_state};

pub(super) fn read_address(row: &SqliteRow) -> Result<Address, sqlx::Error> {
    let app = App::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let key = Key::parse(row.try_get(1)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Address { app, key })
}

pub(super) fn read_stored(row: &SqliteRow) -> Result<Result<Stored, UnreadableState>, sqlx::Error> {
    let Some(version) = row.try_get::<Option<i64>, _>(0)? else { return Ok(Ok(Stored::default())) };
    let version = Version::from_number(version.cast_unsigned());
    Ok(read_state(row, 1).map(|state| Stored { version, state }))
}

/// The error within the result is that of a state that cannot be decoded.
pub(super) fn read_dumped(row: &SqliteRow) -> Result<Result<CopiedState, Address>, sqlx::Error> {
    let timestamp = |ms: i64| Timestamp::from_ms(ms.cast_unsigned());
    let address = read_address(row)?;
    let notice_at = row.try_get::<Option<i64>, _>(2)?.map(timestamp);
    let keep_until = timestamp(row.try_get(3)?);
    Ok(match read_state(row, 4) {
        Ok(state) => Ok(CopiedState { address, state, notice_at, keep_until }),
        Err(_) => Err(address),
    })
}

pub(super) fn read_listed(row: &SqliteRow) -> Result<(Key, Option<LockState>), sqlx::Error> {
    let key = Key::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok((key, read_state(row, 1).ok()))
}

fn read_state(row: &SqliteRow, index: usize) -> Result<LockState, UnreadableState> {
    let text = row.try_get::<&[u8], _>(index).map_err(|error| UnreadableState(error.to_string()))?;
    decode_state(text)
}
