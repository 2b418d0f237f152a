//! Records in Postgres: one row per id, each verb one statement. Claims and replacements share statements and commits.

mod busy;
mod posted;
mod statements;
mod writes;

use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationName, OperationRecord, State};
use latchgate_core::{App, CLOCK_BOUND_MS, Timestamp};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::types::Json;
use sqlx::{Postgres, Row};
use tokio::sync::mpsc;

use self::posted::Posted;
use self::writes::{Encoded, Writer};
use crate::store::engine_record::{EngineRecord, Epoch, Purpose, Reading};
use crate::store::gate::{
    At, Change, DumpPage, EXAMINED_MAX, Fence, GateStore, ListError, Listing, Page, Stored, WakeUp, Write, Written,
    id_of, is_off, page_of, position_after, read_position,
};
use crate::store::postgres::sessions::{Route, Sessions};
use crate::store::postgres::wake_ups::subscribe;
use crate::store::postgres::{self, PostgresConfig, checks, faults, record};
use crate::store::wake_ups::{listen, pack_operation, unpack_operation};
use crate::store::{PoolUse, RecordStore, StoreError, Version};

const EXAMINED: i64 = EXAMINED_MAX as i64;
/// Connections for all calls together.
const CALL_CONNECTIONS: usize = 16;
/// And one to listen on.
pub(in crate::store) const CONNECTIONS_MAX: usize = CALL_CONNECTIONS + 1;
/// Nodes notify each other of ends of operations on it. A notification serialises commits, so one is sent only for a record that says
/// that a pre waits.
const CHANNEL: &str = "latchgate_operations";
/// Records that one statement removes at most.
const CLEAR_MAX: i64 = 5_000;

pub struct PostgresGateStore {
    sessions: Sessions,
    /// For LISTEN.
    direct: Route,
    purpose: Purpose,
    writer: Arc<Writer>,
}

impl PostgresGateStore {
    /// Connects and checks that the server keeps what it acknowledges and that the schema is up to date.
    ///
    /// # Errors
    /// Says what is wrong with the URL, the server or the schema.
    pub async fn open(config: &PostgresConfig) -> anyhow::Result<Self> {
        let (route, direct) = (config.locking_route()?, config.direct_route()?);
        checks::connect(direct.hosts(), config.allow_volatile, &postgres::MIGRATIONS).await?;
        // In a session of its own: if the server does not know the function, the transaction is aborted.
        let knows_timeline = record::knows_timeline(&mut Sessions::new(&direct, 1, true).check_out().await?).await?;
        let sessions = Sessions::new(&route, CALL_CONNECTIONS, knows_timeline);
        sessions.check().await?;
        Ok(Self::with(sessions, direct, Purpose::Gate))
    }

    fn with(sessions: Sessions, direct: Route, purpose: Purpose) -> Self {
        let writer = Writer::new(sessions.clone(), purpose);
        Self { sessions, direct, purpose, writer }
    }

    fn bind_fence<'q>(&self, query: PgQuery<'q>, fence: Fence) -> PgQuery<'q> {
        bind_fence(query, self.purpose, fence, self.sessions.knows_timeline())
    }

    async fn remove(&self, Write { fence, now, address, change }: Write<'_>) -> Result<At<Written>, StoreError> {
        let mut connection = self.sessions.check_out().await?;
        let query = connection
            .query(statements::REMOVE)
            .bind(address.app.as_str())
            .bind(address.id.as_bytes())
            .bind(now.as_ms().cast_signed())
            .bind(CLOCK_BOUND_MS.cast_signed());
        let query = self.bind_fence(query, fence).bind(change.expected.unwrap_or_default().number().cast_signed());
        let query = query.bind(CHANNEL).bind(change.wakes.then(|| pack_operation(address)));
        let row = query.fetch_one(&mut *connection).await;
        let read = row.and_then(|row| Ok((read_timestamp(&row)?, is_in_force(&row)?, row.try_get::<bool, _>(2)?)));
        let (store_now, is_in_force, removed) = connection.written(read).await?;
        if !is_in_force {
            return Err(StoreError::EpochOver);
        }
        let answer = match removed {
            true => Written::Done(Version::ABSENT),
            false if is_off(store_now, now) => Written::ClockOff,
            false => Written::Moved,
        };
        Ok(At::new(store_now, answer))
    }
}

