//! Records in Redis 7.0 or later: a claim is one script, every other write one compare-and-set script, and Redis itself drops
//! records whose time is over.

mod dump;
mod layout;
mod list;
mod wake_ups;

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationRecord};
use latchgate_core::{App, CLOCK_BOUND_MS, Timestamp};
use redis::{ErrorKind, RedisError, RedisResult, Script};
use tokio::sync::mpsc;

use self::layout::Layout;
use crate::store::engine_record::{EngineRecord, Epoch, Reading};
use crate::store::gate::{
    At, Change, Claimed, DumpPage, Fence, Filter, GateStore, ListError, Page, Replaced, Stored, WakeUp, fresh_version,
};
use crate::store::redis::checks::{check, eviction};
use crate::store::redis::link::{EPOCH_OVER, Link};
use crate::store::redis::record;
use crate::store::redis::scripts::FILL;
use crate::store::redis::wake_ups::listen;
use crate::store::redis::{Target, Time, timestamp};
use crate::store::{RecordStore, StoreError, Version};

static CLAIM: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("claim.lua")));

/// Replaces or removes a record whose version is still the expected one, if the caller's clock is right; keeps the
/// index of suspects; notifies the nodes with waiters. Answers the clock and whether it wrote.
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
    allow_eviction: bool,
    connection: Link,
    layout: Layout,
}

impl RedisGateStore {
    /// Connects and checks that the server is recent enough and keeps what it is given.
    ///
    /// # Errors
    /// Says what is wrong with the URL or the server.
    pub async fn open(config: &RedisGateConfig) -> anyhow::Result<Self> {
        let store = Self::unchecked(config)?;
        check(&store.connection, config.allow_eviction).await?;
        Ok(store)
    }

    /// A store that connects with its first call, and has not been checked.
    ///
    /// # Errors
    /// Says what is wrong with the URL.
    pub fn unchecked(config: &RedisGateConfig) -> anyhow::Result<Self> {
        let connection = Link::new(Target::parse(&config.url)?, config.timeout);
        Ok(Self {
            timeout: config.timeout,
            allow_eviction: config.allow_eviction,
            connection,
            layout: Layout::new(&config.prefix),
        })
    }

