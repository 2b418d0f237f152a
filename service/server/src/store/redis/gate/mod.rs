//! Records in Redis 7.0 or later: a claim is one script, every other write one compare-and-set script, and Redis itself drops
//! records whose time is over.

mod dump;
mod layout;
mod list;

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationRecord};
use latchgate_core::{App, CLOCK_BOUND_MS, Timestamp};
use tokio::sync::mpsc;

use self::layout::Layout;
use crate::store::engine_record::{EngineRecord, Epoch, Reading};
use crate::store::gate::{
    At, Change, Claimed, DumpPage, Fence, Filter, GateStore, ListError, Page, Replaced, Stored, WakeUp, fresh_version,
};
use crate::store::redis::checks::check;
use crate::store::redis::link::Link;
use crate::store::redis::record;
use crate::store::redis::scripts::{FILL, Program, program};
use crate::store::redis::wake_ups::subscribe;
use crate::store::redis::{Target, Time, timestamp};
use crate::store::wake_ups::{listen, pack_operation, unpack_operation};
use crate::store::{RecordStore, StoreError};

static CLAIM: LazyLock<Program> = program!("claim.lua");

/// Replaces or removes a record whose version is still the expected one, if the caller's clock is right; keeps the
/// index of suspects; notifies the nodes with waiters. Answers the clock and whether it wrote.
static REPLACE: LazyLock<Program> = program!("replace.lua");

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

/// What the script of replacements needs to know.
#[derive(Default)]
struct Replacement {
    /// What the present value must begin with.
    expected: Vec<u8>,
    /// Empty to remove the record.
    value: String,
    /// 0 for ever.
    keep_ms: u64,
    suspect: bool,
    wakes: bool,
}

pub struct RedisGateStore {
    timeout: Duration,
    allow_eviction: bool,
    link: Link,
    layout: Layout,
}

impl RedisGateStore {
    /// Connects and checks that the server is recent enough and keeps what it is given.
    ///
    /// # Errors
    /// Says what is wrong with the URL or the server.
    pub async fn open(config: &RedisGateConfig) -> anyhow::Result<Self> {
        let store = Self::unchecked(config)?;
        check(&store.link, config.allow_eviction).await?;
        Ok(store)
    }

    async fn run_replace(
        &self,
        fence: Fence,
        now: Timestamp,
        address: &OperationAddress,
        replacement: Replacement,
    ) -> Result<At<Replaced>, StoreError> {
        let Replacement { expected, value, keep_ms, suspect, wakes } = replacement;
        let keys = [self.layout.record(address), self.layout.suspects(&address.app), self.layout.engine()];
        let arguments = [
            now.as_ms().to_string().into_bytes(),
            CLOCK_BOUND_MS.to_string().into_bytes(),
            expected,
            value.into_bytes(),
            keep_ms.to_string().into_bytes(),
            address.id.to_string().into_bytes(),
            u8::from(suspect).to_string().into_bytes(),
            self.layout.wake_ups().into_bytes(),
            if wakes { pack_operation(address).into_bytes() } else { Vec::new() },
            required(fence).into_bytes(),
        ];
        let (store_now, wrote): (u64, Option<bool>) = self.link.write(&REPLACE, &keys, &arguments).await?;
        let replaced = match wrote {
            Some(true) => Replaced::Replaced,
            Some(false) => Replaced::Moved,
            None => Replaced::ClockOff,
        };
        Ok(At::new(Timestamp::from_ms(store_now), replaced))
    }

    /// A store that connects with its first call, and has not been checked.
    ///
    /// # Errors
    /// Says what is wrong with the URL.
    pub fn unchecked(config: &RedisGateConfig) -> anyhow::Result<Self> {
        Ok(Self {
            timeout: config.timeout,
            allow_eviction: config.allow_eviction,
            link: Link::new(Target::parse(&config.url)?, config.timeout),
            layout: Layout::new(&config.prefix),
        })
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
        record::read(&self.link, &self.layout.engine(), self.allow_eviction).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        record::write(&self.link, self.layout.engine(), read, next).await
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
        let keys = [self.layout.engine(), self.layout.record(address), self.layout.suspects(&address.app)];
        let arguments = [
            required(fence),
            now.as_ms().to_string(),
            CLOCK_BOUND_MS.to_string(),
            layout::encode(version, record)?,
            keep_ms(record, now).unwrap_or(0).to_string(),
            address.id.to_string(),
            u8::from(record.is_suspect()).to_string(),
        ];
        let (store_now, claimed, existing): (u64, u8, Option<Vec<u8>>) =
            self.link.write(&CLAIM, &keys, &arguments).await?;
        let claimed = match (claimed, existing) {
            (1, _) => Claimed::Claimed(version),
            (_, Some(existing)) => Claimed::Exists(Box::new(layout::decode(&existing)?)),
            (_, None) => Claimed::ClockOff,
        };
        Ok(At::new(Timestamp::from_ms(store_now), claimed))
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        let mut commands = redis::pipe();
        // The engine record last: an epoch never comes back, so if it is in force then, it was when the operation was read.
        commands.cmd("GET").arg(self.layout.record(address));
        commands.cmd("GETRANGE").arg(self.layout.engine()).arg(record::HEAD).cmd("TIME");
        let ((found, head, time), run_id): ((Option<Vec<u8>>, String, Time), _) = self.link.get_all(&commands).await?;
        if fence.requirement().is_some_and(|required| !record::is_in_force(required, &run_id, &head)) {
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
        let value = change.record.map(|record| layout::encode(fresh_version(), record)).transpose()?;
        let replacement = Replacement {
            expected: layout::encode_version(change.expected).into_bytes(),
            value: value.unwrap_or_default(),
            keep_ms: change.record.and_then(|record| keep_ms(record, now)).unwrap_or(0),
            suspect: change.record.is_some_and(OperationRecord::is_suspect),
            wakes: change.wakes,
        };
        self.run_replace(fence, now, address, replacement).await
    }

    async fn list(&self, app: &App, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page, ListError> {
        if filter.suspect {
            list::suspects(&self.link, &self.layout, app, filter, cursor, limit).await
        } else {
            list::scan(&self.link, &self.layout, app, filter, cursor, limit).await
        }
    }

    async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(self.layout.record(address)).cmd("TIME");
        let ((value, time), _): ((Option<Vec<u8>>, Time), _) = self.link.get_all(&commands).await?;
        let Some(value) = value.filter(|value| layout::decode(value).is_err()) else { return Ok(false) };
        let removal = Replacement { expected: value, suspect: false, wakes: true, ..Replacement::default() };
        Ok(self.run_replace(fence, timestamp(time), address, removal).await?.answer == Replaced::Replaced)
    }

    /// Redis does so by itself.
    async fn expire(&self, _limit: usize) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (target, channel, timeout) = (self.link.target().clone(), self.layout.wake_ups(), self.timeout);
        let subscribe = move || subscribe(target.clone(), channel.clone(), timeout);
        let listening = listen(subscribe, unpack_operation, || WakeUp::All).await;
        listening.map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        dump::dump(&self.link, &self.layout, from, limit).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        dump::clear(&self.link, &self.layout, epoch).await
    }

    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError> {
        // No state is written: the script only counts.
        let keys = [self.layout.engine(), String::new()];
        self.link.write(&FILL, &keys, &[required(Fence::Filling(epoch)), copied.to_string()]).await
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
