//! Where the gate's records live. A store knows no rule: it claims an id that has no record, and replaces a record if its
//! version is still the one that the caller saw.

use std::sync::Arc;

use async_trait::async_trait;
use latchgate_core::gate::{OperationAddress, OperationId, OperationName, OperationRecord, State};
use latchgate_core::key::APP_MAX_BYTES;
use latchgate_core::{App, CLOCK_BOUND_MS, Timestamp};
use tokio::sync::mpsc;

use super::engine_record::{EngineState, Epoch, Purpose};
use super::{RecordStore, StoreError, Version};

/// How many records a store looks at for one page of a listing, matching or not.
pub const EXAMINED_MAX: usize = 2_000;

/// A record as a store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub version: Version,
    pub record: OperationRecord,
}

/// An answer, and the store's clock while it gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    pub now: Timestamp,
    pub answer: T,
}

/// What the store's engine record must say for a call. If it says anything else, the store refuses the call with
/// [`StoreError::EpochOver`] in the same statement or script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Nothing: the version of the record alone decides.
    None,
    /// The store is active in this epoch.
    Active(Epoch),
    /// The store is being filled for this epoch.
    Filling(Epoch),
}

impl Fence {
    pub const fn requirement(self) -> Option<(EngineState, Epoch)> {
        match self {
            Self::None => None,
            Self::Active(epoch) => Some((EngineState::Active, epoch)),
            Self::Filling(epoch) => Some((EngineState::Filling, epoch)),
        }
    }
}

/// One page of the records that a switch copies, and where the next begins; `None` at the end.
pub type DumpPage = super::DumpPage<(OperationAddress, OperationRecord)>;

/// What a write came to. Unless it is `Done`, nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// With the version that a record has now; of no meaning if it was removed.
    Done(Version),
    /// The id that was to be claimed has this record.
    Exists(Box<Stored>),
    /// Another caller has made, changed or removed the record.
    Moved,
    /// The caller's estimate of the store's clock was off by more than the clock bound.
    ClockOff,
}

/// What becomes of a record, if its version is still `expected`.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// `None`: a claim of an id that has no record.
    pub expected: Option<Version>,
    /// `None`: the record is removed.
    pub record: Option<&'a OperationRecord>,
    /// The nodes whose pres wait for the operation are notified.
    pub wakes: bool,
}

/// Which records a listing shows. Vacant ones count as forgotten, unless a double run is suspected.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub operation: Option<OperationName>,
    pub state: Option<State>,
    /// Only those of which a double run is suspected.
    pub suspect: bool,
    /// Only those whose state began at least so long ago. Not a store, but the gate looks at it: no store has a column for it.
    pub older_than_ms: u64,
}

/// One page of a listing. A page may be short, even empty, and still have a `next`: a store looks at a bounded number
/// of records at a time.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Without a record if it cannot be decoded.
    pub records: Vec<(OperationAddress, Option<OperationRecord>)>,
    /// Where the next page begins, in a form of the store's own; None at the end.
    pub next: Option<String>,
}

/// Notifies a node that it should look at an operation for which a pre waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeUp {
    Operation(OperationAddress),
    /// Wake-ups may have been missed: look at every operation that is waited for.
    All,
}

/// The cursor is not one that this store gave.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ListError {
    #[error("the cursor is not one of this listing")]
    InvalidCursor,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A place where operation records live. Callers bound every call by a time-out; a call that is dropped half-way leaves
/// nothing behind but, for a write, an unknown outcome.
#[async_trait]
pub trait GateStore: RecordStore {
    /// Which engine record the store's fences are about.
    fn purpose(&self) -> Purpose {
        Purpose::Gate
    }

    /// The same store with the engine record of durable operations; `None` if the store cannot be a second one.
    fn for_durable(&self) -> Option<Arc<dyn GateStore>> {
        None
    }

    /// Whether what it has acknowledged is on disk.
    fn is_durable(&self) -> bool {
        true
    }