#[async_trait]
impl RecordStore for PostgresGateStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn pools(&self) -> Vec<PoolUse> {
        vec![self.sessions.usage("calls")]
    }

    fn may_fail_over(&self) -> bool {
        true
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let mut connection = self.sessions.check_out_for_record().await?;
        let reading = record::read(&mut connection, self.purpose).await;
        let reading = connection.read(reading).await?;
        self.sessions.count(&reading);
        Ok(reading)
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let mut connection = self.sessions.check_out_for_record().await?;
        let written = record::write(&mut connection, self.purpose, read, next).await;
        connection.written(written).await
    }

    async fn callers_have_ended(&self) -> Result<bool, StoreError> {
        let mut connection = self.sessions.check_out_for_record().await?;
        let have_ended = record::callers_have_ended(&mut connection, self.purpose).await;
        connection.read(have_ended).await
    }
}

#[async_trait]
impl GateStore for PostgresGateStore {
    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn for_durable(&self) -> Option<Arc<dyn GateStore>> {
        Some(Arc::new(Self::with(self.sessions.for_another_record(), self.direct.clone(), Purpose::Durable)))
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let mut connection = self.sessions.check_out().await?;
        let query = connection.query(statements::LOAD).bind(address.app.as_str()).bind(address.id.as_bytes());
        let row = self.bind_fence(query, fence).fetch_one(&mut *connection).await;
        let loaded =
            row.and_then(|row| Ok(is_in_force(&row)?.then_some(At::new(read_timestamp(&row)?, read_stored(&row, 2)?))));
        connection.read(loaded).await?.ok_or(StoreError::EpochOver)
    }

    async fn write(&self, write: Write<'_>) -> Result<At<Written>, StoreError> {
        let Some(record) = write.change.record else { return self.remove(write).await };
        let written = self.writer.write(Encoded::new(&write, record)?).await?;
        // The row was committed while the statement waited for it, and the statement does not see it.
        if write.change.expected.is_none() && written.answer == Written::Moved {
            let loaded = self.load(write.fence, write.address).await?;
            let found = loaded.answer.map_or(Written::Moved, |stored| Written::Exists(Box::new(stored)));
            return Ok(At::new(loaded.now, found));
        }
        Ok(written)
    }

