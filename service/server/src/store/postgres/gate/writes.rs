//! Claims and replacements: those that come while others are being written go together into the next statement, so that many
//! share one commit.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use latchgate_core::gate::{OperationAddress, OperationRecord, State};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use parking_lot::Mutex;
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::busy::{Busy, Turn};
use super::{CHANNEL, bind_fence, is_in_force, read_stored, read_timestamp, statements};
use crate::store::engine_record::Purpose;
use crate::store::gate::{At, Fence, Stored, Write, Written, fresh_version, is_off};
use crate::store::postgres::faults;
use crate::store::postgres::sessions::Sessions;
use crate::store::wake_ups::pack_operation;
use crate::store::{StoreError, Version};

/// Statements of one node under way at once.
const STATEMENTS_MAX: usize = 2;
/// The second one begins when the first has been under way for so long: it waits for a row, or commits take long. Otherwise what comes
/// meanwhile goes together into the next one: one commit for twice as many.
const SLOW: Duration = Duration::from_millis(4);
/// Records in one statement.
const RECORDS_MAX: usize = 256;
/// Bytes of the records in one statement; one record may have more.
const BYTES_MAX: usize = 1 << 20;
/// Statements of one record that are under way at once, after one of many has waited too long for a row.
const ALONE_AT_ONCE: usize = 8;
/// If all callers have gone after so long, the connection was most likely dead.
const DEAD_AFTER: Duration = Duration::from_millis(200);

/// A record to be written, if it is absent or has the version that it replaces.
pub(super) struct Encoded {
    fence: Fence,
    /// The caller's estimate of the store's clock.
    now: Timestamp,
    address: OperationAddress,
    /// `None`: a claim.
    replaces: Option<Version>,
    version: Version,
    operation: String,
    state: State,
    is_suspect: bool,
    goes_at: Option<i64>,
    /// The record in JSON.
    record: String,
    wake_up: Option<String>,
}

type Answer = Result<At<Written>, StoreError>;

struct Waiting {
    write: Encoded,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// How many tasks write what waits.
    tasks: usize,
    /// How many of them have a statement under way that is slow.
    slow: usize,
}

/// Writes of one node with the engine record of one purpose.
pub(super) struct Writer {
    sessions: Sessions,
    purpose: Purpose,
    queue: Mutex<Queue>,
    /// Operations that do not share statements.
    busy: Busy,
}

impl Encoded {
    /// # Errors
    /// When the record cannot be encoded.
    pub(super) fn new(write: &Write<'_>, record: &OperationRecord) -> Result<Self, StoreError> {
        let Write { fence, now, address, change } = write;
        let text = serde_json::to_string(record).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self {
            fence: *fence,
            now: *now,
            address: (*address).clone(),
            replaces: change.expected,
            version: fresh_version(),
            operation: record.operation.as_str().to_owned(),
            state: record.state(),
            is_suspect: record.is_suspect(),
            goes_at: record.goes_at().map(|at| i64::try_from(at.as_ms()).unwrap_or(i64::MAX)),
            record: text,
            wake_up: change.wakes.then(|| pack_operation(address)),
        })
    }
}

impl Queue {
    /// The writes of the next statement: with one fence, and for each address either claims or one replacement.
    fn take(&mut self) -> Vec<Waiting> {
        let mut taken: Vec<Waiting> = Vec::new();
        let mut are_claims: HashMap<OperationAddress, bool> = HashMap::new();
        let mut bytes = 0;
        let mut left = VecDeque::new();
        while let Some(waiting) = self.waiting.pop_front() {
            // Its caller has gone, and nothing was sent.
            if waiting.answer.is_closed() {
                continue;
            }
            let write = &waiting.write;
            let fits = taken
                .first()
                .is_none_or(|first| first.write.fence == write.fence && bytes + write.record.len() <= BYTES_MAX);
            let is_claim = write.replaces.is_none();
            let may_join = are_claims.get(&write.address).is_none_or(|are_claims| *are_claims && is_claim);
            if fits && may_join {
                are_claims.insert(write.address.clone(), is_claim);
                bytes += write.record.len();
                taken.push(waiting);
            } else {
                left.push_back(waiting);
            }
            if taken.len() == RECORDS_MAX {
                break;
            }
        }
        left.append(&mut self.waiting);
        self.waiting = left;
        taken
    }
}

impl Writer {
    pub(super) fn new(sessions: Sessions, purpose: Purpose) -> Arc<Self> {
        Arc::new(Self { sessions, purpose, queue: Mutex::default(), busy: Busy::default() })
    }

    /// # Errors
    /// When the store does not answer, refuses the fence, or has a record there that cannot be read.
    pub(super) async fn write(self: &Arc<Self>, write: Encoded) -> Answer {
        match self.busy.turn(&write.address).await {
            Turn::Together => {}
            Turn::Alone(_turn) => return self.write_one(&write).await,
            Turn::Refused => return Err(faults::CONTENDED),
        }
        let (answer, answered) = oneshot::channel();
        self.push(Waiting { write, answer });
        answered.await.unwrap_or_else(|_| Err(StoreError::OutcomeUnknown("the write was not finished".to_owned())))
    }

