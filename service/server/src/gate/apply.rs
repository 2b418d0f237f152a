//! The gate's rules meet a store: load, step, compare and set, and again if another caller was faster.

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{Command, Durability, OperationAddress, OperationRecord, Outcome, Stamp, step};
use lru::LruCache;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument as _;

use crate::observe::metrics::{Durations, Histogram};
use crate::observe::traces;
use crate::store::StoreError;
use crate::store::engine_record::Purpose;
use crate::store::gate::{At, Change, Fence, GateStore, ListError, Listing, Page, Stored, Write, Written};
use crate::store::store_clock::StoreClock;

/// How often a command is tried when other callers are faster. Each try that fails means that another caller was served.
const TRIES_MAX: usize = 64;
/// How many claims a node remembers. A record has 3 KiB at most before its post, unless contents are kept in it.
const CLAIMS_MAX: usize = 8_192;
/// How often a read is tried when the store does not answer: a connection may have died since it was last used.
const READ_TRIES_MAX: usize = 2;

/// The gate on one store.
pub struct Gate {
    store: Arc<dyn GateStore>,
    clock: StoreClock,
    /// How long the store may take for a command, all its calls together.
    command_max: Duration,
    call_seconds: Durations,
    /// What this node has claimed last: a post or a heartbeat begins with it, without a load. That is safe because a replacement checks
    /// the version, and no answer is given from it alone.
    claims: Mutex<LruCache<OperationAddress, Stored>>,
}

/// When a command must be answered.
#[derive(Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    /// What a call gave, if it came in time.
    async fn bound<T>(self, call: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.0, call).await.ok()
    }
}

/// The outcome of a command, and the store's clock at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub outcome: Outcome,
    pub now: Timestamp,
    /// The record afterwards; none after the first claim of an operation.
    pub record: Option<OperationRecord>,
    /// How long the caller has waited for an attempt to end.
    pub waited: Duration,
    /// The store may lose what it has acknowledged.
    pub is_volatile: bool,
}

/// A stamp that cannot be guessed.
pub fn fresh_stamp() -> Stamp {
    Stamp::from_bits(rand::random())
}

impl Gate {
    pub fn new(store: Arc<dyn GateStore>, command_max: Duration) -> Self {
        let claims = LruCache::new(NonZeroUsize::new(CLAIMS_MAX).unwrap_or(NonZeroUsize::MIN));
        let (clock, call_seconds) = (StoreClock::default(), Durations::default());
        Self { store, clock, command_max, call_seconds, claims: Mutex::new(claims) }
    }

    pub fn store(&self) -> &dyn GateStore {
        &*self.store
    }

    /// How long calls took that read or write a record.
    pub fn call_seconds(&self) -> &Histogram {
        &self.call_seconds
    }

