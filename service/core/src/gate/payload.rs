//! What a record carries and no rule reads: the result, and contents that were kept. Stores keep it apart, so that a listing need not
//! read it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Description, OperationRecord, Phase};

/// What a record has beside its payload, about.
const BODY_BYTES: usize = 1_024;

/// The payload of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// JSON text, as posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<str>>,
    /// The canonical contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Arc<str>>,
}

impl OperationRecord {
    /// The payload; `None` if it would be empty.
    pub fn payload(&self) -> Option<Payload> {
        let result = match &self.phase {
            Phase::Succeeded(succeeded) => succeeded.result.clone(),
            _ => None,
        };
        let contents = self.description.as_ref().and_then(|description| description.contents.clone());
        Some(Payload { result, contents }).filter(|payload| *payload != Payload::default())
    }

    /// About how long it is when it is written down, in bytes.
    pub fn bytes(&self) -> usize {
        let payload = self.payload().unwrap_or_default();
        let of = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        BODY_BYTES + of(&payload.result) + of(&payload.contents)
    }

    /// The same without its payload.
    #[must_use]
    pub fn without_payload(&self) -> Self {
        self.clone().with_payload(Payload::default())
    }

    /// The same with this payload in place of its own.
    #[must_use]
    pub fn with_payload(mut self, Payload { result, contents }: Payload) -> Self {
        if let Phase::Succeeded(succeeded) = &mut self.phase {
            succeeded.result = result;
        }
        if self.description.as_ref().is_some_and(|description| description.contents.is_some()) || contents.is_some() {
            let description = self.description.take().map_or_else(Description::default, Arc::unwrap_or_clone);
            self.description = Description { contents, ..description }.into_stored();
        }
        self
    }
}
