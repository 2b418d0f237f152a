//! Writes texts into the arguments of statements, and reads the rows that they return.

use std::cell::Cell;

use latchgate_core::lock::LockState;
use latchgate_core::{Address, Key, Timestamp};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo};
use sqlx::{Encode, Postgres, Row, Type};

use crate::store::{
    Collected, CopiedState, RowKind, RowState, Stored, UnreadableState, Version, address_of, decode_state,
    position_after,
};

/// A buffer for texts is not kept if it has grown longer than this.
const KEPT_BYTES_MAX: usize = 64 * 1_024;

thread_local! {
    /// Texts are written here, and copied from here into the arguments.
    static TEXT: Cell<String> = const { Cell::new(String::new()) };
}

/// An argument, or an element of one, that is a text.
pub(super) struct Text<W>(W);

/// The text that `write` appends.
pub(super) fn text<W: Fn(&mut String) -> serde_json::Result<()>>(write: W) -> Text<W> {
    Text(write)
}

impl<W: Fn(&mut String) -> serde_json::Result<()>> Encode<'_, Postgres> for Text<W> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let mut text = TEXT.take();
        text.clear();
        (self.0)(&mut text)?;
        buffer.extend_from_slice(text.as_bytes());
        if text.capacity() <= KEPT_BYTES_MAX {
            TEXT.set(text);
        }
        Ok(IsNull::No)
    }
}

impl<W> Type<Postgres> for Text<W> {
    fn type_info() -> PgTypeInfo {
        <str as Type<Postgres>>::type_info()
    }
}

impl<W> PgHasArrayType for Text<W> {
    fn array_type_info() -> PgTypeInfo {
        <&str as PgHasArrayType>::array_type_info()
    }
}

/// The states of a load, and the clock; `None` if the store is not in the epoch.
pub(super) type LoadedRows<S> = Option<(Vec<Result<Stored<S>, UnreadableState>>, Timestamp)>;

pub(super) fn read_loaded<S: RowState>(rows: &[PgRow]) -> Result<LoadedRows<S>, sqlx::Error> {
    let mut states = Vec::with_capacity(rows.len());
    let mut now = Timestamp::default();
    for row in rows {
        now = read_timestamp(row, 0)?;
        if !row.try_get::<bool, _>(1)? {
            return Ok(None);
        }
        states.push(match row.try_get::<Option<i64>, _>(2)? {
            None => Ok(Stored::default()),
            Some(version) => {
                let version = Version::from_number(version.cast_unsigned());
                read_state(row, 3)?.map(|state| Stored { version, state })
            }
        });
    }
    Ok(Some((states, now)))
}

/// The body and, where this kind has them, the payload and what a caller has posted.
pub(super) fn read_state<S: RowState>(row: &PgRow, index: usize) -> Result<Result<S, UnreadableState>, sqlx::Error> {
    let body = row.try_get::<&str, _>(index)?.as_bytes();
    if S::KIND == RowKind::Lock {
        return Ok(decode_state(body, None));
    }
    let payload = row.try_get::<Option<&str>, _>(index + 1)?.map(str::as_bytes);
    let posted = row.try_get::<Option<&str>, _>(index + 2)?;
    let state = decode_state::<S>(body, payload);
    Ok(match posted {
        Some(posted) => {
            state.and_then(|state| state.after_post(posted).map_err(|error| UnreadableState(error.to_string())))
        }
        None => state,
    })
}

pub(super) fn read_listed(row: &PgRow) -> Option<(Key, Option<LockState>)> {
    let state = row.try_get::<&str, _>(1).ok();
    Some((read_key(row, 0).ok()?, state.and_then(|state| decode_state(state.as_bytes(), None).ok())))
}

/// The error within the result is the position after a row that cannot be decoded.
pub(super) fn read_dumped<S: RowState>(row: &PgRow) -> Result<Result<CopiedState<S>, String>, sqlx::Error> {
    let timestamp = |ms: i64| Timestamp::from_ms(ms.cast_unsigned());
    let (app, key): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    let notice_at = row.try_get::<Option<i64>, _>(2)?.map(timestamp);
    let keep_until = timestamp(row.try_get(3)?);
    let state = read_state(row, 4)?;
    Ok(match (address_of(app, key), state) {
        (Some(address), Ok(state)) => Ok(CopiedState { address, state, notice_at, keep_until }),
        _ => Err(position_after(app, key)),
    })
}

/// `None` if the store is not in the epoch.
pub(super) fn read_collected(row: &PgRow, limit: usize) -> Result<Option<Collected>, sqlx::Error> {
    if !row.try_get::<bool, _>(0)? {
        return Ok(None);
    }
    let (examined, removed): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    let token_kept = row.try_get::<Option<i64>, _>(3)?.map(i64::cast_unsigned);
    let is_end = usize::try_from(examined).is_ok_and(|examined| examined < limit);
    let next = if is_end { None } else { Some(position_after(row.try_get(4)?, row.try_get(5)?)) };
    let apps: Vec<String> = row.try_get::<Option<_>, _>(6)?.unwrap_or_default();
    let keys: Vec<String> = row.try_get::<Option<_>, _>(7)?.unwrap_or_default();
    let due: Vec<Address> = apps.iter().zip(&keys).filter_map(|(app, key)| address_of(app, key)).collect();
    let unnamed = (apps.len() - due.len()) as u64;
    Ok(Some(Collected { removed: removed.cast_unsigned(), token_kept, due, unnamed, next }))
}

pub(super) fn read_timestamp(row: &PgRow, index: usize) -> Result<Timestamp, sqlx::Error> {
    let ms: i64 = row.try_get(index)?;
    Ok(Timestamp::from_ms(ms.cast_unsigned()))
}

pub(super) fn read_key(row: &PgRow, index: usize) -> Result<Key, sqlx::Error> {
    Key::parse(row.try_get(index)?).map_err(|error| sqlx::Error::Decode(error.into()))
}