    /// Applies a command to an operation. The outcome is of a record that was stored, or that was read after the command
    /// arrived.
    ///
    /// # Errors
    /// When the store does not answer in time; `EpochOver` if it refuses the fence; `OutcomeUnknown` if the command
    /// may have been stored all the same: the caller can repeat it with the same attempt id or stamp.
    pub async fn apply(
        &self,
        fence: Fence,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<Reply, StoreError> {
        let deadline = self.deadline();
        let is_own = |stored: &Stored| match command {
            Command::Await { .. }
            | Command::Resolve(_)
            | Command::Post(_)
            | Command::Heartbeat { .. }
            | Command::Forget { .. } => self.has(&stored.record),
            _ => true,
        };
        let look = async || self.load(fence, address, deadline).await.map(|seen| seen.filter(is_own));
        let mut seen = self.claimed(address);
        // A pre is mostly the first of its id: it claims without looking.
        let mut has_looked = false;
        match command {
            Command::Pre(_) => seen = None,
            Command::Post(_) | Command::Heartbeat { .. } if seen.is_some() => {}
            _ => (seen, has_looked) = (look().await?, true),
        }
        for _ in 0..TRIES_MAX {
            let now = self.now(deadline).await?;
            let before = seen.as_ref().map(|stored| stored.record.clone());
            let step = step(before, command.clone(), now);
            if !step.changed && !has_looked {
                // During a hold-off, a pre may be refused because there is no record.
                seen = look().await?;
                has_looked = true;
                continue;
            }
            if !step.changed {
                return Ok(self.reply(step.outcome, now, step.record));
            }
            has_looked = true;
            if seen.is_none() && step.record.is_none() {
                return Ok(self.reply(step.outcome, now, None));
            }
            let expected = seen.as_ref().map(|stored| stored.version);
            let change = Change { expected, record: step.record.as_ref(), wakes: step.wakes };
            match self.write(Write { fence, now, address, change }, deadline).await {
                Ok(Written::Done(_)) if seen.is_some() => return self.answer_in_time(step.outcome, step.record),
                Ok(Written::Done(version)) => {
                    if let Some(record) = step.record {
                        self.remember(address, Stored { version, record });
                    }
                    return self.answer_in_time(step.outcome, None);
                }
                Ok(Written::Exists(stored)) => seen = Some(*stored),
                Ok(Written::Moved) => seen = look().await?,
                Ok(Written::ClockOff) => {}
                Err(StoreError::OutcomeUnknown(reason)) => {
                    return self.look_whether_done(fence, address, command, reason, deadline).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Contended("for this operation"))
    }

    /// The record of an operation that counts: not one whose time is over, nor one that was forgotten.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn get(
        &self,
        fence: Fence,
        address: &OperationAddress,
    ) -> Result<At<Option<OperationRecord>>, StoreError> {
        let deadline = self.deadline();
        let stored = self.load(fence, address, deadline).await?;
        let now = self.now(deadline).await?;
        let counts = |record: &OperationRecord| record.is_visible() && !record.is_gone(now) && self.has(record);
        let record = stored.map(|stored| stored.record).filter(counts);
        Ok(At { now, answer: record })
    }

    /// # Errors
    /// When the store does not answer, or the cursor is none of its own.
    pub async fn list(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        let listed = self.deadline().bound(self.store.list(listing)).await;
        listed.unwrap_or_else(|| Err(timed_out().into()))
    }

    /// Removes a record that cannot be decoded; returns whether there was one.
    ///
    /// # Errors
    /// When the store does not answer, or refuses the fence.
    pub async fn discard(&self, fence: Fence, address: &OperationAddress) -> Result<bool, StoreError> {
        let discarded = self.deadline().bound(self.store.discard(fence, address)).await;
        discarded.unwrap_or_else(|| Err(write_timed_out()))
    }

    /// Removes at most `limit` records whose time is over; returns how many went.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        let expired = self.deadline().bound(self.store.expire(limit)).await;
        expired.unwrap_or_else(|| Err(timed_out()))
    }

    /// The store's clock by this node's estimate; 0 before the store has answered once.
    pub fn clock_now(&self) -> Timestamp {
        self.clock.now().unwrap_or_default()
    }

    /// The store's clock, read anew.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn read_now(&self) -> Result<Timestamp, StoreError> {
        let ping = self.deadline().bound(self.store.ping()).await;
        ping.unwrap_or_else(|| Err(timed_out()))
    }

    /// Whether a record counts here. The second store has copies that a switch has left behind, which are not the durable
    /// operations' own.
    fn has(&self, record: &OperationRecord) -> bool {
        self.store.purpose() != Purpose::Durable || record.durability == Durability::Durable
    }

    /// What this node has claimed, once.
    fn claimed(&self, address: &OperationAddress) -> Option<Stored> {
        self.claims.lock().pop(address)
    }

    fn remember(&self, address: &OperationAddress, stored: Stored) {
        // Contents would take more memory than a load of the record takes time.
        if stored.record.description.as_ref().is_some_and(|description| description.contents.is_some()) {
            return;
        }
        self.claims.lock().put(address.clone(), stored);
    }

