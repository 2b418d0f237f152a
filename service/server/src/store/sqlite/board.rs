//! Boards: one row each.

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{commit, unavailable};
use crate::store::{Board, StoreError, Version};

const READ: &str = "select version, text from boards where name = ?1";

const MAKE: &str = "insert into boards (name, version, text) values (?1, ?2, ?3) on conflict (name) do nothing";

const REPLACE: &str = "update boards set version = ?2, text = ?3 where name = ?1 and version = ?4";

/// Without the clock.
pub(in crate::store) async fn read(connection: &mut SqliteConnection, name: &str) -> Result<Board, sqlx::Error> {
    let row = sqlx::query(READ).bind(name).fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(Board::default()) };
    let version: i64 = row.try_get(0)?;
    Ok(Board { version: version.cast_unsigned(), text: row.try_get(1)?, ..Board::default() })
}

/// In a transaction of its own, so that an error tells whether it came before the commit.
pub(in crate::store) async fn write(
    connection: &mut SqliteConnection,
    name: &str,
    expected: u64,
    text: &str,
) -> Result<Option<u64>, StoreError> {
    let version = Version::fresh().number();
    let statement = if expected == 0 { sqlx::query(MAKE) } else { sqlx::query(REPLACE) };
    let statement = statement.bind(name).bind(version.cast_signed()).bind(text);
    let statement = if expected == 0 { statement } else { statement.bind(expected.cast_signed()) };
    commit::begin(connection).await.map_err(|error| unavailable(&error))?;
    let written = statement.execute(&mut *connection).await.map_err(|error| unavailable(&error))?;
    commit::commit(connection).await?;
    Ok((written.rows_affected() == 1).then_some(version))
}
