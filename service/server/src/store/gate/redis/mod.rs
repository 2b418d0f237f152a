//! Records in Redis 7.0 or later: a claim is one `SET NX GET PX`, every other write one compare-and-set script, and
//! Redis itself drops what is over.

mod checks;
mod layout;
mod list;
mod wake_ups;

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationRecord};
use latchgate_core::{App, CLOCK_BOUND_MS, Timestamp};
use redis::{ErrorKind, RedisError, Script};
use tokio::sync::mpsc;

use self::layout::Layout;
use super::{At, Change, Claimed, Filter, GateStore, ListError, Page, Replaced, Stored, WakeUp, fresh_version, is_off};
use crate::store::redis::link::{Link, Target};
use crate::store::redis::scripts::BOARD;
use crate::store::redis::wake_ups::listen;
use crate::store::redis::{Place, Time, decode_board, encode_board, timestamp};
use crate::store::{Board, StoreError, Version};

/// Replaces or removes a record whose version is still the expected one, if the caller's clock is right; keeps the
/// index of suspects; tells whoever waits. Answers the clock and whether it wrote.
static REPLACE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("replace.lua")));

/// What the store needs to know.
#[derive(Clone, Debug)]
pub struct RedisGateConfig {
    /// `redis://` or `redis+sentinel://`.
    pub url: String,
    /// What its keys begin with; no other program's may.
    pub prefix: String,
    /// Longest wait for a connection, and for an answer.
    pub timeout: Duration,
    /// Start on a server that drops records when its memory is full, and so lets operations run twice.
    pub allow_eviction: bool,
}

pub struct RedisGateStore {
    timeout: Duration,
    connection: Link,
    layout: Layout,
}

impl RedisGateStore {
    /// Connects and checks that the server is recent enough and keeps what it is given.
    ///
    /// # Errors
    /// Says what is wrong with the URL or the server.
    pub async fn open(config: &RedisGateConfig) -> anyhow::Result<Self> {
        let target = Target::of(Place::parse(&config.url)?).context("the gate needs a single Redis")?;
        // Who asks while Redis is down is told so, and makes the next attempt to connect.
        let connection = Link::new(target, config.timeout);
        checks::check(&connection, config.allow_eviction).await?;
        Ok(Self { timeout: config.timeout, connection, layout: Layout::new(&config.prefix) })
    }

    async fn run_replace(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        expected: Version,
        record: Option<&OperationRecord>,
        wakes: bool,
    ) -> Result<At<Replaced>, StoreError> {
        let value = record.map(|record| layout::encode(fresh_version(), record)).transpose()?;
        let suspect = record.is_some_and(OperationRecord::is_suspect);
        let keep_ms = record.and_then(|record| keep_ms(record, now)).unwrap_or(0);
        let mut script = REPLACE.prepare_invoke();
        script
            .key(self.layout.record(address))
            .key(self.layout.suspects(&address.app))
            .arg(now.as_ms())
            .arg(CLOCK_BOUND_MS)
            .arg(layout::encode_version(expected))
            .arg(value.unwrap_or_default())
            .arg(keep_ms)
            .arg(address.id.to_string())
            .arg(u8::from(suspect))
            .arg(self.layout.wake_ups())
            .arg(if wakes { wake_ups::payload(address) } else { String::new() });
        let (store_now, wrote): (u64, Option<bool>) =
            script.invoke_async(&mut self.connection.clone()).await.map_err(|error| write_failed(&error))?;
        let store_now = Timestamp::from_ms(store_now);
        let replaced = match wrote {
            Some(true) => Replaced::Replaced,
            Some(false) => Replaced::Moved,
            None => Replaced::ClockOff,
        };
        Ok(At::new(store_now, replaced))
    }
}

