//! The board: one row.

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{commit, unavailable};
use crate::store::{Board, StoreError, Version};

const READ: &str = "select version, text from boards";

const MAKE: &str = "insert into boards (one, version, text) values (1, ?1, ?2) on conflict (one) do nothing";

const REPLACE: &str = "update boards set version = ?1, text = ?2 where version = ?3";

/// Without the clock.
pub(super) async fn read(connection: &mut SqliteConnection) -> Result<Board, sqlx::Error> {
    let Some(row) = sqlx::query(READ).fetch_optional(connection).await? else { return Ok(Board::default()) };
    let version: i64 = row.try_get(0)?;
    Ok(Board { version: version.cast_unsigned(), text: row.try_get(1)?, ..Board::default() })
}

/// In a transaction of its own, so that an error tells whether it came before the commit.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    expected: u64,
    text: &str,
) -> Result<Option<u64>, StoreError> {
    let version = Version::fresh().number();
    let statement = if expected == 0 { sqlx::query(MAKE) } else { sqlx::query(REPLACE) };
    let statement = statement.bind(version.cast_signed()).bind(text);
    let statement = if expected == 0 { statement } else { statement.bind(expected.cast_signed()) };
    commit::begin(connection).await.map_err(|error| unavailable(&error))?;
    let written = statement.execute(&mut *connection).await.map_err(|error| unavailable(&error))?;
    commit::commit(connection).await?;
    Ok((written.rows_affected() == 1).then_some(version))
}
