//! One engine of the set. It need not answer when a node starts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use latchgate_core::Timestamp;
use tokio::time::timeout;

use super::record::Board;
use super::register::{Boards, ReadBoard};
use crate::store::{LockStore, StoreError};

/// Opens an engine's store.
pub type Opener = Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<Arc<dyn LockStore>>> + Send + Sync>;

/// An engine of a set, as it is configured.
#[derive(Clone)]
pub struct Engine {
    /// The same at all nodes.
    pub name: String,
    /// Its kind: `sqlite`, `postgres`, `redis`.
    pub kind: &'static str,
    pub open: Opener,
}

/// Longest time that opening an engine takes.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Slot {
    pub engine: Engine,
    store: OnceLock<Arc<dyn LockStore>>,
    is_opening: AtomicBool,
    /// Why it could not be opened, or not be asked.
    trouble: Mutex<String>,
}

impl Slot {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine, store: OnceLock::new(), is_opening: AtomicBool::new(false), trouble: Mutex::default() }
    }

    /// `None` while it could not be opened yet; then another try is begun.
    pub(super) fn store(self: &Arc<Self>) -> Option<Arc<dyn LockStore>> {
        let store = self.store.get();
        if store.is_none() && !self.is_opening.swap(true, Ordering::AcqRel) {
            let slot = Arc::clone(self);
            tokio::spawn(async move {
                match timeout(OPEN_TIMEOUT, (slot.engine.open)()).await {
                    Ok(Ok(store)) => drop(slot.store.set(store)),
                    Ok(Err(error)) => slot.note(&format!("{error:#}")),
                    Err(_) => slot.note("it does not answer"),
                }
                slot.is_opening.store(false, Ordering::Release);
            });
        }
        store.cloned()
    }

    pub(super) fn trouble(&self) -> String {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, trouble: &str) {
        let mut noted = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *noted != trouble {
            if !trouble.is_empty() {
                tracing::warn!(engine = self.engine.name, trouble, "an engine cannot be used");
            }
            trouble.clone_into(&mut noted);
        }
    }
}

/// The boards of all engines of the set.
#[derive(Clone)]
pub(super) struct Slots {
    pub all: Arc<[Arc<Slot>]>,
    /// Longest time for one answer.
    pub timeout: Duration,
    /// The set that these are engines of, once that is known.
    pub set: Arc<OnceLock<String>>,
    /// The engine that has what is true, and so has a board.
    pub truth: Arc<Mutex<Option<String>>>,
}

impl Slots {
    pub(super) fn new(all: Arc<[Arc<Slot>]>, timeout: Duration) -> Self {
        Self { all, timeout, set: Arc::default(), truth: Arc::default() }
    }

    pub(super) fn rely_on(&self, truth: Option<String>) {
        *self.truth.lock().unwrap_or_else(PoisonError::into_inner) = truth;
    }

    /// Whether the engine is not the one that it was: it has nothing, and should have everything.
    fn is_bare(&self, engine: &str, version: u64) -> bool {
        let truth = self.truth.lock().unwrap_or_else(PoisonError::into_inner);
        version == 0 && truth.as_deref() == Some(engine)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.all.iter().map(|slot| slot.engine.name.clone()).collect()
    }

    pub(super) fn slot(&self, engine: &str) -> Option<&Arc<Slot>> {
        self.all.iter().find(|slot| slot.engine.name == engine)
    }

    pub(super) fn store(&self, engine: &str) -> Option<Arc<dyn LockStore>> {
        self.slot(engine)?.store()
    }

    /// # Errors
    /// When it is not open.
    pub(super) fn need(&self, engine: &str) -> Result<Arc<dyn LockStore>, StoreError> {
        self.store(engine).ok_or_else(|| StoreError::Unavailable(format!("engine {engine} does not answer")))
    }
}

/// An engine's board, unless it is known to have nothing to say in this set.
pub(super) fn of_this_set(
    set: Option<&String>,
    version: u64,
    board: Option<Board>,
) -> Result<Option<Board>, StoreError> {
    let trouble = match (set, &board) {
        (Some(_), None) if version > 0 => "it has left the set: it can only come back when all engines leave it",
        (Some(set), Some(board)) if *set != board.record.set && !board.record.is_first() => {
            "it is one of another set's engines: dissolve that with `latchgate leave-set`"
        }
        _ => return Ok(board),
    };
    Err(StoreError::Unavailable(trouble.to_owned()))
}

impl Boards for Slots {
    async fn read(&self, engine: &str) -> Result<ReadBoard, StoreError> {
        let store = self.need(engine)?;
        let slot = self.slot(engine).cloned();
        let note = |trouble: &str| {
            if let Some(slot) = &slot {
                slot.note(trouble);
            }
        };
        let answer = timeout(self.timeout, store.board()).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::Unavailable("it took too long to answer".to_owned())));
        let answer = answer.map_err(StoreError::of_reading).inspect_err(|error| note(&error.to_string()))?;
        let board = parse(engine, &answer.text).and_then(|board| of_this_set(self.set.get(), answer.version, board));
        let board = board.inspect_err(|error| note(&error.to_string()))?;
        if self.is_bare(engine, answer.version) {
            let trouble = "it is another store than it was, or has lost what it had";
            note(trouble);
            return Err(StoreError::Unavailable(trouble.to_owned()));
        }
        note("");
        Ok(ReadBoard { version: answer.version, board, now: answer.now })
    }

    async fn write(&self, engine: &str, expected: u64, board: &Board) -> Result<Option<u64>, StoreError> {
        let text = serde_json::to_string(board).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let written = timeout(self.timeout, self.need(engine)?.write_board(expected, &text)).await;
        written.unwrap_or_else(|_| Err(StoreError::OutcomeUnknown("it took too long to answer".to_owned())))
    }
}

pub(super) fn parse(engine: &str, text: &str) -> Result<Option<Board>, StoreError> {
    if text.is_empty() {
        return Ok(None);
    }
    let foreign = |error: serde_json::Error| StoreError::Unavailable(format!("its board cannot be read: {error}"));
    let board: Board = serde_json::from_str(text).map_err(foreign)?;
    if board.engine != engine {
        let other = &board.engine;
        return Err(StoreError::Unavailable(format!("this is engine {other}: all nodes must name engines alike")));
    }
    Ok(Some(board))
}

/// What an engine says of the time, if it answers.
pub(super) async fn shown(store: &Arc<dyn LockStore>, limit: Duration) -> Result<Timestamp, StoreError> {
    let answer = timeout(limit, store.ping()).await;
    answer.unwrap_or_else(|_| Err(StoreError::Unavailable("it took too long to answer".to_owned())))
}
