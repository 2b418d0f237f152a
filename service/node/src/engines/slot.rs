//! An engine of a pair need not answer when the node starts: until it is open, it is one that does not answer.

use std::sync::{Arc, OnceLock};

use futures::future::{BoxFuture, FutureExt as _, Shared};
use parking_lot::Mutex;
use tokio::time::{Duration, timeout};

use crate::store::engine_record::{EngineRecord, Reading};
use crate::store::{Store, StoreError};

/// Opens a store; called again until it succeeds.
pub type Opener = Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<Arc<dyn Store>>> + Send + Sync>;

/// An attempt to open it, which several callers may wait for.
type Opening = Shared<BoxFuture<'static, Result<Arc<dyn Store>, String>>>;

/// Longest time that opening a store takes.
const OPEN_MAX: Duration = Duration::from_secs(10);

/// An engine as the operator names it.
pub struct EngineSpec {
    pub name: String,
    /// `sqlite`, `postgres` or `redis`.
    pub kind: &'static str,
    pub open: Opener,
    /// See [`super::decide::Candidate::is_trusted`].
    pub is_trusted: bool,
    /// See [`super::decide::Candidate::is_new`].
    pub is_new: bool,
    /// The operator started the node without it.
    pub is_left_out: bool,
}

impl EngineSpec {
    /// An engine that is open already, and is new if it has no record.
    pub fn opened(name: &str, store: Arc<dyn Store>) -> Self {
        let kind = store.kind();
        let open: Opener = Arc::new(move || {
            let store = Arc::clone(&store);
            Box::pin(async move { Ok(store) })
        });
        Self { name: name.to_owned(), kind, open, is_trusted: false, is_new: true, is_left_out: false }
    }
}

pub(super) struct Slot {
    pub spec: EngineSpec,
    store: OnceLock<Arc<dyn Store>>,
    opening: Mutex<Option<Opening>>,
}

impl Slot {
    pub(super) fn new(spec: EngineSpec) -> Self {
        Self { spec, store: OnceLock::new(), opening: Mutex::default() }
    }

    /// The store, opened if it is not yet.
    ///
    /// # Errors
    /// Says why it cannot be opened.
    pub(super) async fn store(&self) -> Result<Arc<dyn Store>, StoreError> {
        if let Some(store) = self.store.get() {
            return Ok(Arc::clone(store));
        }
        // A caller that gives up leaves the attempt to the next one.
        let opening = self.opening.lock().get_or_insert_with(|| self.open()).clone();
        let opened = opening.await;
        *self.opening.lock() = None;
        let store = opened.map_err(StoreError::Unavailable)?;
        Ok(Arc::clone(self.store.get_or_init(|| store)))
    }

    /// Reports a risk that has arisen or is over since the engine last answered.
    pub(super) fn report_risk(&self, known: Option<&Reading>, reading: Option<&Reading>) {
        let Some(reading) = reading else { return };
        let engine = self.spec.name.as_str();
        match (known.and_then(|known| known.risk.as_ref()), &reading.risk) {
            (before, Some(risk)) if before != Some(risk) => {
                tracing::warn!(engine, is_accepted = risk.is_accepted, "{}", risk.what);
            }
            (Some(_), None) => tracing::info!(engine, "the engine keeps what it acknowledges again"),
            _ => {}
        }
    }

    fn open(&self) -> Opening {
        let open = (self.spec.open)();
        async move {
            let opened = timeout(OPEN_MAX, open).await.map_err(|_| "it took too long to open".to_owned())?;
            opened.map_err(|error| format!("{error:#}"))
        }
        .boxed()
        .shared()
    }

    pub(super) fn if_open(&self) -> Option<&Arc<dyn Store>> {
        self.store.get()
    }

    /// See [`super::decide::Candidate::may_forget`]. Of no meaning until it is open.
    pub(super) fn may_forget(&self) -> bool {
        self.if_open().is_some_and(|store| store.may_forget())
    }

    pub(super) async fn read(&self, patience: Duration) -> Result<Reading, StoreError> {
        let read = async { self.store().await?.read_record().await };
        timeout(patience, read).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// As [`Slot::write`], of a record that is in force. A fail-over is for the next poll to deal with: nothing is written, for the
    /// record would name the new server, and no node would begin a hold-off.
    pub(super) async fn change(
        &self,
        patience: Duration,
        read: &Reading,
        next: &EngineRecord,
    ) -> Result<bool, StoreError> {
        if read.is_after_fail_over { Ok(false) } else { self.write(patience, read, next).await }
    }

    pub(super) async fn write(
        &self,
        patience: Duration,
        read: &Reading,
        next: &EngineRecord,
    ) -> Result<bool, StoreError> {
        let write = async { self.store().await?.write_record(read, next).await };
        match timeout(patience, write).await.unwrap_or_else(|_| Err(no_answer())) {
            // Nothing was written, and the caller reads the record again.
            Err(StoreError::Contended(_)) => Ok(false),
            written => written,
        }
    }
}

pub(super) fn no_answer() -> StoreError {
    StoreError::Unavailable("it does not answer".to_owned())
}
