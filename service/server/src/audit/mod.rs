//! The audit: which operator or client did what to the service, from where, and how it ended. Each record goes to the log at once, and to
//! the store of the locks soon after: no action waits for that. While no store takes records, they wait in memory.

mod entry;
mod failures;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchgate_core::access::KeyId;
use latchgate_core::{App, Timestamp};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::entry::{Action, Doer, Entry, Record};
use self::failures::Failures;
use crate::access::Clock;
use crate::engines::{AuditPage, LockEngines};
use crate::store::{AuditPosition, AuditRecord, StoreError};

/// Most records that wait for the store. Further ones are only in the log, and counted.
const PENDING_MAX: usize = 4_096;
/// Failed authentications leave the rest of that to actions.
const PENDING_FAILURES_MAX: usize = 512;
/// Records of one write.
const BATCH_MAX: usize = 100;
/// How often failed authentications are recorded, each time as a few records with counts.
const FAILURES_EVERY: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const TRIM_EVERY: Duration = Duration::from_secs(60);
/// The store is asked for so many records at a time while a filter is applied, and so many times for one page.
const READ_AT_ONCE: usize = 1_000;
const READS_MAX: usize = 10;

/// How long records are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub age: Duration,
    /// Of each class.
    pub records_max: usize,
}

/// Which records a reader wants.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub app: Option<App>,
    pub action: Option<Action>,
}

/// A page of records, newest first.
pub struct Page {
    pub records: Vec<(Timestamp, Record)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<AuditPosition>,
    /// Engines that do not answer: their records are missing.
    pub missing: Vec<String>,
}

/// Clones share it.
#[derive(Clone)]
pub struct Audit {
    inner: Arc<Inner>,
    /// Ends the writer with the last handle.
    _running: Arc<DropGuard>,
}

struct Inner {
    engines: LockEngines,
    clock: Clock,
    pending: Mutex<Pending>,
    arrived: Notify,
    written: Notify,
}

#[derive(Default)]
struct Pending {
    records: VecDeque<AuditRecord>,
    failures: Failures,
    /// The position of this node's last record.
    last: Option<AuditPosition>,
    /// Records that found no room.
    lost: u64,
    /// The log says that no store takes records.
    is_reported: bool,
}

impl Audit {
    /// Writes records until the last handle is dropped. Without a `retention`, it deletes none.
    pub fn start(engines: LockEngines, clock: Clock, retention: Option<Retention>) -> Self {
        let inner = Arc::new(Inner {
            engines,
            clock,
            pending: Mutex::default(),
            arrived: Notify::new(),
            written: Notify::new(),
        });
        let running = CancellationToken::new();
        tokio::spawn(running.clone().run_until_cancelled_owned(write_on(Arc::clone(&inner))));
        if let Some(retention) = retention {
            tokio::spawn(running.clone().run_until_cancelled_owned(trim_on(Arc::clone(&inner), retention)));
        }
        Self { inner, _running: Arc::new(running.drop_guard()) }
    }

    /// An action begins. Its record is written when the entry ends, or with the outcome `unknown` when it is dropped.
    pub fn begin(&self, action: Action, doer: &Doer, target: &str) -> Entry {
        Entry::new(self.clone(), Record::new(action, doer, target))
    }

    /// A request had no valid API key.
    pub fn failed_authentication(
        &self,
        from: Option<IpAddr>,
        app: Option<App>,
        key_id: Option<KeyId>,
        why: &'static str,
    ) {
        self.inner.pending().failures.count(from, app, key_id, why);
    }

    /// The newest records that the filter lets through. A page may be short without being the last.
    ///
    /// # Errors
    /// When no engine of the locks answers.
    pub async fn page(&self, filter: &Filter, before: AuditPosition, limit: usize) -> Result<Page, StoreError> {
        let is_filtered = filter.app.is_some() || filter.action.is_some();
        let at_once = if is_filtered { READ_AT_ONCE } else { limit };
        let mut page = Page { records: Vec::new(), next: Some(before), missing: Vec::new() };
        for _ in 0..READS_MAX {
            let Some(before) = page.next else { break };
            let AuditPage { records, missing } = self.inner.engines.read_audit(before, at_once).await?;
            let is_last = records.len() < at_once;
            page.missing = missing;
            for AuditRecord { position, text, .. } in records {
                let record = Record::from_text(&text);
                page.next = Some(position);
                if filter.lets_through(&record) {
                    page.records.push((position.at, record));
                }
                if page.records.len() == limit {
                    return Ok(page);
                }
            }
            if is_last {
                page.next = None;
            }
        }
        Ok(page)
    }

    /// Waits until all records are written. Those that are not within `patience` are in the log alone, which says so.
    pub async fn close(&self, patience: Duration) -> usize {
        self.inner.enter_failures();
        let emptied = async {
            loop {
                let written = self.inner.written.notified();
                if self.inner.pending().records.is_empty() {
                    return;
                }
                self.inner.arrived.notify_one();
                written.await;
            }
        };
        let _ = timeout(patience, emptied).await;
        let left = self.inner.pending().records.len();
        if left > 0 {
            tracing::error!(records = left, "audit records were not written to the store: the log alone has them");
        }
        left
    }

    fn write(&self, record: &Record) {
        self.inner.enter(record, PENDING_MAX);
    }
}

