//! Where states live. A store knows nothing of locks: it loads states with a version and commits changes under
//! "the version is still the one I saw".

mod board;
mod clock;
mod connections;
mod dump;
pub mod engines;
mod events;
pub mod gate;
pub mod memory;
pub mod postgres;
pub mod redis;
pub mod sqlite;
mod term;

use async_trait::async_trait;
use latchgate_core::lock::{Event, LockState, NodeId};
use latchgate_core::{Address, App, Key, Timestamp};
use tokio::sync::mpsc;

pub use self::board::Board;
pub use self::dump::DumpPage;
pub use self::events::{EventCursor, InvalidEventCursor, LoggedEvent, Scope};
pub use self::term::{Term, TermId};

/// A state as a store holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub version: Version,
    pub state: LockState,
}

/// Which commit wrote a state. Versions of a key never repeat, even when its row is collected and made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

/// Room for this many new rows per ms, should a key's row be collected and made anew.
const VERSIONS_PER_MS: u64 = 1_024;

impl Version {
    /// There is no row.
    pub const ABSENT: Self = Self(0);

    /// Of a commit to a store that may lose commits in a fail-over and make others in their place: a node that has a state
    /// of a lost one in memory must not take theirs for it.
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
    pub(crate) const fn next(self, now: Timestamp) -> Self {
        if self.0 == 0 { Self(now.as_ms() * VERSIONS_PER_MS) } else { Self(self.0 + 1) }
    }
}

/// A state to be written, if the key's version is still `expected`.
#[derive(Clone, Debug)]
pub struct Change {
    pub address: Address,
    pub expected: Version,
    pub state: LockState,
    /// What is told of the change: written in the same commit, in this order.
    pub events: Vec<Event>,
    /// When time alone next does something to a lease that somebody may want to hear of. Until that is done, and written
    /// without a notice, the row stays.
    pub notice_at: Option<Timestamp>,
    /// After this the row may be collected.
    pub keep_until: Timestamp,
    /// The term that it was judged in: the same for all changes of a commit.
    pub term: TermId,
}

#[derive(Clone, Debug)]
pub struct Loaded {
    /// One for each address, in the order asked; the default where there is no row.
    pub states: Vec<Stored>,
    /// The store's clock while it answered.
    pub now: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Committed {
    /// The store's clock while it committed.
    pub now: Timestamp,
    pub result: CommitResult,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// The new version of each change, in the order given; `None` where somebody else had changed the key: that
    /// change was not made.
    Checked(Vec<Option<Version>>),
    /// The committer's estimate of the store's clock was off by more than the clock bound: nothing was written.
    ClockOff,
    /// The store is in another term than the changes were judged in: nothing was written. [`LockStore::term`] tells which.
    TermOver,
}

impl CommitResult {
    /// The same after it has been undone.
    pub(crate) fn undone(self) -> Self {
        match self {
            Self::Checked(versions) => Self::Checked(vec![None; versions.len()]),
            Self::ClockOff => Self::ClockOff,
            Self::TermOver => Self::TermOver,
        }
    }

    /// Whether every change was made.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self, Self::Checked(versions) if versions.iter().all(Option::is_some))
    }
}

/// Which changes of a batch are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Each whose version holds.
    Each,
    AllOrNone,
}

/// The store broke. Contention is not an error: see [`CommitResult`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// A commit may or may not have happened.
    #[error("the outcome of a commit is unknown: {0}")]
    OutcomeUnknown(String),
    /// The store answers, but others were faster every time. Nothing was written.
    #[error("too many contend: {0}")]
    Contended(&'static str),
}

impl StoreError {
    /// The same of a call that only reads: there, nothing is unknown.
    pub(crate) fn of_reading(self) -> Self {
        match self {
            Self::OutcomeUnknown(reason) => Self::Unavailable(reason),
            other => other,
        }
    }
}

/// Tells a node to look at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeUp {
    Key(Address),
    /// Wake-ups may have been missed: look at every key that is waited for.
    All,
}

