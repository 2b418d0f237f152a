//! The copy of all states from a frozen engine to one that is filling. Every node that copies writes the same, and each page is
//! refused unless the target is still filling for this epoch, so any number of nodes may copy, and any may stop half-way.

use futures::future::join;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::slot::no_answer;
use super::{Engine, Inner, Past};
use crate::store::StoreError;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};

/// States in one page.
const PAGE: usize = 1_000;
/// A copy whose count has not risen for so long is taken over.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// A page is more work than a call of a client.
const PAGE_PATIENCE: Duration = Duration::from_secs(10);

/// A copy as a node sees it from look to look.
pub(super) struct Watched {
    pub epoch: Epoch,
    /// This node makes it.
    pub is_own: bool,
    pub copied: u64,
    pub changed: Instant,
}

impl Watched {
    pub(super) fn own(epoch: Epoch) -> Self {
        Self { epoch, is_own: true, copied: 0, changed: Instant::now() }
    }
}

impl<E: ?Sized + Engine> Inner<E> {
    /// Copies if this node is to; returns whether the records have to be read again at once.
    pub(super) async fn copy(&self, past: &mut Past, source: (usize, &Reading), target: (usize, &Reading)) -> bool {
        let ((from, source), (to, target)) = (source, target);
        let epoch = source.epoch();
        let is_known = past.copy.as_ref().is_some_and(|watched| watched.epoch == epoch);
        if !is_known {
            past.copy = Some(Watched { is_own: false, copied: target.copied, ..Watched::own(epoch) });
        }
        if let Some(watched) = &mut past.copy {
            if watched.copied != target.copied {
                (watched.copied, watched.changed) = (target.copied, Instant::now());
            }
            if !watched.is_own && watched.changed.elapsed() < TAKE_OVER {
                return false;
            }
            watched.is_own = true;
        }
        let began = Instant::now();
        let copied = tokio::select! {
            copied = self.copy_all(from, to, epoch) => copied,
            // This node may wait for a page whose request was lost.
            () = self.ended_elsewhere(from, to, epoch) => Ok(None),
        };
        match copied {
            Ok(Some(copied)) => {
                let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let from_index = from;
                let (from, to) = (&self.slots[from].spec.name, &self.slots[to].spec.name);
                tracing::info!(%from, %to, copied, took_ms, "all states are copied");
                self.decide(from_index, source, epoch, copied).await
            }
            // The target is not filling for this epoch any more: the records say what became of it.
            Ok(None) => true,
            Err(error) => {
                tracing::warn!(%error, "the copy was interrupted and will be resumed");
                false
            }
        }
    }

    /// Returns when the target takes no more, or the source is active again.
    async fn ended_elsewhere(&self, from: usize, to: usize, epoch: Epoch) {
        let has_ended = async |index: usize, state| {
            let reading = self.slots[index].read(self.patience).await;
            reading.is_ok_and(|reading| !(reading.is(state) && reading.epoch() == epoch))
        };
        loop {
            sleep(TAKE_OVER).await;
            let ended = join(has_ended(from, EngineState::Moving), has_ended(to, EngineState::Filling)).await;
            if ended.0 || ended.1 {
                return;
            }
        }
    }

    /// The deciding compare-and-set: from here on the copy is what counts.
    async fn decide(&self, index: usize, source: &Reading, epoch: Epoch, copied: u64) -> bool {
        let Some(record) = &source.record else { return false };
        let retired = EngineRecord { copied, ..record.turned(EngineState::Retired, epoch) };
        self.slots[index].write(self.patience, source, &retired).await.is_ok()
    }

    /// Returns how many were copied; `None` if the target takes no more.
    async fn copy_all(&self, from: usize, to: usize, epoch: Epoch) -> Result<Option<u64>, StoreError> {
        let (source, target) = (self.slots[from].store().await?, self.slots[to].store().await?);
        // How much more the target's clock shows: read later, it shows no less for that, so no lease ends early.
        let before = bounded(source.read_record()).await?.now;
        let after = bounded(target.read_record()).await?.now.plus_ms(1);
        let by_ms = after.as_ms().cast_signed() - before.as_ms().cast_signed();
        if !bounded(target.bring(&source, epoch)).await? {
            return Ok(None);
        }
        let mut copied = 0;
        let (mut page, mut next) = bounded(source.page(None, PAGE)).await?;
        loop {
            copied += page.len() as u64;
            let fill = bounded(target.take(epoch, page, by_ms, copied));
            let Some(place) = next else {
                return Ok(fill.await?.then_some(copied));
            };
            let (is_filled, following) = join(fill, bounded(source.page(Some(&place), PAGE))).await;
            if !is_filled? {
                return Ok(None);
            }
            (page, next) = following?;
        }
    }
}

pub(super) async fn bounded<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(PAGE_PATIENCE, answer).await.unwrap_or_else(|_| Err(no_answer()))
}
