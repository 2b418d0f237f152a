//! Engine records in Postgres: one row each. A promoted standby writes on a timeline of its own, so the record names the server
//! that it was written on, and commits are refused on any other: commits that were acknowledged may be missing there. A server that
//! has gone back without a fail-over counts as another one: see [`super::marks`].

use latchgate_core::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::rows::read_timestamp;
use super::sessions::Session;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading, Risk};
use crate::store::{Version, random_number};

/// Fails on a server that does not tell its system identifier and its timeline, and on a standby.
const TIMELINE: &str = "select server_here(true)";

const READ: &str = "
select now_ms(), server_here($2), risk_here(), allows_volatile(), r.server, r.revision, r.copied, r.body,
    (select m.counter from node_marks m where m.node = $3), unlogged_here()
from (select) nothing left join engine_records r on r.purpose = $1";

const WRITE: &str = "select replace_engine_record($1, $2, $3, $4, $5, $6, $7, $8)";

const CALLERS: &str = "select has_no_callers($1)";

const FENCE: &str = "select now, is_in_force from fence($1, $2, $3, $4)";

/// Whether this Postgres tells its timeline: some that are compatible with it do not. They answer as a standby does, but are none.
pub(in crate::store) async fn knows_timeline(connection: &mut Session) -> Result<bool, sqlx::Error> {
    let Err(error) = connection.query(TIMELINE).execute(&mut **connection).await else { return Ok(true) };
    let code = error.as_database_error().and_then(|error| error.code());
    let is_unknown = matches!(code.as_deref(), Some("0A000" | "55000"));
    if is_unknown && !sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(&mut **connection).await? {
        return Ok(false);
    }
    Err(error)
}

pub(in crate::store) async fn read(connection: &mut Session) -> Result<Reading, sqlx::Error> {
    let before = connection.marks().counter();
    let query = connection.query(READ).bind("locks").bind(connection.knows_timeline());
    let row = query.bind(connection.marks().node()).fetch_one(&mut **connection).await?;
    let mut reading = read_row(&row)?;
    let lost = reading.record.as_ref().map_or(Epoch::NONE, |record| record.lost);
    reading.has_gone_back |= connection.marks().has_lost(before, row.try_get(8)?, lost);
    reading.is_after_fail_over |= reading.has_gone_back;
    Ok(reading)
}

fn read_row(row: &PgRow) -> Result<Reading, sqlx::Error> {
    let server: String = row.try_get(1)?;
    let is_accepted = row.try_get(3)?;
    let of_setting = |setting| format!("this Postgres has {setting} = off: a crash would forget locks that are held");
    let of_table = |table| format!("the table latchgate.{table} is unlogged: a crash would empty it");
    let setting = row.try_get::<Option<String>, _>(2)?.map(of_setting);
    let what = setting.or(row.try_get::<Option<String>, _>(9)?.map(of_table));
    let risk = what.map(|what| Risk { what, is_accepted });
    let reading = Reading { now: read_timestamp(row, 0)?, server, risk, ..Reading::default() };
    let Some(recorded) = row.try_get::<Option<String>, _>(4)? else { return Ok(reading) };
    let (revision, copied): (i64, i64) = (row.try_get(5)?, row.try_get(6)?);
    let record: EngineRecord =
        serde_json::from_str(row.try_get(7)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Reading {
        record: Some(record),
        revision: revision.cast_unsigned(),
        copied: copied.cast_unsigned(),
        is_after_fail_over: recorded != reading.server,
        has_gone_back: !is_same_database(&recorded, &reading.server),
        ..reading
    })
}

/// Whether a server is the one that the record was made on, or was promoted: another system or database has what was loaded into it.
fn is_same_database(recorded: &str, here: &str) -> bool {
    let [recorded, here] = [recorded, here].map(|server| {
        let mut parts = server.split('/');
        (parts.next(), parts.nth(1))
    });
    recorded == here
}

/// One statement, which on the server itself is its own transaction.
pub(in crate::store) async fn write(
    connection: &mut Session,
    read: &Reading,
    next: &EngineRecord,
) -> Result<bool, sqlx::Error> {
    let body = serde_json::to_string(next).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let query = connection
        .query(WRITE)
        .bind("locks")
        .bind(read.revision.cast_signed())
        .bind(read.server.clone())
        .bind(connection.knows_timeline())
        .bind(random_number().cast_signed())
        .bind(next.state.as_str())
        .bind(next.epoch.number().cast_signed())
        .bind(body);
    let is_written = query.fetch_one(&mut **connection).await?.try_get(0)?;
    if is_written && (read.is_after_fail_over || read.record.is_none()) {
        connection.marks().forget();
    }
    Ok(is_written)
}

/// See [`RecordStore::callers_have_ended`](crate::store::RecordStore::callers_have_ended).
pub(in crate::store) async fn callers_have_ended(connection: &mut Session) -> Result<bool, sqlx::Error> {
    let query = connection.query(CALLERS).bind("locks");
    query.fetch_one(&mut **connection).await?.try_get(0)
}

/// Whether the store is active in this epoch. Within a transaction it stays so until that ends.
pub(super) async fn fence(connection: &mut Session, epoch: Epoch) -> Result<(Timestamp, bool), sqlx::Error> {
    let query = connection.query(FENCE).bind("locks").bind(EngineState::Active.as_str());
    let row =
        query.bind(epoch.number().cast_signed()).bind(connection.knows_timeline()).fetch_one(&mut **connection).await?;
    Ok((read_timestamp(&row, 0)?, row.try_get(1)?))
}

/// A version for a copied state.
pub(super) fn fresh_versions(count: usize) -> Vec<i64> {
    (0..count).map(|_| Version::fresh().number().cast_signed()).collect()
}
