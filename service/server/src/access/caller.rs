//! Who sends a request.

use std::sync::atomic::{AtomicU64, Ordering};

use latchgate_core::access::{KeyId, Permissions};
use latchgate_core::{App, Timestamp};
use tokio_util::sync::CancellationToken;

/// The sender of a request: an API key, or a client that needs none.
#[derive(Debug)]
pub struct Caller {
    pub permissions: Permissions,
    /// `None` if the client needs no API key.
    pub key_id: Option<KeyId>,
    ended: CancellationToken,
    /// When the API key was last used at this node, in ms; 0 if never.
    used_at: AtomicU64,
}

impl Caller {
    pub(super) fn with_key(id: KeyId, permissions: Permissions) -> Self {
        Self { permissions, key_id: Some(id), ended: CancellationToken::new(), used_at: AtomicU64::new(0) }
    }

    /// A client that may do everything in `app`.
    pub fn without_key(app: App) -> Self {
        let permissions = Permissions::all(app);
        Self { permissions, key_id: None, ended: CancellationToken::new(), used_at: AtomicU64::new(0) }
    }

    pub fn app(&self) -> &App {
        &self.permissions.app
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