    fn push(self: &Arc<Self>, waiting: Waiting) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(waiting);
        self.begin(&mut queue);
    }

    /// Begins a task for what waits, unless one will take it soon.
    fn begin(self: &Arc<Self>, queue: &mut Queue) {
        if !queue.waiting.is_empty() && queue.tasks == queue.slow && queue.tasks < STATEMENTS_MAX {
            queue.tasks += 1;
            tokio::spawn(Arc::clone(self).write_waiting());
        }
    }

    /// A task: writes until nothing waits.
    async fn write_waiting(self: Arc<Self>) {
        loop {
            let taken = {
                let mut queue = self.queue.lock();
                let taken = queue.take();
                if taken.is_empty() {
                    queue.tasks -= 1;
                    return;
                }
                taken
            };
            // After a panic, the callers of these writes do not know their outcome. The others go on.
            let mut writing = pin!(AssertUnwindSafe(self.write_all(taken)).catch_unwind());
            if timeout(SLOW, &mut writing).await.is_err() {
                {
                    let mut queue = self.queue.lock();
                    queue.slow += 1;
                    self.begin(&mut queue);
                }
                let _ = writing.await;
                let mut queue = self.queue.lock();
                queue.slow -= 1;
                // The other task takes what waits.
                if queue.tasks > queue.slow + 1 {
                    queue.tasks -= 1;
                    return;
                }
            }
        }
    }

    /// Writes all in one statement. If that has waited too long for a row, nothing was written: then each is written in a statement
    /// of its own, so that the others need not wait for that row.
    async fn write_all(self: &Arc<Self>, all: Vec<Waiting>) {
        let (writes, mut answers): (Vec<Encoded>, Vec<_>) =
            all.into_iter().map(|waiting| (waiting.write, waiting.answer)).unzip();
        let sent = Instant::now();
        // As if each caller had sent the statement: it ends when the last of them has gone.
        let written = tokio::select! {
            biased;
            written = self.write_together(&writes) => written,
            () = all_closed(&mut answers) => {
                // When one connection turns out to be dead, all idle ones may be.
                if sent.elapsed() > DEAD_AFTER {
                    self.sessions.forget_idle();
                }
                return;
            }
        };
        match written {
            Ok(given) => answers.into_iter().zip(given).for_each(|(answer, given)| drop(answer.send(given))),
            Err((_, true)) if writes.len() > 1 => {
                let each = writes.into_iter().zip(answers).map(|(write, answer)| Waiting { write, answer });
                tokio::spawn(Arc::clone(self).write_each(each.collect()));
            }
            Err((error, _)) => answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone())))),
        }
    }

    /// Writes each in a statement of its own. Each is answered as soon as it is written.
    async fn write_each(self: Arc<Self>, all: Vec<Waiting>) {
        let this = &self;
        let write = |Waiting { write, mut answer }: Waiting| async move {
            let writing = this.write_one(&write);
            tokio::select! {
                biased;
                () = answer.closed() => {}
                given = writing => drop(answer.send(given)),
            }
        };
        stream::iter(all).for_each_concurrent(ALONE_AT_ONCE, write).await;
    }

    /// A statement of its own.
    async fn write_one(&self, write: &Encoded) -> Answer {
        let written = self.write_together(std::slice::from_ref(write)).await;
        written.map_or_else(|(error, _)| Err(error), |mut given| given.swap_remove(0))
    }

    /// One statement. The error comes with whether other sessions were its reason, and nothing was written.
    async fn write_together(&self, writes: &[Encoded]) -> Result<Vec<Answer>, (StoreError, bool)> {
        // All statements take their row locks in the same order. Otherwise two of them could deadlock.
        let mut sorted: Vec<&Encoded> = writes.iter().collect();
        sorted.sort_unstable_by_key(|write| (write.address.app.as_str(), write.address.id.as_bytes()));
        let mut session = self.sessions.check_out().await.map_err(|error| (error, false))?;
        let fence = writes.first().map_or(Fence::None, |write| write.fence);
        let query = bind_fence(session.query(statements::WRITE), self.purpose, fence, session.knows_timeline())
            .bind(CLOCK_BOUND_MS.cast_signed())
            .bind(CHANNEL)
            .bind(sorted.iter().map(|write| write.address.app.as_str()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.address.id.as_bytes()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.now.as_ms().cast_signed()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.replaces.map(signed)).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| signed(write.version)).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.operation.as_str()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.state.as_str()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.is_suspect).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.goes_at).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.record.as_str()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|write| write.wake_up.as_deref()).collect::<Vec<_>>());
        let rows = query.fetch_all(&mut *session).await.and_then(|rows| read_rows(&rows));
        // Not of the server: each is then written in a statement of its own.
        let is_of_a_row = rows.as_ref().is_err_and(|error| faults::is_contention(error) || faults::is_of_a_row(error));
        if let [write] = writes {
            self.busy.note(&write.address, rows.as_ref().is_err_and(faults::is_lock_timeout));
        }
        let rows = session.written(rows).await.map_err(|error| (error, is_of_a_row))?;
        Ok(writes.iter().map(|write| rows.answer(write)).collect())
    }
}

