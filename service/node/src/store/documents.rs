//! Documents: texts that a store keeps by name, each changed as a whole by compare-and-set. They belong to no epoch: neither a switch nor
//! [`clear`] removes them.
//!
//! [`clear`]: super::Store::clear

use async_trait::async_trait;

use super::engine_record::{EngineState, Epoch};
use super::{StoreError, random_number};

/// The apps and API keys.
pub const ACCESS: &str = "access";
/// What the nodes sign tickets and stamps with.
pub const SECRET: &str = "secret";
/// In the store of the locks: where fast operations live.
pub const GATE: &str = "gate";
/// In a store of the gate's own: which one it is.
pub const GATE_ID: &str = "gate_id";
/// What each node says of itself.
pub const NODES: &str = "nodes";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredDocument {
    /// As its writer chose it, below 2^53; 0 if there is no document.
    pub version: u64,
    /// `None` if there is no document, or if the reader has this version.
    pub text: Option<String>,
}

#[async_trait]
pub trait DocumentStore: Send + Sync {
    /// The document; without its text if its version is `known`.
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError>;

    /// Replaces the document by a text with a version if its version is still `expected`, and returns whether it did.
    ///
    /// # Errors
    /// `EpochOver` unless the engine record of the locks has the state and the epoch of `fence`, if that is given.
    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        next: (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError>;
}

/// What the nodes that share the store agree on. If it has no such document yet, it becomes `fresh`.
///
/// # Errors
/// When the store does not answer.
pub async fn agreed<S: DocumentStore + ?Sized>(
    store: &S,
    name: &str,
    fresh: &str,
) -> Result<StoredDocument, StoreError> {
    store.write_document(name, 0, (random_number(), fresh), None).await?;
    store.read_document(name, 0).await
}

/// Gives `to` the document of `from`, if there is one, whatever `to` has. Returns `false` if the record of `to` does not have this state
/// and epoch.
///
/// # Errors
/// When one of the stores does not answer.
pub async fn bring<S: DocumentStore + ?Sized>(
    from: &S,
    to: &S,
    name: &str,
    fence: Option<(EngineState, Epoch)>,
) -> Result<bool, StoreError> {
    let StoredDocument { version, text: Some(text) } = from.read_document(name, 0).await? else { return Ok(true) };
    let there = to.read_document(name, version).await?.version;
    if there == version {
        return Ok(true);
    }
    match to.write_document(name, there, (version, &text), fence).await {
        // If the version there has changed: every node brings the same.
        Ok(_) => Ok(true),
        Err(StoreError::EpochOver) => Ok(false),
        Err(error) => Err(error),
    }
}