#[async_trait]
impl GateStore for RedisGateStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn is_durable(&self) -> bool {
        false
    }

    /// One round trip: `SET` cannot look at the clock, so `TIME` travels with it, and a claim that turns out to have
    /// been made by a wrong clock is taken back before anybody is told of it.
    async fn claim(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        record: &OperationRecord,
    ) -> Result<At<Claimed>, StoreError> {
        let version = fresh_version();
        let mut set = redis::cmd("SET");
        set.arg(self.layout.record(address)).arg(layout::encode(version, record)?).arg("NX").arg("GET");
        if let Some(keep_ms) = keep_ms(record, now) {
            set.arg("PX").arg(keep_ms);
        }
        let mut pipeline = redis::pipe();
        pipeline.add_command(set);
        if record.is_suspect() {
            // A carried record may come with its suspicion. An entry too many does no harm: a listing looks at the record.
            pipeline.cmd("ZADD").arg(self.layout.suspects(&address.app)).arg(0).arg(address.id.to_string()).ignore();
        }
        pipeline.cmd("TIME");
        let (existing, time): (Option<Vec<u8>>, Time) =
            pipeline.query_async(&mut self.connection.clone()).await.map_err(|error| write_failed(&error))?;
        let store_now = timestamp(time);
        if let Some(existing) = existing {
            return Ok(At::new(store_now, Claimed::Exists(Box::new(layout::decode(&existing)?))));
        }
        if !is_off(store_now, now) {
            return Ok(At::new(store_now, Claimed::Claimed));
        }
        match self.run_replace(store_now, address, version, None, false).await? {
            At { now, answer: Replaced::Replaced } => Ok(At::new(now, Claimed::ClockOff)),
            // Not taken back, but not told to anybody either: its lease passes.
            At { .. } => Err(StoreError::OutcomeUnknown("a claim by a wrong clock was not taken back".to_owned())),
        }
    }

    async fn load(&self, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("GET").arg(self.layout.record(address)).cmd("TIME");
        let (found, time): (Option<Vec<u8>>, Time) =
            pipeline.query_async(&mut self.connection.clone()).await.map_err(|error| read_failed(&error))?;
        let stored = found.as_deref().map(layout::decode).transpose()?;
        Ok(At::new(timestamp(time), stored))
    }

    async fn replace(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        change: Change<'_>,
    ) -> Result<At<Replaced>, StoreError> {
        self.run_replace(now, address, change.expected, change.record, change.wakes).await
    }

    async fn list(&self, app: &App, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page, ListError> {
        let mut connection = self.connection.clone();
        if filter.suspect {
            list::suspects(&mut connection, &self.layout, app, filter, cursor, limit).await
        } else {
            list::scan(&mut connection, &self.layout, app, filter, cursor, limit).await
        }
    }

    /// Redis does so by itself.
    async fn expire(&self, _limit: usize) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// The board, and then the clock.
    async fn board(&self) -> Result<Board, StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("GET").arg(self.layout.board()).cmd("TIME");
        let (found, time): (Option<String>, Time) =
            pipeline.query_async(&mut self.connection.clone()).await.map_err(|error| read_failed(&error))?;
        let (version, text) = found.as_deref().map(decode_board).transpose()?.unwrap_or_default();
        Ok(Board { version, text: text.to_owned(), now: timestamp(time) })
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        let version = Version::fresh().number();
        let mut script = BOARD.script.prepare_invoke();
        script.key(self.layout.board()).arg(expected).arg(encode_board(version, text));
        let is_made: bool =
            script.invoke_async(&mut self.connection.clone()).await.map_err(|error| write_failed(&error))?;
        Ok(is_made.then_some(version))
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let target = self.connection.target().clone();
        let server = move || std::future::ready(Ok(target.clone()));
        let channel = self.layout.wake_ups();
        let listening = listen(server, channel, self.timeout, wake_ups::unpack, || WakeUp::All).await;
        listening.map_err(|error| read_failed(&error))
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let time = redis::cmd("TIME").query_async(&mut self.connection.clone()).await;
        Ok(timestamp(time.map_err(|error| read_failed(&error))?))
    }
}

/// How long Redis keeps a record, in ms from `now`; None: for ever. Later by the clock bound than the record's end, as
/// `OperationRecord::is_gone` has it, and at least 1, which is the least that `PX` takes.
fn keep_ms(record: &OperationRecord, now: Timestamp) -> Option<u64> {
    // Beyond this `PX` overflows; 100 000 years are for ever.
    const KEEP_MS_MAX: u64 = 3_155_760_000_000_000;
    let keep_ms = record.goes_at()?.plus_ms(CLOCK_BOUND_MS).ms_since(now).max(1);
    (keep_ms < KEEP_MS_MAX).then_some(keep_ms)
}

fn read_failed(error: &RedisError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

/// A refused connection carried nothing, and a command that the server answers with an error did nothing. Of any other
/// failure nobody knows.
fn write_failed(error: &RedisError) -> StoreError {
    let did_nothing = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
        || error.is_connection_refusal()
        || error.kind() == ErrorKind::AuthenticationFailed;
    if did_nothing { StoreError::Unavailable(error.to_string()) } else { StoreError::OutcomeUnknown(error.to_string()) }
}
