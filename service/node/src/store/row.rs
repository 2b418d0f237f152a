//! What stores keep: the states of keys, of each kind. A store knows no rules; it knows how a state is written down.

use std::fmt;

use latchgate_core::gate::{OperationRecord, State};
use latchgate_core::lock::LockState;
use serde_json::Result;

use super::posted::Posted;

/// The kinds of rows. Rows of different kinds never meet: each kind has tables, or keys, of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    Lock,
    Operation,
}

impl RowKind {
    /// One of two values.
    pub(crate) const fn pick<T: Copy>(self, lock: T, operation: T) -> T {
        match self {
            Self::Lock => lock,
            Self::Operation => operation,
        }
    }
}

/// The state of a key, as stores write it down: a body, which has what the rules need, and for some kinds a payload, which no listing
/// reads, and what listings filter by.
pub trait RowState: Clone + fmt::Debug + Default + PartialEq + Send + Sync + 'static {
    const KIND: RowKind;

    /// Appends the body, as JSON.
    ///
    /// # Errors
    /// None that is known.
    fn push_body(&self, text: &mut String) -> Result<()>;

    /// JSON; none if there is nothing in it.
    ///
    /// # Errors
    /// None that is known.
    fn payload(&self) -> Result<Option<String>> {
        Ok(None)
    }

    fn filters(&self) -> Option<Filters<'_>> {
        None
    }

    /// # Errors
    /// When it is no state of this kind.
    fn read(body: &[u8], payload: Option<&[u8]>) -> Result<Self>;

    /// The state after what a caller has posted in a transaction of its own: see `post` in the migrations.
    ///
    /// # Errors
    /// When it cannot be read, or states of this kind have no posts.
    fn after_post(self, posted: &str) -> Result<Self> {
        Err(serde::de::Error::custom(format!("nothing can be posted to it: {posted}")))
    }

    /// About how long it is when it is written down, in bytes.
    fn bytes(&self) -> usize;

    /// A number that later states of the key must exceed, also if the row is removed meanwhile.
    fn token(&self) -> u64;

    /// The same state for a store whose clock is `by_ms` ahead.
    #[must_use]
    fn moved(self, by_ms: i64) -> Self;

    /// # Errors
    /// As [`Self::push_body`].
    fn body(&self) -> Result<String> {
        let mut text = String::new();
        self.push_body(&mut text)?;
        Ok(text)
    }
}

/// What listings filter by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters<'a> {
    pub operation: &'a str,
    pub state: State,
    pub is_suspect: bool,
}

impl RowState for LockState {
    const KIND: RowKind = RowKind::Lock;

    fn push_body(&self, text: &mut String) -> Result<()> {
        self.push_json(text)
    }

    fn read(body: &[u8], _payload: Option<&[u8]>) -> Result<Self> {
        Self::from_json(body)
    }

    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn token(&self) -> u64 {
        Self::token(self)
    }

    fn moved(self, by_ms: i64) -> Self {
        self.carried(by_ms, &Self::default())
    }
}

/// The record of an operation; `None` if there is none. A row without a record is removed by the collection.
impl RowState for Option<OperationRecord> {
    const KIND: RowKind = RowKind::Operation;

    fn push_body(&self, text: &mut String) -> Result<()> {
        text.push_str(&serde_json::to_string(&self.as_ref().map(OperationRecord::without_payload))?);
        Ok(())
    }

    fn payload(&self) -> Result<Option<String>> {
        self.as_ref().and_then(OperationRecord::payload).map(|payload| serde_json::to_string(&payload)).transpose()
    }

    fn filters(&self) -> Option<Filters<'_>> {
        self.as_ref().map(|record| Filters {
            operation: record.operation.as_str(),
            state: record.state(),
            is_suspect: record.is_suspect(),
        })
    }

    fn read(body: &[u8], payload: Option<&[u8]>) -> Result<Self> {
        let record: Self = serde_json::from_slice(body)?;
        let Some(payload) = payload else { return Ok(record) };
        let payload = serde_json::from_slice(payload)?;
        Ok(record.map(|record| record.with_payload(payload)))
    }

    fn after_post(self, posted: &str) -> Result<Self> {
        let posted: Posted = serde_json::from_str(posted)?;
        Ok(self.map(|record| posted.applied_to(record)))
    }

    fn bytes(&self) -> usize {
        self.as_ref().map_or(0, OperationRecord::bytes)
    }

    /// Operations have no tokens.
    fn token(&self) -> u64 {
        0
    }

    fn moved(self, by_ms: i64) -> Self {
        self.map(|record| record.moved(by_ms))
    }
}
