//! The copy of all states from a frozen engine to one that is filling. Every node that copies writes the same, and each page is
//! refused unless the target is still filling for this epoch, so any number of nodes may copy, and any may stop half-way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::copying::{Copying, Own};
use super::pair::{Inner, Poll};
use super::rows::{copy_documents, dump_page, write_page};
use super::slot::no_answer;
use crate::store::StoreError;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};

/// States in one page. A store must write it within the time-out of a statement, also with a slow disk.
const PAGE: usize = 200;
/// A copy whose count has not risen for so long is taken over.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// How often a node looks whether the transactions of callers have ended.
const CALLERS_PAUSE: Duration = Duration::from_millis(50);
/// A page is more work than a call of a client.
const PAGE_PATIENCE: Duration = Duration::from_secs(10);

impl Inner {
    /// Takes note of the progress of a copy. One that has ended is aborted here.
    pub(super) fn follow_copy(poll: &mut Poll, readings: &[Result<Reading, StoreError>]) {
        let moving = readings.iter().position(|reading| reading.as_ref().is_ok_and(|it| it.is(EngineState::Moving)));
        let epoch = moving.and_then(|index| Some(readings[index].as_ref().ok()?.epoch()));
        let Some((index, epoch)) = moving.zip(epoch) else {
            // While an engine does not answer, this node cannot tell whether the copy has ended.
            if readings.iter().all(Result::is_ok) {
                poll.copying = None;
            }
            return;
        };
        let copying = poll.copying.take().filter(|copying| copying.epoch == epoch);
        let copying = poll.copying.insert(copying.unwrap_or_else(|| Copying::new(epoch, false)));
        let target = readings.get(1 - index).and_then(|reading| reading.as_ref().ok());
        if let Some(target) = target.filter(|target| target.epoch() == epoch) {
            copying.follow(target.copied);
        }
    }

    /// Copies if this node is to, in a task of its own.
    pub(super) fn copy(self: &Arc<Self>, poll: &mut Poll, from: usize, to: usize, source: &Reading) {
        let Some(copying) = &mut poll.copying else { return };
        if copying.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        copying.is_own |= copying.progressed.elapsed() >= TAKE_OVER;
        if copying.is_own {
            let copied = Arc::clone(self).copy_and_decide(from, to, source.clone(), Arc::clone(&copying.own));
            copying.task = Some(AbortOnDropHandle::new(tokio::spawn(copied)));
        }
    }

    async fn copy_and_decide(self: Arc<Self>, from: usize, to: usize, source: Reading, own: Arc<Own>) {
        let began = Instant::now();
        match self.copy_all(from, to, source.epoch(), &own).await {
            Ok(Some((copied, unreadable))) => {
                let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let (source_name, target_name) = (&self.slots[from].spec.name, &self.slots[to].spec.name);
                tracing::info!(from = %source_name, to = %target_name, copied, unreadable, took_ms, "all states are copied");
                self.retire(from, &source, copied, unreadable).await;
            }
            // The target is not filling for this epoch any more: the records say what became of it.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the copy was interrupted and begins again");
                sleep(TAKE_OVER).await;
            }
        }
        self.changed.notify_one();
    }

    /// The deciding compare-and-set: from here on the copy is what counts.
    async fn retire(&self, index: usize, source: &Reading, copied: u64, unreadable: u64) {
        let Some(record) = &source.record else { return };
        let retired = EngineRecord { copied, unreadable, ..record.with_state(EngineState::Retired, record.epoch) };
        let write = async {
            // The copy may have taken long, and a store refuses what was read long ago.
            let read = self.slots[index].read(self.patience).await?;
            let is_same = read.revision == source.revision && read.server == source.server;
            Ok::<_, StoreError>(is_same && self.slots[index].change(self.patience, &read, &retired).await?)
        };
        let engine = &self.slots[index].spec.name;
        match write.await {
            Ok(true) => {}
            Ok(false) => tracing::warn!(%engine, "the engine is not retired after its copy: its record was changed"),
            Err(error) => tracing::warn!(%error, %engine, "the engine cannot be retired after its copy"),
        }
    }

    /// Returns how many were copied, and how many could not be decoded; `None` if the target takes no more.
    async fn copy_all(
        &self,
        from: usize,
        to: usize,
        epoch: Epoch,
        own: &Own,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        let (source, target) = (self.slots[from].store().await?, self.slots[to].store().await?);
        // A guard relies on its lease, and a post belongs to what is copied: neither may be committed after the copy has begun.
        while !bounded(source.callers_have_ended()).await? {
            own.awaits_callers.store(true, Ordering::Relaxed);
            sleep(CALLERS_PAUSE).await;
        }
        own.awaits_callers.store(false, Ordering::Relaxed);
        // How much more the target's clock shows: read later, it shows no less for that, so no lease ends early.
        let before = bounded(source.read_record()).await?.now;
        let after = bounded(target.read_record()).await?.now.plus_ms(1);
        let by_ms = after.as_ms().cast_signed() - before.as_ms().cast_signed();
        if !bounded(copy_documents(&*target, &*source, epoch)).await? {
            return Ok(None);
        }
        let (mut copied, mut unreadable) = (0, 0);
        let mut page = bounded(dump_page(&*source, None, PAGE)).await?;
        loop {
            copied += page.items.len() as u64;
            unreadable += page.unreadable.len() as u64;
            for name in &page.unreadable {
                tracing::error!(engine = %self.slots[from].spec.name, name, "it cannot be decoded, and is not copied");
            }
            let write = bounded(write_page(&*target, epoch, page.items, by_ms, copied));
            let Some(position) = page.next else {
                return Ok(write.await?.then_some((copied, unreadable)));
            };
            let (is_written, following) = join(write, bounded(dump_page(&*source, Some(&position), PAGE))).await;
            if !is_written? {
                return Ok(None);
            }
            own.copied.fetch_max(copied, Ordering::Relaxed);
            page = following?;
        }
    }
}

pub(super) async fn bounded<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(PAGE_PATIENCE, answer).await.unwrap_or_else(|_| Err(no_answer()))
}
