//! Records in Redis 7.0 or later: every write is one call of a compare-and-set script, and Redis itself drops
//! records whose time is over.

mod dump;
mod layout;
mod list;

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationRecord};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use tokio::sync::mpsc;

use self::layout::Layout;
pub(super) use self::layout::decode;
use crate::store::engine_record::{EngineRecord, Epoch, Reading};
use crate::store::gate::{
    At, Change, DumpPage, Fence, GateStore, ListError, Listing, Page, Stored, WakeUp, Write, Written, fresh_version,
};
use crate::store::redis::checks::check;
use crate::store::redis::link::Link;
use crate::store::redis::record;
use crate::store::redis::scripts::{FILL, Program, program};
use crate::store::redis::wake_ups::subscribe;
use crate::store::redis::{Target, Time, timestamp};
use crate::store::wake_ups::{listen, pack_operation, unpack_operation};
use crate::store::{RecordStore, StoreError};

/// Stores, replaces or removes a record if it is still the expected one and the caller's clock is right; keeps the index of suspects;
/// notifies the nodes with waiters. Answers the clock and whether it wrote.
static WRITE: LazyLock<Program> = program!("write.lua");

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

    /// The present value must begin with `expected`; if that is empty, there must be none.
    async fn put(&self, expected: Vec<u8>, write: Write<'_>) -> Result<At<Written>, StoreError> {
        let Write { fence, now, address, change: Change { record, wakes, .. } } = write;
        let version = fresh_version();
        let keys = [self.layout.engine(), self.layout.record(address), self.layout.suspects(&address.app)];
        let arguments = [
            required(fence).into_bytes(),
            now.as_ms().to_string().into_bytes(),
            CLOCK_BOUND_MS.to_string().into_bytes(),
            expected,
            record.map(|record| layout::encode(version, record)).transpose()?.unwrap_or_default().into_bytes(),
            record.and_then(|record| keep_ms(record, now)).unwrap_or(0).to_string().into_bytes(),
            address.id.to_string().into_bytes(),
            u8::from(record.is_some_and(OperationRecord::is_suspect)).to_string().into_bytes(),
            self.layout.wake_ups().into_bytes(),
            if wakes { pack_operation(address).into_bytes() } else { Vec::new() },
        ];
        let (store_now, is_written, existing): (u64, Option<bool>, Option<Vec<u8>>) =
            self.link.write(&WRITE, &keys, &arguments).await?;
        let written = match (is_written, existing) {
            (Some(true), _) => Written::Done(version),
            (Some(false), Some(existing)) => Written::Exists(Box::new(layout::decode(&existing)?)),
            (Some(false), None) => Written::Moved,
            (None, _) => Written::ClockOff,
        };
        Ok(At::new(Timestamp::from_ms(store_now), written))
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

    async fn write(&self, write: Write<'_>) -> Result<At<Written>, StoreError> {
        let expected = write.change.expected.map_or_else(String::new, layout::encode_version);
        self.put(expected.into_bytes(), write).await
    }

    async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        match listing.app {
            Some(app) if listing.filter.suspect => self.list_suspects(app, listing).await,
            _ => self.list_all(listing).await,
        }
    }

    async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(self.layout.record(address)).cmd("TIME");
        let ((value, time), _): ((Option<Vec<u8>>, Time), _) = self.link.get_all(&commands).await?;
        let Some(value) = value.filter(|value| layout::decode(value).is_err()) else { return Ok(false) };
        let change = Change { expected: None, record: None, wakes: true };
        let removed = self.put(value, Write { fence, now: timestamp(time), address, change }).await?;
        Ok(matches!(removed.answer, Written::Done(_)))
    }

    /// Redis does so by itself.
    async fn expire(&self, _limit: usize) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (link, channel, timeout) = (self.link.clone(), self.layout.wake_ups(), self.timeout);
        let subscribe = move || subscribe(link.clone(), channel.clone(), timeout);
        let listening = listen(subscribe, unpack_operation, || WakeUp::All).await;
        listening.map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        self.dump_page(from, limit).await
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        self.clear_all(epoch).await
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
