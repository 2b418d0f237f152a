//! The name of a group of requests. [`super::shares`] says which group comes first.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::OWNER_MAX_BYTES;
use crate::key::{InvalidName, check_name};

/// A name for the requests that share permits with each other. Callers choose it, and refused callers see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Group(Arc<str>);

impl Group {
    /// # Errors
    /// Says which rule `text` breaks. A group is as long as an owner at most.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, OWNER_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The group of a request for permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub group: Group,
    /// This request is granted only if the group then has no more permits than so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
