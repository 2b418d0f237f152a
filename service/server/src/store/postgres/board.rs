//! Boards: one row each, which is read without waiting for whoever is changing it.

use sqlx::Row;

use super::cluster::is_standby;
use super::rows::read_timestamp;
use super::sessions::Session;
use crate::store::{Board, Version};

/// Tells of itself whether it is a standby: a connection through a proxy may lead to one that was opened to the primary.
const READ: &str = "
select floor(date_part('epoch', clock_timestamp()) * 1000)::bigint, pg_is_in_recovery(), b.version, b.text
from (select) nothing left join boards b on b.name = $1";

/// Waits for whoever is making the row, and does nothing if that comes off.
const MAKE: &str = "insert into boards (name, version, text) values ($1, $2, $3) on conflict (name) do nothing";

/// Waits for whoever is changing the row, and then looks at its version again.
const REPLACE: &str = "update boards set version = $2, text = $3 where name = $1 and version = $4";

pub(in crate::store) async fn read(connection: &mut Session, name: &str) -> Result<Board, sqlx::Error> {
    let row = connection.query(READ).bind(name).fetch_one(&mut **connection).await?;
    if row.try_get(1)? {
        return Err(is_standby());
    }
    let version: Option<i64> = row.try_get(2)?;
    let text: Option<String> = row.try_get(3)?;
    Ok(Board {
        version: version.unwrap_or_default().cast_unsigned(),
        text: text.unwrap_or_default(),
        now: read_timestamp(&row, 0)?,
    })
}

/// One statement, which on the server itself is its own transaction.
pub(in crate::store) async fn write(
    connection: &mut Session,
    name: &str,
    expected: u64,
    text: &str,
) -> Result<Option<u64>, sqlx::Error> {
    let version = Version::fresh().number();
    let statement = connection.query(if expected == 0 { MAKE } else { REPLACE });
    let statement = statement.bind(name).bind(version.cast_signed()).bind(text);
    let statement = if expected == 0 { statement } else { statement.bind(expected.cast_signed()) };
    let written = statement.execute(&mut **connection).await?;
    Ok((written.rows_affected() == 1).then_some(version))
}