    async fn load(&self, fence: Fence, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError>;

    /// Stores, replaces or removes a record if its version is still the expected one, in one round trip.
    async fn write(&self, write: Write<'_>) -> Result<At<Written>, StoreError>;

    /// Visible records, in an order of the store's own. A record that is there from the first page to the last is listed; in Redis
    /// perhaps on two pages.
    async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError>;

    /// Removes at most `limit` records whose time is over; returns how many. 0 from a store that does so by itself.
    async fn expire(&self, limit: usize) -> Result<u64, StoreError>;

    /// Removes a record that cannot be decoded. Returns whether there was one, which no other caller has changed meanwhile.
    async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError>;

    /// The notifications from now on about operations that end while a pre waits. [`WakeUp::All`] follows every gap.
    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError>;

    /// A page of the records that a switch copies, those of fast operations, in an order of the store's own. A record may come
    /// twice.
    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError>;

    /// Removes the records that a switch copies, while the store is filling for this epoch; returns whether it is.
    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError>;

    /// Notes how many records have been copied, while the store is filling for this epoch; returns whether it is.
    async fn count(&self, epoch: Epoch, copied: u64) -> Result<bool, StoreError>;
}

/// A change, with the fence and the caller's estimate of the store's clock, by which the record was made.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    pub fence: Fence,
    pub now: Timestamp,
    pub address: &'a OperationAddress,
    pub change: Change<'a>,
}

impl<'a> Change<'a> {
    /// A claim of an id that has no record.
    pub fn claim(record: &'a OperationRecord) -> Self {
        Self { expected: None, record: Some(record), wakes: false }
    }
}

impl Filter {
    /// Whether a record is shown at `now`, for stores whose database cannot filter.
    pub fn admits(&self, record: &OperationRecord, now: Timestamp) -> bool {
        record.is_visible()
            && !record.is_gone(now)
            && (!self.suspect || record.is_suspect())
            && self.state.is_none_or(|state| record.state() == state)
            && self.operation.as_ref().is_none_or(|operation| record.operation == *operation)
    }
}

/// A page of a listing.
#[derive(Clone, Copy)]
pub struct Listing<'a> {
    /// `None`: of all apps.
    pub app: Option<&'a App>,
    pub filter: &'a Filter,
    /// Of the page before; `None` for the first.
    pub cursor: Option<&'a str>,
    /// Most records.
    pub limit: usize,
}

impl Listing<'_> {
    /// In a store whose records are in the order of their addresses: behind which app and id the page begins, and its last app.
    ///
    /// # Errors
    /// When the cursor is none, or one of another app.
    pub fn bounds(&self) -> Result<(String, Vec<u8>, String), ListError> {
        let after = self.cursor.map(read_position).transpose().map_err(|_| ListError::InvalidCursor)?;
        let named = self.app.map(|app| app.as_str().to_owned());
        let last = named.clone().unwrap_or_else(|| char::MAX.to_string().repeat(APP_MAX_BYTES));
        match after {
            Some(after) if self.app.is_some_and(|app| *app != after.app) => Err(ListError::InvalidCursor),
            Some(after) => Ok((after.app.as_str().to_owned(), after.id.as_bytes().to_vec(), last)),
            None => Ok((named.unwrap_or_default(), Vec::new(), last)),
        }
    }
}

/// The position behind an address: [`read_position`] reads it.
pub fn position_after(address: &OperationAddress) -> String {
    serde_json::json!([address.app, address.id]).to_string()
}

impl<T> At<T> {
    pub fn new(now: Timestamp, answer: T) -> Self {
        Self { now, answer }
    }
}

/// A page of a walk along the addresses: if it is full, there may be more. A record that cannot be decoded is its address.
pub fn page_of(found: Vec<(OperationAddress, Option<Stored>)>, limit: usize) -> DumpPage {
    let last = found.last().filter(|_| found.len() >= limit);
    let next = last.map(|(address, _)| position_after(address));
    DumpPage::of(found.into_iter().map(|(address, stored)| copied(address, stored.map(|stored| stored.record))), next)
}

/// An entry of a [`DumpPage`].
pub(super) fn copied(
    address: OperationAddress,
    record: Option<OperationRecord>,
) -> Result<(OperationAddress, OperationRecord), String> {
    match record {
        Some(record) => Ok((address, record)),
        None => Err(format!("{} {}", address.app.as_str(), address.id)),
    }
}

/// After which address a page begins.
pub fn read_position(from: &str) -> Result<OperationAddress, StoreError> {
    let (app, id) = serde_json::from_str::<(App, OperationId)>(from).map_err(|_| super::dump::no_position())?;
    Ok(OperationAddress { app, id })
}

/// Whether a caller's estimate of the store's clock is off by more than it may be.
pub fn is_off(store_now: Timestamp, now: Timestamp) -> bool {
    store_now.ms_apart(now) > CLOCK_BOUND_MS
}

/// An id as the SQL stores keep it.
pub(super) fn id_of(bytes: &[u8]) -> Result<OperationId, sqlx::Error> {
    bytes.try_into().map(OperationId::from_bytes).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// A version for a record about to be written: at random and not counted up, because a record may be removed and
/// claimed anew between a load and a replacement.
pub fn fresh_version() -> Version {
    // A signed 64-bit column holds it.
    Version::from_number(rand::random::<u64>() >> 1)
}

/// The latest time from which a record whose end is `goes_at` is gone, seen from `now`: the bound that
/// `OperationRecord::is_gone` keeps.
pub fn gone_before(now: Timestamp) -> Timestamp {
    Timestamp::from_ms(now.as_ms().saturating_sub(CLOCK_BOUND_MS))
}
