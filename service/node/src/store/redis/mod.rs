//! States in Redis 7.0 or later: one string per lock, changed by one compare-and-set script. The server is a single one, or the
//! master of a service of Sentinels. If it crashes, acknowledged commits may be lost.

pub(in crate::store) mod checks;
mod commit;
mod documents;
mod dump;
mod events;
#[doc(hidden)]
pub mod fuzz_targets;
mod info;
mod layout;
pub(in crate::store) mod link;
mod listing;
pub(in crate::store) mod record;
pub(in crate::store) mod scripts;
mod url;
pub(in crate::store) mod wake_ups;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::lock::{Event, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use redis::Cmd;
use tokio::sync::mpsc;

use self::commit::Locker;
use self::layout::{Layout, decode};
pub(in crate::store) use self::layout::{Time, timestamp};
use self::link::Link;
use self::scripts::Entry;
pub(in crate::store) use self::url::Target;
pub use self::url::is_redis;
use super::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use super::wake_ups::{listen, pack, unpack};
use super::{
    Change, Collected, Committed, CopiedState, DumpPage, EventCursor, EventQuery, Listing, Loaded, LockedStates,
    LoggedEvent, OperationPage, Page, RecordStore, RowKind, RowState, Rows, Rule, Store, StoreError, WakeUp,
    all_readable,
};

/// Settings of a Redis store.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `redis://`, `rediss://` or `redis+sentinel://`.
    pub url: String,
    /// The beginning of all its keys. Keys of other programs must not begin with it.
    pub prefix: String,
    /// Longest wait for a connection, and for an answer.
    pub timeout: Duration,
    /// How long the history of a key is kept after its last event.
    pub history_retention: Duration,
    /// Accept a server that evicts locks when its memory is full.
    pub allow_eviction: bool,
    /// Grant at once, without a hold-off, after the server has lost its data.
    pub no_hold_off: bool,
}

/// Clones share the connections.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<StoreInner>,
}

struct StoreInner {
    link: Link,
    /// For listings, histories and events.
    reads: Link,
    layout: Layout,
    timeout: Duration,
    history_ms: u64,
    allow_eviction: bool,
}

impl RedisStore {
    /// Connects, and checks that the server is recent enough and does not evict keys.
    ///
    /// # Errors
    /// The error names the fault of the URL or of the server.
    pub async fn open(config: &RedisConfig) -> anyhow::Result<Self> {
        let link = Link::new(Target::parse(&config.url)?, config.timeout);
        checks::check(&link, config.allow_eviction).await?;
        let history_ms = u64::try_from(config.history_retention.as_millis()).unwrap_or(u64::MAX);
        let shared = StoreInner {
            reads: link.beside(),
            link,
            layout: Layout::new(&config.prefix),
            timeout: config.timeout,
            history_ms: history_ms.clamp(1, layout::KEEP_UNTIL_MAX),
            allow_eviction: config.allow_eviction,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// The values of states; `None` if there is none.
type Values = Vec<Option<Vec<u8>>>;

impl StoreInner {
    async fn load<S: RowState>(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        if addresses.is_empty() {
            return loaded(&[], &[], self.clock().await?);
        }
        let mut both = redis::pipe();
        // The record is read last. An epoch never returns: if it is in force then, it was in force when the states were read.
        both.add_command(self.get_all(S::KIND, addresses));
        both.cmd("GETRANGE").arg(self.layout.engine()).arg(record::HEAD).cmd("TIME");
        let ((values, head, time), run_id): ((Values, String, Time), _) = self.link.get_all(&both).await?;
        if !record::is_in_force((EngineState::Active, epoch), &run_id, &head) {
            return Err(StoreError::EpochOver);
        }
        loaded(addresses, &values, timestamp(time))
    }

    async fn values(&self, kind: RowKind, addresses: &[Address]) -> Result<Values, StoreError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        self.reads.get(&self.get_all(kind, addresses)).await
    }

    fn get_all(&self, kind: RowKind, addresses: &[Address]) -> Cmd {
        let mut get = redis::cmd("MGET");
        for address in addresses {
            get.arg(self.layout.state(kind, address));
        }
        get
    }
}

fn loaded<S: RowState>(
    addresses: &[Address],
    values: &[Option<Vec<u8>>],
    now: Timestamp,
) -> Result<Loaded<S>, StoreError> {
    let states = values.iter().map(|value| decode(value.as_deref())).collect();
    Ok(Loaded { states: all_readable(addresses, states)?, now })
}

#[async_trait]
impl RecordStore for RedisStore {
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
        record::read(&self.shared.link, &self.shared.layout.engine(), self.shared.allow_eviction).await
    }

    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        record::write(&self.shared.link, self.shared.layout.engine(), read, next).await
    }
}

#[async_trait]
impl<S: RowState> Rows<S> for RedisStore {
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError> {
        self.shared.load(epoch, addresses).await
    }

    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError> {
        commit::write(&self.shared, now, changes, Rule::Each, Locker::default()).await
    }

    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError> {
        let (loaded, locked) = commit::lock(&self.shared, epoch, addresses).await?;
        Ok((loaded, Box::new(locked)))
    }

    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError> {
        listing::collect::<S>(&self.shared, epoch, from, limit).await
    }

    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError> {
        dump::dump(&self.shared, from, limit).await
    }

    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError> {
        dump::fill(&self.shared, epoch, states, copied).await
    }
}

#[async_trait]
impl Store for RedisStore {
    fn is_volatile(&self) -> bool {
        true
    }

    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError> {
        listing::list(&self.shared, app, prefix, after, limit).await
    }

    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError> {
        listing::list_operations(&self.shared, listing).await
    }

    async fn discard(&self, epoch: Epoch, address: &Address) -> Result<bool, StoreError> {
        listing::discard(&self.shared, epoch, address).await
    }

    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError> {
        listing::app_after(&self.shared, after).await
    }

    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError> {
        let entries: Vec<Entry<'_>> = events.iter().map(|(address, event)| Entry::of_event(address, event)).collect();
        commit::put(&self.shared, RowKind::Lock, None, Some(epoch), &entries, Rule::Each, Locker::default()).await?;
        Ok(())
    }

    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError> {
        events::page(&self.shared, query).await
    }

    async fn last_event(&self) -> Result<EventCursor, StoreError> {
        events::last(&self.shared).await
    }

    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError> {
        events::history(&self.shared, key, before, limit).await
    }

    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError> {
        events::trim(&self.shared, older_than, limit).await
    }

    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError> {
        let publish = |(node, message): (&NodeId, String)| {
            let channel = self.shared.layout.channel(node);
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(&channel).arg(message);
            publish
        };
        let messages: Vec<Cmd> = pack(wake_ups).into_iter().map(publish).collect();
        self.shared.link.send_each(&messages).await.map_err(|failed| failed.of_read())?;
        Ok(())
    }

    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (link, channel) = (self.shared.link.clone(), self.shared.layout.channel(node));
        let timeout = self.shared.timeout;
        let subscribe = move || wake_ups::subscribe(link.clone(), channel.clone(), timeout);
        let wake_ups = listen(subscribe, unpack, || WakeUp::All).await;
        wake_ups.map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError> {
        dump::clear(&self.shared, epoch).await
    }

    async fn probe(&self) -> Result<Timestamp, StoreError> {
        commit::probe(&self.shared).await
    }
}