    async fn run_replace(
        &self,
        fence: Fence,
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
            .key(self.layout.engine())
            .arg(now.as_ms())
            .arg(CLOCK_BOUND_MS)
            .arg(layout::encode_version(expected))
            .arg(value.unwrap_or_default())
            .arg(keep_ms)
            .arg(address.id.to_string())
            .arg(u8::from(suspect))
            .arg(self.layout.wake_ups())
            .arg(if wakes { wake_ups::payload(address) } else { String::new() })
            .arg(required(fence));
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
impl RecordStore for RedisGateStore {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn may_fail_over(&self) -> bool {
        true
    }

    fn may_forget(&self) -> bool {
        true
    }

    async fn read_record(&self) -> Result<Reading, StoreError> {
        let mut pipeline = redis::pipe();
        // The record first: what it says was so before the clock shows the time.
        pipeline.cmd("GET").arg(self.layout.engine()).cmd("TIME");
        let read: RedisResult<(Option<String>, Time)> = pipeline.query_async(&mut self.connection.clone()).await;
        let (value, time) = read.map_err(|error| read_failed(&error))?;
        let risk = eviction(&self.connection, self.allow_eviction).await;
        Ok(Reading { risk, ..record::decode(value.as_deref(), timestamp(time))? })
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let (program, arguments) = record::replacement(read, next)?;
        let mut script = program.script.prepare_invoke();
        script.key(self.layout.engine()).arg(&arguments);
        script.invoke_async(&mut self.connection.clone()).await.map_err(|error| write_failed(&error))
    }
}

#[async_trait]
impl GateStore for RedisGateStore {
    fn is_durable(&self) -> bool {
        false
    }

    async fn claim(
        &self,
        fence: Fence,
        now: Timestamp,
        address: &OperationAddress,
        record: &OperationRecord,
    ) -> Result<At<Claimed>, StoreError> {
        let version = fresh_version();
        let mut script = CLAIM.prepare_invoke();
        script
            .key(self.layout.engine())
            .key(self.layout.record(address))
            .key(self.layout.suspects(&address.app))
            .arg(required(fence))
            .arg(now.as_ms())
            .arg(CLOCK_BOUND_MS)
            .arg(layout::encode(version, record)?)
            .arg(keep_ms(record, now).unwrap_or(0))
            .arg(address.id.to_string())
            .arg(u8::from(record.is_suspect()));
        let (store_now, claimed, existing): (u64, u8, Option<Vec<u8>>) =
            script.invoke_async(&mut self.connection.clone()).await.map_err(|error| write_failed(&error))?;
        let claimed = match (claimed, existing) {
            (1, _) => Claimed::Claimed(version),
            (_, Some(existing)) => Claimed::Exists(Box::new(layout::decode(&existing)?)),
            (_, None) => Claimed::ClockOff,
        };
        Ok(At::new(Timestamp::from_ms(store_now), claimed))
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let required = required(fence);
        let mut pipeline = redis::pipe();
        // The engine record last: an epoch never comes back, so if it is in force then, it was when the operation was read.
        pipeline.cmd("GET").arg(self.layout.record(address));
        pipeline.cmd("GETRANGE").arg(self.layout.engine()).arg(0).arg(required.len().saturating_sub(1)).cmd("TIME");
        let (found, engine, time): (Option<Vec<u8>>, String, Time) =
            pipeline.query_async(&mut self.connection.clone()).await.map_err(|error| read_failed(&error))?;
        if !required.is_empty() && engine != required {
            return Err(StoreError::EpochOver);
        }
        let stored = found.as_deref().map(layout::decode).transpose()?;
        Ok(At::new(timestamp(time), stored))
    }

    async fn replace(
        &self,
        fence: Fence,
        now: Timestamp,
        address: &OperationAddress,
        change: Change<'_>,
    ) -> Result<At<Replaced>, StoreError> {
        self.run_replace(fence, now, address, change.expected, change.record, change.wakes).await
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

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let target = self.connection.target().clone();
        let listening = listen(target, self.layout.wake_ups(), self.timeout, wake_ups::unpack, || WakeUp::All).await;
        listening.map_err(|error| read_failed(&error))
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        dump::dump(&mut self.connection.clone(), &self.layout, from, limit).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        dump::clear(&mut self.connection.clone(), &self.layout, epoch).await
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        let mut script = FILL.script.prepare_invoke();
        // No state is written: the script only counts.
        script.key(self.layout.engine()).key("").arg(required(Fence::Filling(epoch))).arg(copied);
        script.invoke_async(&mut self.connection.clone()).await.map_err(|error| write_failed(&error))
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        let time = redis::cmd("TIME").query_async(&mut self.connection.clone()).await;
        Ok(timestamp(time.map_err(|error| read_failed(&error))?))
    }
}

/// What the engine record must begin with; empty if it does not matter.
fn required(fence: Fence) -> String {
    fence.requirement().map_or_else(String::new, |(state, epoch)| crate::store::redis::layout::beginning(state, epoch))
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

/// A refused connection carried nothing, and a command that the server answers with an error did nothing. After any other
/// failure, the outcome is unknown.
fn write_failed(error: &RedisError) -> StoreError {
    if error.code() == Some(EPOCH_OVER) {
        return StoreError::EpochOver;
    }
    let did_nothing = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
        || error.is_connection_refusal()
        || error.kind() == ErrorKind::AuthenticationFailed;
    if did_nothing { StoreError::Unavailable(error.to_string()) } else { StoreError::OutcomeUnknown(error.to_string()) }
}