    async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        let (app, id, last_app) = listing.bounds()?;
        let Listing { filter, limit, .. } = listing;
        let mut connection = self.sessions.check_out().await?;
        let statement = if filter.suspect { statements::LIST_SUSPECTS } else { statements::LIST };
        let rows = connection
            .query(statement)
            .bind(&app)
            .bind(&id)
            .bind(filter.operation.as_ref().map(OperationName::as_str))
            .bind(filter.state.map(State::as_str))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(EXAMINED)
            .bind(CLOCK_BOUND_MS.cast_signed())
            .bind(&last_app)
            .fetch_all(&mut *connection)
            .await;
        let records = rows.and_then(|rows| rows.iter().map(read_listed).collect::<Result<Vec<_>, _>>());
        let next = match &records {
            Ok(records) if records.len() == limit => Ok(records.last().map(|(address, _)| position_after(address))),
            Ok(_) if !filter.suspect => {
                let last = connection
                    .query(statements::LAST_EXAMINED)
                    .bind(&app)
                    .bind(&id)
                    .bind(EXAMINED)
                    .bind(&last_app)
                    .fetch_optional(&mut *connection)
                    .await;
                last.and_then(|row| row.as_ref().map(read_address).transpose())
                    .map(|last| last.as_ref().map(position_after))
            }
            _ => Ok(None),
        };
        let page = records.and_then(|records| Ok(Page { records, next: next? }));
        Ok(connection.read(page).await?)
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        let mut connection = self.sessions.check_out().await?;
        let query = connection
            .query(statements::EXPIRE)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(CLOCK_BOUND_MS.cast_signed());
        let removed = query.execute(&mut *connection).await;
        connection.read(removed.map(|removed| removed.rows_affected())).await
    }

    async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError> {
        let mut connection = self.sessions.check_out().await?;
        let query = connection.query(statements::LOAD).bind(address.app.as_str()).bind(address.id.as_bytes());
        let row = self.bind_fence(query, fence).fetch_one(&mut *connection).await;
        let found = row.and_then(|row| {
            let is_readable = read_stored(&row, 2).is_ok();
            Ok((read_timestamp(&row)?, row.try_get::<Option<i64>, _>(2)?.filter(|_| !is_readable)))
        });
        let (now, Some(version)) = connection.read(found).await? else { return Ok(false) };
        let expected = Some(Version::from_number(version.cast_unsigned()));
        let change = Change { expected, record: None, wakes: true };
        Ok(matches!(self.remove(Write { fence, now, address, change }).await?.answer, Written::Done(_)))
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let hosts = self.direct.hosts().clone();
        let subscribe = move || subscribe(hosts.clone(), CHANNEL.to_owned());
        let wake_ups = listen(subscribe, unpack_operation, || WakeUp::All).await;
        wake_ups.map_err(|error| self.sessions.lost(&error, faults::of_read))
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let after = from.map(read_position).transpose()?;
        let mut connection = self.sessions.check_out().await?;
        let rows = connection
            .query(statements::DUMP)
            .bind(after.as_ref().map_or("", |address| address.app.as_str()))
            .bind(after.as_ref().map_or_else(Vec::new, |address| address.id.as_bytes().to_vec()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let found = rows.and_then(|rows| rows.iter().map(read_addressed).collect::<Result<Vec<_>, _>>());
        Ok(page_of(connection.read(found).await?, limit))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        loop {
            let mut connection = self.sessions.check_out().await?;
            let query = self.bind_fence(connection.query(statements::CLEAR), Fence::Filling(epoch)).bind(CLEAR_MAX);
            let row = query.fetch_one(&mut *connection).await;
            let read = row.and_then(|row| Ok((row.try_get::<bool, _>(0)?, row.try_get::<i64, _>(1)?)));
            let (is_filling, removed) = connection.written(read).await?;
            if !is_filling || removed < CLEAR_MAX {
                return Ok(is_filling);
            }
        }
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        let mut connection = self.sessions.check_out().await?;
        let query =
            self.bind_fence(connection.query(statements::COUNT), Fence::Filling(epoch)).bind(copied.cast_signed());
        let row = query.fetch_one(&mut *connection).await;
        let is_filling = row.and_then(|row| row.try_get(0));
        connection.written(is_filling).await
    }
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

/// Four parameters.
fn bind_fence(query: PgQuery<'_>, purpose: Purpose, fence: Fence, knows_timeline: bool) -> PgQuery<'_> {
    let requirement = fence.requirement();
    query
        .bind(purpose.as_str())
        .bind(requirement.map(|(state, _)| state.as_str()))
        .bind(requirement.map(|(_, epoch)| epoch.number().cast_signed()))
        .bind(knows_timeline)
}

/// The second column: whether the engine record says what is required.
fn is_in_force(row: &PgRow) -> Result<bool, sqlx::Error> {
    row.try_get(1)
}

/// Three columns from `index`: the version, the record, and what was posted to it.
fn read_stored(row: &PgRow, index: usize) -> Result<Option<Stored>, sqlx::Error> {
    let Some(version) = row.try_get::<Option<i64>, _>(index)? else { return Ok(None) };
    let version = Version::from_number(version.cast_unsigned());
    Ok(Some(Stored { version, record: read_record(row, index + 1)? }))
}

/// Two columns from `index`.
fn read_record(row: &PgRow, index: usize) -> Result<OperationRecord, sqlx::Error> {
    let (Json(record), posted) = (row.try_get(index)?, row.try_get::<Option<Json<Posted>>, _>(index + 1)?);
    Ok(match posted {
        None => record,
        Some(Json(posted)) => posted.applied_to(record),
    })
}

fn read_listed(row: &PgRow) -> Result<(OperationAddress, Option<OperationRecord>), sqlx::Error> {
    Ok((read_address(row)?, read_record(row, 2).ok()))
}

/// Without a record that cannot be decoded.
fn read_addressed(row: &PgRow) -> Result<(OperationAddress, Option<Stored>), sqlx::Error> {
    Ok((read_address(row)?, read_stored(row, 2).ok().flatten()))
}

/// The first two columns.
fn read_address(row: &PgRow) -> Result<OperationAddress, sqlx::Error> {
    let app = App::parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(OperationAddress { app, id: id_of(row.try_get(1)?)? })
}

fn read_timestamp(row: &PgRow) -> Result<Timestamp, sqlx::Error> {
    let ms: i64 = row.try_get(0)?;
    Ok(Timestamp::from_ms(ms.cast_unsigned()))
}