    fn deadline(&self) -> Deadline {
        Deadline(Instant::now() + self.command_max)
    }

    /// The store's clock by this node's estimate; reads it when there is none yet.
    async fn now(&self, deadline: Deadline) -> Result<Timestamp, StoreError> {
        if let Some(now) = self.clock.now() {
            return Ok(now);
        }
        let sent = Instant::now();
        let now = deadline.bound(self.store.ping()).await.unwrap_or_else(|| Err(timed_out()))?;
        self.clock.learn((0, 0), now, sent, Instant::now());
        Ok(self.clock.now().unwrap_or(now))
    }

    async fn load(
        &self,
        fence: Fence,
        address: &OperationAddress,
        deadline: Deadline,
    ) -> Result<Option<Stored>, StoreError> {
        let mut failure = timed_out();
        for _ in 0..READ_TRIES_MAX {
            match self.timed(deadline, self.store.load(fence, address)).await {
                Some(Ok(stored)) => return Ok(stored),
                Some(Err(error)) => failure = error,
                None => break,
            }
        }
        Err(failure.of_reading())
    }

    async fn write(&self, write: Write<'_>, deadline: Deadline) -> Result<Written, StoreError> {
        let written = self.timed(deadline, self.store.write(write)).await;
        written.unwrap_or_else(|| Err(write_timed_out()))
    }

    /// Awaits an answer within its bounds and learns the store's clock from it; None when it did not come in time.
    async fn timed<T>(
        &self,
        deadline: Deadline,
        call: impl Future<Output = Result<At<T>, StoreError>>,
    ) -> Option<Result<T, StoreError>> {
        let sent = Instant::now();
        let answer = deadline.bound(call.instrument(traces::call("gate"))).await;
        self.call_seconds.observe(sent.elapsed().as_secs_f64());
        let answer = answer?;
        Some(answer.map(|at| {
            self.clock.learn((0, 0), at.now, sent, Instant::now());
            at.answer
        }))
    }

    /// A write's answer was lost. It is not written again, but if it is there after all, it is acknowledged.
    async fn look_whether_done(
        &self,
        fence: Fence,
        address: &OperationAddress,
        command: &Command,
        reason: String,
        deadline: Deadline,
    ) -> Result<Reply, StoreError> {
        let unknown = || StoreError::OutcomeUnknown(reason.clone());
        let seen = self.load(fence, address, deadline).await.map_err(|_| unknown())?;
        let now = self.now(deadline).await.map_err(|_| unknown())?;
        let step = step(seen.map(|stored| stored.record), command.clone(), now);
        if step.changed { Err(unknown()) } else { Ok(self.reply(step.outcome, now, step.record)) }
    }

    /// A go counts for what is left of its lease when it is answered, not when it was stored.
    fn answer_in_time(&self, mut outcome: Outcome, record: Option<OperationRecord>) -> Result<Reply, StoreError> {
        let now = self.clock.now().unwrap_or_default();
        if let Outcome::Go(go) = &mut outcome {
            // The estimate of the clock may have gone back by a ms: no lease is longer than requested.
            go.remaining_ms = go.lease_until.ms_since(now).min(go.remaining_ms);
            if go.remaining_ms == 0 {
                let reason = "the lease passed before the answer".to_owned();
                return Err(StoreError::OutcomeUnknown(reason));
            }
        }
        Ok(self.reply(outcome, now, record))
    }

    pub(super) fn reply(&self, outcome: Outcome, now: Timestamp, record: Option<OperationRecord>) -> Reply {
        Reply { outcome, now, record, waited: Duration::ZERO, is_volatile: !self.store.is_durable() }
    }
}

fn timed_out() -> StoreError {
    StoreError::Unavailable("it did not answer in time".to_owned())
}

fn write_timed_out() -> StoreError {
    StoreError::OutcomeUnknown("it did not answer in time".to_owned())
}
