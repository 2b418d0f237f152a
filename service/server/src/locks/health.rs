//! Whether the store answers.

use tokio::sync::watch;

/// While the store is down, calls fail at once instead of waiting for the store's time-out.
pub struct Health {
    is_up: watch::Sender<bool>,
}

impl Default for Health {
    fn default() -> Self {
        Self { is_up: watch::Sender::new(true) }
    }
}

impl Health {
    pub fn is_up(&self) -> bool {
        *self.is_up.borrow()
    }

    pub(super) fn set(&self, is_up: bool) {
        self.is_up.send_if_modified(|was_up| std::mem::replace(was_up, is_up) != is_up);
    }

    pub(super) fn watch(&self) -> watch::Receiver<bool> {
        self.is_up.subscribe()
    }
}
