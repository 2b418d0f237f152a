//! Stores of states. A store does not know the rules of locks: it loads states with their versions, and commits a change if
//! the version is still the one that the caller loaded.

pub mod documents;
mod dump;
pub mod engine_record;
mod events;
pub mod operation_rows;
mod posted;
pub mod postgres;
mod process_clock;
pub mod redis;
mod row;
pub mod sqlite;
pub mod store_clock;
mod wake_ups;

use async_trait::async_trait;
use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::{Event, LockState, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::mpsc;

pub use self::documents::DocumentStore;
pub use self::dump::{CopiedState, DumpPage, page_of, position_after, read_position};
pub use self::engine_record::{EngineState, Epoch, PoolUse, RecordStore};
pub use self::events::{EventCursor, EventQuery, InvalidEventCursor, LoggedEvent, Watched};
pub use self::operation_rows::{Filter, Listing, OperationPage};
pub use self::process_clock::machine_time;
pub use self::row::{Filters, RowKind, RowState};

/// A state and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored<S = LockState> {
    pub version: Version,
    pub state: S,
}

/// Identifies the commit that wrote a state. Versions of a key never repeat, even if its row is removed and created again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

/// How many versions a key can use per ms before a row that is created again could repeat one.
const VERSIONS_PER_MS: u64 = 1_024;

impl Version {
    /// There is no row.
    pub const ABSENT: Self = Self(0);

    /// A random version, for stores that may lose a commit in a fail-over: a node with the lost state in memory must not
    /// mistake a later commit for it.
    pub(crate) fn fresh() -> Self {
        Self(random_number())
    }

    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// The version of the commit that replaces this one at `now`.
    pub const fn next(self, now: Timestamp) -> Self {
        if self.0 == 0 { Self(now.as_ms() * VERSIONS_PER_MS) } else { Self(self.0 + 1) }
    }
}

/// A state to be written, if the key's version is still `expected`.
#[derive(Clone, Debug)]
pub struct Change<S = LockState> {
    pub address: Address,
    pub expected: Version,
    pub state: S,
    /// The events of the change, written in the same commit and in this order.
    pub events: Vec<Event>,
    /// When the passing of time next ends a lease or does something else that makes an event. The row is not removed
    /// before a commit has handled that and written the state without a `notice_at`.
    pub notice_at: Option<Timestamp>,
    /// After this time the row may be removed.
    pub keep_until: Timestamp,
    /// The epoch in which the change was evaluated. It is the same for all changes of a commit.
    pub epoch: Epoch,
}

#[derive(Clone, Debug)]
pub struct Loaded<S = LockState> {
    /// One state for each address, in the order of the request; the default if there is no row.
    pub states: Vec<Stored<S>>,
    /// The store's clock during the call.
    pub now: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Committed {
    /// The store's clock during the commit.
    pub now: Timestamp,
    pub result: CommitResult,
    /// The indexes of changes that were not made because another session keeps the key's row locked, or because the server refuses the
    /// value. The other changes of the batch did not wait for them.
    pub busy: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// The new version of each change, in the order of the request; `None` if another commit had changed the key, so that
    /// the change was not made.
    Checked(Vec<Option<Version>>),
    /// The caller's estimate of the store's clock was off by more than the clock bound. Nothing was written.
    ClockOff,
}

impl CommitResult {
    /// The result of the same commit after a rollback.
    pub(crate) fn undone(self) -> Self {
        match self {
            Self::Checked(versions) => Self::Checked(vec![None; versions.len()]),
            Self::ClockOff => Self::ClockOff,
        }
    }

    /// Whether every change was made.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self, Self::Checked(versions) if versions.iter().all(Option::is_some))
    }
}

/// Which changes of a batch are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Each change whose expected version is the current one.
    Each,
    /// All changes; or none, if the expected version of one of them is not the current one. Then every version in the result is
    /// `None`.
    AllOrNone,
}

/// The store failed. A lost race is not an error: see [`CommitResult`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// A commit may or may not have happened.
    #[error("the outcome of a commit is unknown: {0}")]
    OutcomeUnknown(String),
    /// The store answers, but others hold what the call needs, or were faster each time. Nothing was written.
    #[error("too many contend: {0}")]
    Contended(&'static str),
    /// The store answers, but what it has for these keys cannot be decoded. Nothing was written.
    #[error("the store has a state that cannot be read: {reason}")]
    Unreadable {
        /// Empty for a record of the gate, whose caller knows it.
        keys: Vec<Address>,
        reason: String,
    },
    /// The store is not active, or is in another epoch than the call. Nothing was written.
    #[error("this epoch is over")]
    EpochOver,
}

