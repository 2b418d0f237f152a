//! The closing of a key: see [`super::close`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::{Event, EventKind};
use crate::time::{CLOCK_BOUND_MS, Timestamp};

/// Why, since when and until when a key is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    pub reason: Arc<str>,
    pub since: Timestamp,
    /// `None`: until it is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Closing {
    /// When a node treats the closing as over, by its own estimate of the store's clock, which may be ahead by the clock bound.
    pub(super) fn closed_until(&self) -> Option<Timestamp> {
        self.until.map(|until| until.plus_ms(CLOCK_BOUND_MS))
    }

    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.closed_until().is_some_and(|end| end <= now)
    }

    pub(super) fn event(&self, kind: EventKind, at: Timestamp) -> Event {
        let until = self.until.filter(|_| kind == EventKind::Closed);
        Event::of_key(kind, Some(Arc::clone(&self.reason)), until, at)
    }
}
