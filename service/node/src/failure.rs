//! Why a call has no answer.

use latchgate_core::Key;

use crate::store::StoreError;

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A bounded queue is full. Nothing was done.
    #[error("too much is asked at once: {0}")]
    Overloaded(&'static str),
    /// Nothing was done.
    #[error("{0}")]
    StoreUnavailable(String),
    /// It may have been done: repeat it with the same lease id.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The store has something for this key, or for an operation, that cannot be decoded. Nothing was done.
    #[error("the state in the store cannot be read: {reason}")]
    Unreadable { key: Option<Key>, reason: String },
    /// What has to be durable has no store to be kept in. Nothing was done.
    #[error("there is no durable store")]
    NoDurableStore,
    /// A permanent success can only be kept by a store that commits to disk: claim with `durability: durable`. Nothing was done.
    #[error("a permanent success needs a durable claim")]
    PermanentNeedsDurable,
    /// The node is about to stop. Nothing was done.
    #[error("this node is shutting down")]
    ShuttingDown,
}

pub type CallResult<T> = Result<T, Failure>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(reason) => Self::StoreUnavailable(reason),
            StoreError::OutcomeUnknown(reason) => Self::OutcomeUnknown(reason),
            StoreError::Contended(what) => Self::Overloaded(what),
            StoreError::Unreadable { keys, reason } => {
                Self::Unreadable { key: keys.into_iter().next().map(|address| address.key), reason }
            }
            StoreError::EpochOver => Self::StoreUnavailable(error.to_string()),
        }
    }
}