impl StoreError {
    /// The reason, without the kind of the error.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Unavailable(reason) | Self::OutcomeUnknown(reason) => reason.clone(),
            other => other.to_string(),
        }
    }

    /// The same error for a call that only reads: it has no unknown outcome.
    pub(crate) fn of_reading(self) -> Self {
        match self {
            Self::OutcomeUnknown(reason) => Self::Unavailable(reason),
            other => other,
        }
    }
}

/// The states of a load.
///
/// # Errors
/// `Unreadable` with all keys whose state cannot be decoded. A load of the other keys succeeds.
pub(crate) fn all_readable<S>(
    addresses: &[Address],
    states: Vec<Result<Stored<S>, UnreadableState>>,
) -> Result<Vec<Stored<S>>, StoreError> {
    let mut readable = Vec::with_capacity(states.len());
    let (mut keys, mut reason) = (Vec::new(), String::new());
    for (address, state) in addresses.iter().zip(states) {
        match state {
            Ok(state) => readable.push(state),
            Err(UnreadableState(why)) => {
                keys.push(address.clone());
                reason = why;
            }
        }
    }
    if keys.is_empty() { Ok(readable) } else { Err(StoreError::Unreadable { keys, reason }) }
}

/// Why a state cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableState(pub String);

impl UnreadableState {
    pub(crate) fn of(self, address: &Address) -> StoreError {
        StoreError::Unreadable { keys: vec![address.clone()], reason: self.0 }
    }
}

/// The address of a row; `None` if its names are none of a lock, so that another program has written it.
pub(crate) fn address_of(app: &str, key: &str) -> Option<Address> {
    Some(Address { app: App::parse(app).ok()?, key: Key::parse(key).ok()? })
}

/// Decodes a state that is stored as JSON, and what belongs to it.
pub(crate) fn decode_state<S: RowState>(json: &[u8], payload: Option<&[u8]>) -> Result<S, UnreadableState> {
    S::read(json, payload).map_err(|error| UnreadableState(error.to_string()))
}

/// Notifies a node that it should look at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeUp {
    Key(Address),
    /// Wake-ups may have been lost, so the node should look at every key that has waiters.
    All,
}

/// One page of a listing, in key order. A key whose state cannot be decoded has none.
pub type Page = Vec<(Key, Option<LockState>)>;

/// The result of one step of the collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub removed: u64,
    /// The highest token of the states that stay only because tokens of this epoch may be lower.
    pub token_kept: Option<u64>,
    /// The addresses of rows whose `notice_at` has passed.
    pub due: Vec<Address>,
    /// How many rows were passed over, because their names are none of a lock.
    pub unnamed: u64,
    /// The position of the next step; `None` at the end.
    pub next: Option<String>,
}

/// The rows of one kind in a store. Callers put a time limit on every call. Dropping a call half-way is safe; the outcome of a commit
/// that was dropped is unknown.
#[async_trait]
pub trait Rows<S: RowState>: Send + Sync + 'static {
    /// Loads states in `epoch`.
    ///
    /// # Errors
    /// `EpochOver` if the store is not active in this epoch; `Unreadable` if a state cannot be decoded.
    async fn load(&self, epoch: Epoch, addresses: &[Address]) -> Result<Loaded<S>, StoreError>;

    /// Writes all changes whose expected version is the current one, in one commit. `now` is the caller's estimate of the
    /// store's clock. No two changes may have the same address.
    ///
    /// # Errors
    /// `EpochOver` if the store is not active in the epoch of the changes.
    async fn commit(&self, now: Timestamp, changes: &[Change<S>]) -> Result<Committed, StoreError>;

    /// Loads and locks states: no other commit can change them until the returned value is committed, given up or dropped.
    async fn lock(
        &self,
        epoch: Epoch,
        addresses: &[Address],
    ) -> Result<(Loaded<S>, Box<dyn LockedStates<S>>), StoreError>;

    /// Looks at up to `limit` rows from this position on. Removes those whose `keep_until` has passed and whose token is lower than all new
    /// tokens of `epoch`, and returns those that are due. A state that cannot be decoded stays.
    ///
    /// # Errors
    /// `EpochOver` if the store is not active in this epoch.
    async fn collect(&self, epoch: Epoch, from: Option<&str>, limit: usize) -> Result<Collected, StoreError>;

    /// One page of about `limit` (not 0) states of all apps, in the store's own order. A page may be short or empty without
    /// being the last. While nothing is written, a walk from `None` to the end returns each state at least once. The caller
    /// may repeat a page that failed.
    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<CopiedState<S>>, StoreError>;

    /// Writes states, replacing existing ones, and records that `copied` states have been written in total. Returns `false`
    /// and does nothing unless the store is filling for `epoch`.
    async fn fill(&self, epoch: Epoch, states: &[CopiedState<S>], copied: u64) -> Result<bool, StoreError>;
}