async fn all_closed(answers: &mut [oneshot::Sender<Answer>]) {
    for answer in answers {
        answer.closed().await;
    }
}

fn signed(version: Version) -> i64 {
    version.number().cast_signed()
}

/// What a statement has answered.
struct Rows {
    now: Timestamp,
    is_in_force: bool,
    /// The versions that were not written, and the records that were there instead.
    not_written: Vec<(i64, Result<Option<Stored>, StoreError>)>,
}

fn read_rows(rows: &[PgRow]) -> Result<Rows, sqlx::Error> {
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let mut not_written = Vec::new();
    for row in rows {
        if let Some(version) = row.try_get::<Option<i64>, _>(2)? {
            not_written.push((version, read_stored(row, 3).map_err(|error| faults::of_read(&error))));
        }
    }
    Ok(Rows { now: read_timestamp(first)?, is_in_force: is_in_force(first)?, not_written })
}

impl Rows {
    fn answer(&self, write: &Encoded) -> Answer {
        if !self.is_in_force {
            return Err(StoreError::EpochOver);
        }
        let not_written = self.not_written.iter().find(|(version, _)| *version == signed(write.version));
        let Some((_, stored)) = not_written else { return Ok(At::new(self.now, Written::Done(write.version))) };
        let written = match stored.clone()? {
            // That a claim comes late changes nothing about the record that is there.
            Some(stored) => Written::Exists(Box::new(stored)),
            None if is_off(self.now, write.now) => Written::ClockOff,
            None => Written::Moved,
        };
        Ok(At::new(self.now, written))
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::App;
    use latchgate_core::gate::OperationId;

    use super::*;

    fn claim(id: u8, fence: Fence, bytes: usize) -> (Waiting, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let address = OperationAddress { app: App::default(), id: OperationId::from_bytes([id; 16]) };
        let write = Encoded {
            fence,
            now: Timestamp::default(),
            address,
            replaces: None,
            version: fresh_version(),
            operation: "pay".to_owned(),
            state: State::Started,
            is_suspect: false,
            goes_at: None,
            record: "x".repeat(bytes),
            wake_up: None,
        };
        (Waiting { write, answer }, answered)
    }

    fn ids(taken: &[Waiting]) -> Vec<u8> {
        taken.iter().map(|waiting| waiting.write.address.id.as_bytes()[0]).collect()
    }

    #[test]
    fn a_statement_has_one_fence_and_for_each_operation_claims_or_one_replacement() {
        let other = Fence::Active(crate::store::engine_record::Epoch::default());
        let replacement = |id: u8| {
            let (mut waiting, answered) = claim(id, Fence::None, 10);
            waiting.write.replaces = Some(fresh_version());
            (waiting, answered)
        };
        let mut queue = Queue::default();
        let (waiting, _answered): (VecDeque<_>, Vec<_>) = [
            claim(1, Fence::None, 10),
            replacement(2),
            claim(1, Fence::None, 10),
            replacement(1),
            replacement(2),
            claim(2, Fence::None, 10),
            claim(3, other, 10),
            claim(4, Fence::None, 10),
        ]
        .into_iter()
        .unzip();
        queue.waiting = waiting;
        assert_eq!(ids(&queue.take()), [1, 2, 1, 4]);
        assert_eq!(ids(&queue.take()), [1, 2]);
        assert_eq!(ids(&queue.take()), [2]);
        assert_eq!(ids(&queue.take()), [3]);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_statement_has_a_bounded_size_and_nothing_of_callers_that_have_gone() {
        let mut queue = Queue::default();
        let (writes, mut answered): (VecDeque<_>, Vec<_>) = [(1, BYTES_MAX + 1), (2, 1), (3, BYTES_MAX), (4, 1)]
            .map(|(id, bytes)| claim(id, Fence::None, bytes))
            .into_iter()
            .unzip();
        queue.waiting = writes;
        drop(answered.pop());
        assert_eq!(ids(&queue.take()), [1]);
        assert_eq!(ids(&queue.take()), [2]);
        assert_eq!(ids(&queue.take()), [3]);
        assert!(queue.take().is_empty());
        let (writes, _answered): (VecDeque<_>, Vec<_>) =
            (0..=255).map(|id| claim(id, Fence::None, 1)).chain([claim(0, Fence::None, 1)]).unzip();
        queue.waiting = writes;
        assert_eq!(queue.take().len(), RECORDS_MAX);
        assert_eq!(queue.take().len(), 1);
    }
}