/// One page of a listing, in key order.
pub type Page = Vec<(Key, LockState)>;

/// What a step of the collection came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub removed: u64,
    /// Rows whose `notice_at` has passed.
    pub due: Vec<Address>,
    /// Where to go on; `None` at the end.
    pub next: Option<Address>,
}

/// A place where lock states live. Callers bound every call by a time-out; a call that is dropped half-way leaves
/// nothing behind but, for a commit, an unknown outcome.
#[async_trait]
pub trait LockStore: Send + Sync + 'static {
    /// Its name in logs and answers: `memory`, `sqlite`, `postgres`, `redis`.
    fn name(&self) -> &'static str;

    /// How many shards serve it best on this machine.
    fn shards(&self) -> usize;

    /// Whether what it has acknowledged may be lost when it crashes.
    fn is_volatile(&self) -> bool {
        false
    }

    /// The first of the addresses that no commit can change together with those before it.
    fn first_apart(&self, addresses: &[Address]) -> Option<usize> {
        let _ = addresses;
        None
    }

    /// Whether it has an order of events over keys, for whoever watches many of them.
    fn tells_of_prefixes(&self) -> bool {
        true
    }

    /// The name that a node of this store starts with.
    fn node_id(&self) -> NodeId;

    async fn load(&self, addresses: &[Address]) -> Result<Loaded, StoreError>;

    /// Writes all changes whose version holds, in one commit. `now` is the caller's estimate of the store's clock; no two
    /// changes have the same address.
    async fn commit(&self, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError>;

    /// Loads states and keeps everybody else from changing them until the answer is committed, given up or dropped.
    async fn lock(&self, addresses: &[Address]) -> Result<(Loaded, Box<dyn LockedStates>), StoreError>;

    /// States of `app` whose keys begin with `prefix` and come after `after`, in key order, at most `limit`.
    async fn list(&self, app: &App, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page, StoreError>;

    /// Looks at up to `limit` rows after `after`: removes those whose time to be kept is over, and tells which are due.
    async fn collect(&self, after: Option<&Address>, limit: usize) -> Result<Collected, StoreError>;

    /// Writes events of which no change tells: of a wait that ended, say.
    async fn log(&self, events: &[(Address, Event)]) -> Result<(), StoreError>;

    /// Looks at up to `limit` events after `after`, in the order of their commits, and returns those in `scope` and where to
    /// go on. That is `after` itself if nothing has come yet, and moves on even if none of them was wanted. Events of one
    /// key come in the order in which they happened, and none is ever committed before a place that was returned.
    async fn events(
        &self,
        app: &App,
        scope: Scope<'_>,
        after: EventCursor,
        limit: usize,
    ) -> Result<(Vec<LoggedEvent>, EventCursor), StoreError>;

    /// Where a reader begins that wants only what comes from now on. A few that came just before may lie behind it.
    async fn last_event(&self) -> Result<EventCursor, StoreError>;

    /// What has happened to the key, the newest first, without renewals: at most `limit` events before `before`.
    async fn history(
        &self,
        app: &App,
        key: &Key,
        before: Option<EventCursor>,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>, StoreError>;

    /// Deletes the oldest events, at most `limit`: those from before `older_than`, and renewals from before
    /// `renewed_before`. Stops at the first that is younger. Returns how many it has deleted.
    async fn trim(&self, older_than: Timestamp, renewed_before: Timestamp, limit: usize) -> Result<u64, StoreError>;

    /// Tells nodes to look at keys. May be lost.
    async fn wake(&self, wake_ups: &[(NodeId, Address)]) -> Result<(), StoreError>;

    /// What `node` is told from now on. [`WakeUp::All`] follows every gap.
    async fn wake_ups(&self, node: &NodeId) -> Result<mpsc::Receiver<WakeUp>, StoreError>;

    /// The secret that all nodes of this store share: `fresh` if there is none yet.
    async fn cluster_secret(&self, fresh: &[u8]) -> Result<Vec<u8>, StoreError>;

    /// The document by which the nodes of an engine set agree, as this store keeps it: what was last written before the answer
    /// or, if a write is under way, perhaps that. Waits for nobody who writes.
    async fn board(&self) -> Result<Board, StoreError>;

    /// Replaces the board if its version is still `expected`, 0 where there is none, and returns the new version; `None` if
    /// somebody else was faster: then nothing was written. The text has no NUL in it, which Postgres cannot keep.
    ///
    /// Of an unknown outcome: the write may yet be made, for as long as the version stays `expected`, so that to read the old
    /// board proves nothing. Only another version does, or a text of one's own.
    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError>;

    /// One page of all states of all apps, in an order of the store's own: of about `limit` states, which is not 0. A page may
    /// be short, or empty, and not be the last. A walk from `None` to the end finds each state that is there all the while and
    /// is not changed at least once; where nothing keeps an order, in a Redis Cluster, perhaps more often. A page that failed may
    /// be asked for again.
    async fn dump(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError>;

    /// The term that this node believes the store to be in, and that commits are judged in. Each ping makes sure of it.
    fn term(&self) -> Term {
        Term::default()
    }

    /// Begins another term, in which nothing counts that was judged before: this store is active again, or for the first
    /// time, among the engines of a set. Nothing to do for one that tells no terms.
    async fn begin_term(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Until then, by the store's clock, leases of an engine that was left by force may be live besides those here.
    fn forced_until(&self) -> Option<Timestamp> {
        None
    }

    /// Says how long this node's leases may be: called once, before anything is granted. A hold-off lasts no shorter.
    async fn expect_leases_of(&self, _ttl_ms_max: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether the store answers; gives its clock.
    async fn ping(&self) -> Result<Timestamp, StoreError>;
}

/// States that nobody else can change.
#[async_trait]
pub trait LockedStates: Send {
    /// As [`LockStore::commit`]. A row that was not there could not be locked: its change may lose.
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError>;

    /// Writes all changes, or none if the version of one of them does not hold: then every version in the answer is
    /// `None`, those of the changes that could have been made too.
    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError>;

    /// Lets others change them again, with nothing written. To drop them comes to the same, but may cost the store a
    /// connection.
    async fn give_up(self: Box<Self>) -> Result<(), StoreError>;
}

/// How many callers besides the shards may have states locked at once.
pub(crate) const LOCKED_AT_ONCE: usize = 8;

/// Not zero, and exact in a JSON number.
fn random_number() -> u64 {
    rand::random_range(1..1 << 53)
}

/// How many wake-ups may be under way to one node; when there are more, the rest count as lost.
pub(crate) const WAKE_UPS_MAX: usize = 10_000;

/// Where the keys that begin with `prefix` end, in the order of their bytes: the first text after all of them.
pub(crate) fn end_of_prefix(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return end;
        }
    }
    // Longer than any key of the same characters.
    char::MAX.to_string().repeat(latchgate_core::key::KEY_MAX_BYTES)
}

/// A name for a node that shares its store with others.
pub(crate) fn fresh_node_id() -> NodeId {
    NodeId::new(&format!("{:016x}", rand::random::<u64>()))
}

#[cfg(test)]
mod tests {
    use super::end_of_prefix;

    #[test]
    fn keys_that_begin_with_a_prefix_lie_before_its_end_and_others_do_not() {
        for (prefix, end) in [("a", "b"), ("a/", "a0"), ("a\u{d7ff}", "a\u{e000}"), ("a\u{10ffff}", "b")] {
            assert_eq!(end_of_prefix(prefix), end);
            assert!(format!("{prefix}\u{10ffff}\u{10ffff}").as_str() < end);
        }
        assert!("\u{10ffff}\u{10ffff}" < end_of_prefix("").as_str());
        assert!("\u{10ffff}\u{10ffff}" < end_of_prefix("\u{10ffff}").as_str());
    }
}
