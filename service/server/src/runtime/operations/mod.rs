//! The gate as a node runs it: waiting, outages, two stores.

mod ask;
mod stamp;

use latchgate_core::App;
use latchgate_core::gate::OperationId;

pub use self::ask::{BatchTold, OnOutage, PostAsk, PreAsk, PreTold, Shown, ShownPage, Told};
pub use self::stamp::StampText;
use crate::runtime::{Answer, Failure};
use crate::store::gate::Filter;

/// This node's gate. Clones are handles on the same one.
#[derive(Clone)]
pub struct Operations;

/// Why there is no listing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ListFailure {
    #[error("the cursor is not one of this listing")]
    InvalidCursor,
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Operations {
    /// May I do it?
    ///
    /// # Errors
    /// When there is no answer; `OutcomeUnknown` if the claim may have been made: repeat it with the same attempt id.
    pub async fn pre(&self, app: &App, ask: PreAsk) -> Answer<PreTold> {
        todo!()
    }

    /// Several pres at once; with `all_or_nothing`, none is claimed unless all may go.
    pub async fn pre_all(&self, app: &App, asks: Vec<PreAsk>, all_or_nothing: bool) -> BatchTold {
        todo!()
    }

    /// This is how it ended.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn post(&self, app: &App, id: OperationId, stamp: &StampText, ask: PostAsk) -> Answer<Told> {
        todo!()
    }

    /// I am still at it.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn heartbeat(
        &self,
        app: &App,
        id: OperationId,
        stamp: &StampText,
        lease_ms: Option<u64>,
    ) -> Answer<Told> {
        todo!()
    }

    /// The record that counts, if there is one.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, app: &App, id: OperationId) -> Answer<Option<Shown>> {
        todo!()
    }

    /// A page of records, in an order of the stores' own.
    ///
    /// # Errors
    /// When a store does not answer, or the cursor is none of its own.
    pub async fn list(
        &self,
        app: &App,
        filter: &Filter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ShownPage, ListFailure> {
        todo!()
    }

    /// Forgets a record; one whose attempt runs, or may have run, only by `force`.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn forget(&self, app: &App, id: OperationId, force: bool) -> Answer<Told> {
        todo!()
    }
}