/// A store: rows of each kind, the events of locks, the engine record, documents and notifications.
#[async_trait]
pub trait Store: RecordStore + DocumentStore + Rows<LockState> + Rows<Option<OperationRecord>> {
    /// Whether a crash may lose acknowledged commits.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Whether only one node at a time can have it open.
    fn is_of_one_node(&self) -> bool {
        false
    }

    /// Returns up to `limit` locks of `app`, in key order, whose keys begin with `prefix` and come after `after`.
    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError>;

    /// A page of operations. A record that is there from the first page to the last is listed.
    async fn list_operations(&self, listing: &Listing) -> Result<OperationPage, StoreError>;

    /// Removes a record that cannot be decoded. Returns whether there was one.
    ///
    /// # Errors
    /// `EpochOver` if the store is not active in this epoch.
    async fn discard(&self, epoch: Epoch, address: &Address) -> Result<bool, StoreError>;

    /// The first app after this text, in the order of their bytes, that has locks.
    async fn app_after(&self, after: &str) -> Result<Option<String>, StoreError>;

    /// Writes events without a change of a state, for example the end of a wait.
    ///
    /// # Errors
    /// `EpochOver` if the store is not active in this epoch.
    async fn log(&self, epoch: Epoch, events: &[(Address, Event)]) -> Result<(), StoreError>;

    /// Looks at up to `limit` events after `after`, in the order of their commits. Returns those that are `watched`, and the position
    /// of the next call: `after` itself if there were no events, and behind all that were looked at, even if none is
    /// watched. Events of one key are in the order in which they happened. No event ever appears before a returned position. Of a store
    /// that is retired, all events can be read.
    async fn events(&self, query: EventQuery<'_>) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError>;

    /// The position for a reader of future events. A few events from just before the call may come after it.
    async fn last_event(&self) -> Result<EventCursor, StoreError>;

    /// The key's events, newest first: at most `limit` before `before`.
    async fn history(&self, key: &Address, before: EventCursor, limit: usize) -> Result<Vec<LoggedEvent>, StoreError>;

    /// Deletes at most `limit` of the oldest events: those before `older_than`. Stops at the first younger event. Returns how many
    /// it has deleted.
    async fn trim(&self, older_than: Timestamp, limit: usize) -> Result<u64, StoreError>;

    /// Notifies nodes that they should look at keys. Notifications may be lost.
    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError>;

    /// The wake-ups for `node` from now on. [`WakeUp::All`] follows every interruption.
    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError>;

    /// Removes all rows and events. Returns `false` and does nothing unless the store is filling for `epoch` and no state is copied
    /// to it yet.
    async fn clear(&self, epoch: Epoch) -> Result<bool, StoreError>;

    /// Finds out whether a lock can be granted: commits a little, as a grant would. Returns the store's clock.
    ///
    /// # Errors
    /// Says why no lock can be granted: the store does not answer, or refuses to write.
    async fn probe(&self) -> Result<Timestamp, StoreError>;
}

/// Locked states: no other commit can change them.
#[async_trait]
pub trait LockedStates<S = LockState>: Send {
    /// As [`Rows::commit`]. A key without a row could not be locked, so its change may lose a race.
    async fn commit(
        self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError>;

    /// Unlocks the states and writes nothing. Dropping them has the same effect, but may close a connection.
    async fn give_up(self: Box<Self>) -> Result<(), StoreError>;
}

/// How many callers, in addition to the committer, may have locked states at once.
pub(crate) const LOCKED_AT_ONCE: usize = 8;

/// How many keys the committer serves apart from the others at once, with their states locked: half of them for keys that other
/// sessions are known to keep locked.
pub(crate) const APART_AT_ONCE: usize = 4;
/// How many batches each committer has under way at once.
pub(crate) const BATCHES_AT_ONCE: usize = 2;

/// A random number that is not zero and is exact in JSON.
pub(crate) fn random_number() -> u64 {
    rand::random_range(1..1 << 53)
}

/// How many wake-ups may be queued for one node. More are lost.
pub const WAKE_UPS_MAX: usize = 10_000;

/// The first text, in byte order, after all keys that begin with `prefix`.
pub(crate) fn end_of_prefix(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return end;
        }
    }
    // It is longer than any key, so it comes after all of them.
    char::MAX.to_string().repeat(latchgate_core::key::KEY_MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::end_of_prefix;

    #[test]
    fn keys_with_a_prefix_come_before_its_end_and_other_keys_do_not() {
        for (prefix, end) in [("a", "b"), ("a/", "a0"), ("a\u{d7ff}", "a\u{e000}"), ("a\u{10ffff}", "b")] {
            assert_eq!(end_of_prefix(prefix), end);
            assert!(format!("{prefix}\u{10ffff}\u{10ffff}").as_str() < end);
        }
        assert!("\u{10ffff}\u{10ffff}" < end_of_prefix("").as_str());
        assert!("\u{10ffff}\u{10ffff}" < end_of_prefix("\u{10ffff}").as_str());
    }
}
