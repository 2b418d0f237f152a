//! Who sends a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use latchgate_core::access::{KeyId, Permissions};
use latchgate_core::{App, Timestamp};
use tokio_util::sync::CancellationToken;

use super::quota::AppUse;
use crate::observe::metrics::{OfApp, Requests};

/// The sender of a request: an API key, or a client that needs none.
#[derive(Debug)]
pub struct Caller {
    pub permissions: Permissions,
    /// `None` if the client needs no API key.
    pub key_id: Option<KeyId>,
    /// What its app uses of this node.
    pub app_use: Arc<AppUse>,
    ended: CancellationToken,
    /// When the API key was last used at this node, in ms; 0 if never.
    used_at: AtomicU64,
    /// Where its requests are counted.
    counted: OnceLock<Arc<OfApp>>,
}

impl Caller {
    pub(super) fn new(key_id: Option<KeyId>, permissions: Permissions, app_use: Arc<AppUse>) -> Self {
        let (ended, used_at) = (CancellationToken::new(), AtomicU64::new(0));
        Self { permissions, key_id, app_use, ended, used_at, counted: OnceLock::new() }
    }

    pub fn app(&self) -> &App {
        &self.permissions.app
    }

    /// The figures of the caller's app.
    pub fn counted(&self, requests: &Requests) -> &OfApp {
        self.counted.get_or_init(|| requests.of(self.app()))
    }

    /// Cancelled when the caller's API key is no longer accepted: its waits and event streams end.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn used(&self, now: Timestamp) {
        // Requests of one API key at the same time write the same line of memory only once a second.
        if now.as_ms().saturating_sub(self.used_at.load(Ordering::Relaxed)) >= 1_000 {
            self.used_at.store(now.as_ms(), Ordering::Relaxed);
        }
    }

    pub(super) fn used_at(&self) -> Option<Timestamp> {
        Some(Timestamp::from_ms(self.used_at.load(Ordering::Relaxed))).filter(|at| at.as_ms() > 0)
    }
}