impl Filter {
    fn lets_through(&self, record: &Record) -> bool {
        self.app.as_ref().is_none_or(|app| record.app.as_deref() == Some(app.as_str()))
            && self.action.is_none_or(|action| record.action == action.as_str())
    }
}

impl Inner {
    /// Logs a record, and queues it for the store.
    fn enter(&self, record: &Record, pending_max: usize) {
        record.log();
        let (class, text) = (record.class(), record.to_text());
        let mut pending = self.pending();
        let position = AuditPosition::after(pending.last, (self.clock)());
        pending.last = Some(position);
        let record = AuditRecord { position, class, text };
        if pending.records.len() >= pending_max {
            pending.lost += 1;
            return;
        }
        pending.records.push_back(record);
        drop(pending);
        self.arrived.notify_one();
    }

    fn enter_failures(&self) {
        let failures = self.pending().failures.take();
        for record in failures {
            self.enter(&record, PENDING_FAILURES_MAX);
        }
    }

    /// Writes the oldest pending records. Returns whether there were any, and the store took them.
    async fn write_some(&self) -> bool {
        let batch: Vec<AuditRecord> = self.pending().records.iter().take(BATCH_MAX).cloned().collect();
        if batch.is_empty() {
            return false;
        }
        let written = self.engines.write_audit(&batch).await;
        let mut pending = self.pending();
        match written {
            Ok(()) => {
                // Only this task takes records out.
                pending.records.drain(..batch.len());
                if std::mem::take(&mut pending.is_reported) {
                    tracing::info!("the store takes audit records again");
                }
                let lost = std::mem::take(&mut pending.lost);
                drop(pending);
                self.written.notify_waiters();
                if lost > 0 {
                    tracing::error!(
                        lost,
                        "audit records found no room while no store took them: the log alone has them"
                    );
                    self.enter(&Record::of_lost(lost), PENDING_MAX);
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut pending.is_reported, true) {
                    tracing::warn!(%error, "no store takes audit records: they wait in memory, and the log has them");
                }
                false
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write_on(inner: Arc<Inner>) {
    let mut failures_at = Instant::now() + FAILURES_EVERY;
    loop {
        let _ = tokio::time::timeout_at(failures_at, inner.arrived.notified()).await;
        if Instant::now() >= failures_at {
            failures_at = Instant::now() + FAILURES_EVERY;
            inner.enter_failures();
        }
        while inner.write_some().await {}
        if !inner.pending().records.is_empty() {
            sleep(RETRY_PAUSE).await;
            inner.arrived.notify_one();
        }
    }
}

async fn trim_on(inner: Arc<Inner>, retention: Retention) {
    let age_ms = u64::try_from(retention.age.as_millis()).unwrap_or(u64::MAX);
    loop {
        sleep(TRIM_EVERY).await;
        let older_than = Timestamp::from_ms((inner.clock)().as_ms().saturating_sub(age_ms));
        inner.engines.trim_audit(older_than, retention.records_max).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::LockStore;
    use crate::store::memory::MemoryStore;

    async fn audit() -> Audit {
        let store: Arc<dyn LockStore> = Arc::new(MemoryStore::default());
        let engines = LockEngines::alone(store).await.unwrap();
        Audit::start(engines, Arc::new(|| Timestamp::from_ms(1_000)), None)
    }

    fn doer() -> Doer {
        Doer { app: App::default(), key_id: None, from: None }
    }

    async fn outcomes(audit: &Audit) -> Vec<String> {
        assert_eq!(audit.close(Duration::from_secs(20)).await, 0);
        let page = audit.page(&Filter::default(), AuditPosition::END, 1_000).await.unwrap();
        page.records.into_iter().map(|(_, record)| record.outcome).collect()
    }

    #[tokio::test]
    async fn an_action_that_is_dropped_half_way_has_a_record() {
        let audit = audit().await;
        audit.begin(Action::Force, &doer(), "a").end("done");
        drop(audit.begin(Action::Force, &doer(), "b"));
        let mut outcomes = outcomes(&audit).await;
        outcomes.sort();
        assert_eq!(outcomes, ["done", "unknown"]);
    }

    #[tokio::test]
    async fn a_flood_of_failed_authentications_becomes_a_few_records() {
        let audit = audit().await;
        for number in 0..10_000_u32 {
            audit.failed_authentication(Some(IpAddr::from(number.to_be_bytes())), None, None, "unauthorized");
        }
        assert_eq!(outcomes(&audit).await.len(), 9);
        let page = audit.page(&Filter::default(), AuditPosition::END, 100).await.unwrap();
        let attempts: u64 = page.records.iter().map(|(_, record)| record.attempts.unwrap_or_default()).sum();
        assert_eq!(attempts, 10_000);
    }

    #[tokio::test]
    async fn records_that_find_no_room_are_counted() {
        let audit = audit().await;
        // No await: the writer cannot run meanwhile.
        for number in 0..PENDING_MAX + 7 {
            audit.begin(Action::Force, &doer(), &number.to_string()).end("done");
        }
        assert_eq!(audit.close(Duration::from_secs(20)).await, 0);
        let lost = Filter { action: Some(Action::AuditLost), ..Filter::default() };
        // The record of the loss is entered after the write that found room.
        loop {
            let page = audit.page(&lost, AuditPosition::END, 1).await.unwrap();
            if let Some((_, record)) = page.records.first() {
                assert_eq!(record.attempts, Some(7));
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
