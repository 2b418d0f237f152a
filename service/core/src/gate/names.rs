//! The names a caller gives, parsed once at the door.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::OperationId;
use crate::key::{App, InvalidName, check_name};

/// Longest operation name, in bytes of UTF-8.
pub const OPERATION_MAX_BYTES: usize = 256;
/// Longest attempt id, in bytes of UTF-8.
pub const ATTEMPT_ID_MAX_BYTES: usize = 256;
/// Longest label, in bytes of UTF-8.
pub const LABEL_MAX_BYTES: usize = 256;

/// What kind of work an operation is (`charge`, `send-mail`): 1–256 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationName(Arc<str>);

impl OperationName {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, OPERATION_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A caller's own name for one attempt: repeating a pre with it returns the same stamp, so a lost answer is safe to
/// request again. 1–256 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(Arc<str>);

impl AttemptId {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, ATTEMPT_ID_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A line for people about an attempt: 1–256 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(Arc<str>);

impl Label {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, LABEL_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a record lives: the app and the id, always two fields and never a concatenation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationAddress {
    pub app: App,
    pub id: OperationId,
}

impl fmt::Debug for OperationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
