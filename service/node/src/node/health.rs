//! Whether the store takes commits.

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};

/// While the store is down, calls fail at once instead of waiting for the store's time-out. A call that fails only makes the node
/// suspect the store: a probe decides, because one slow statement, one broken connection or one bad row is no outage.
pub struct Health {
    /// Why the store is down; `None` while it is up.
    trouble: watch::Sender<Option<String>>,
    suspected: Notify,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// When the store last took a commit.
    committed: Option<Instant>,
    /// Why a call has failed since the last probe.
    suspicion: Option<String>,
    /// When and why the store last refused a commit, if it has taken none since.
    refused: Option<(Instant, String)>,
}

/// For so long after a commit was refused, a probe that passes does not show that the next one will be taken.
const REFUSED_FOR: Duration = Duration::from_secs(5);

impl Default for Health {
    fn default() -> Self {
        Self { trouble: watch::Sender::new(None), suspected: Notify::new(), known: Mutex::default() }
    }
}

impl Health {
    pub fn is_up(&self) -> bool {
        self.trouble.borrow().is_none()
    }

    /// Why the store is down, or why it refuses commits although it takes those of probes.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.borrow().clone();
        trouble.or_else(|| {
            let known = self.known.lock();
            let (at, why) = known.refused.as_ref()?;
            (at.elapsed() < REFUSED_FOR).then(|| why.clone())
        })
    }

    pub(crate) fn set_down(&self, why: String) {
        self.trouble.send_replace(Some(why));
    }

    pub(crate) fn set_up(&self) {
        self.trouble.send_replace(None);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// The store has taken a commit of a probe.
    pub(crate) fn probed(&self) {
        self.known.lock().committed = Some(Instant::now());
    }

    /// The store has taken a commit.
    pub(crate) fn committed(&self) {
        let mut known = self.known.lock();
        known.committed = Some(Instant::now());
        known.refused = None;
    }

    /// The store has refused a commit, and written nothing.
    pub(crate) fn refused(&self, why: &str) {
        self.known.lock().refused = Some((Instant::now(), why.to_owned()));
    }

    pub(crate) fn has_committed_since(&self, at: Instant) -> bool {
        self.known.lock().committed.is_some_and(|committed| committed > at)
    }

    /// Whether the store has taken a commit within this time.
    pub(crate) fn has_committed_within(&self, time: Duration) -> bool {
        self.known.lock().committed.is_some_and(|committed| committed.elapsed() < time)
    }

    /// A call has failed, so the store is to be probed.
    pub(crate) fn suspect(&self, why: &str) {
        self.known.lock().suspicion.get_or_insert_with(|| why.to_owned());
        self.suspected.notify_one();
    }

    /// Waits until a call has failed.
    pub(crate) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    pub(crate) fn take_suspicion(&self) -> Option<String> {
        self.known.lock().suspicion.take()
    }
}
