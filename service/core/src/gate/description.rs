//! What a person reads who must decide what happened to an operation. The rules do not read it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Label;
use crate::access::KeyId;

/// Longest contents that are kept, in bytes of canonical JSON.
pub const CONTENTS_KEPT_MAX_BYTES: usize = 16 * 1024;

/// What the attempt that holds a record has said about itself, and which API key claimed it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    /// A JSON object as text, checked by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Arc<str>>,
    /// The canonical contents, if the attempt has requested to keep them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Arc<str>>,
    /// Absent if the client needed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<KeyId>,
}

impl Description {
    /// Nothing is stored for an attempt that says nothing.
    pub fn into_stored(self) -> Option<Arc<Self>> {
        (self != Self::default()).then(|| Arc::new(self))
    }
}

/// Contents and metadata may be secret: logs do not get them.
impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |text: &Option<Arc<str>>| text.as_ref().map(|text| text.len());
        f.debug_struct("Description")
            .field("label", &self.label)
            .field("metadata_bytes", &bytes(&self.metadata))
            .field("contents_bytes", &bytes(&self.contents))
            .field("api_key", &self.api_key)
            .finish()
    }
}
