//! What an operator orders: a switch to the other engine, and hold-offs.

use std::fmt;
use std::sync::Arc;

use latchgate_core::Timestamp;
use serde::Deserialize;
use tokio::time::{Duration, Instant, sleep};
use utoipa::ToSchema;

use super::copy::bounded;
use super::copying::Copying;
use super::decide::{emptied, given_up, last_of, may_be_given_up};
use super::pair::{CALLERS, EngineSet, Inner, POLL_SOON, Poll};
use crate::store::StoreError;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use crate::store::store_clock::{JUMP_MS_MIN, Jump};

/// What has engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnginesOf {
    #[default]
    Locks,
    Gate,
}

impl EnginesOf {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Gate => "gate",
        }
    }
}

/// A switch as an operator orders it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchOrder {
    /// The engine to use; `None`: the one that is not active.
    pub to: Option<String>,
    /// The active engine is stopped and stays so until every node reaches the other one: the operator vouches for that.
    pub is_stopped: bool,
    /// Grant at once, though leases of the engine that was left may be missing.
    pub force: bool,
}

/// The detail of an audit record.
impl fmt::Display for SwitchOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = self.to.as_deref().unwrap_or("the other one");
        write!(f, "engine: {engine}, stopped: {}, force: {}", self.is_stopped, self.force)
    }
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderFailure {
    #[error("no engine of this name is in --locks or --gate")]
    UnknownEngine,
    #[error("there is one engine, and no other to switch to")]
    OneEngine,
    /// The engine does not answer, or refuses the change of its record: why.
    #[error("{0}")]
    NoAnswer(String),
    #[error(
        "{0} does not answer, and may still serve other nodes: make sure that it is stopped, and say so with `stopped`"
    )]
    InDoubt(String),
    #[error("{0} answers, so it is not stopped")]
    NotStopped(String),
    #[error("{0}")]
    GivenUp(String),
    #[error("the engine records keep changing")]
    Contended,
    #[error("an order only lowers the longest lease, which is {0} ms, and not below --ttl-max of this node")]
    NotLower(u64),
}

/// Tries of one order.
const TRIES: usize = 20;
/// How long an order waits for the transactions of callers. A copy would wait for them too, with the engine frozen, and be given up.
const CALLERS_MAX: Duration = Duration::from_secs(5);

impl EngineSet {
    /// Makes all nodes use another engine. Returns when this node uses it.
    ///
    /// # Errors
    /// Says why the engine is not in use within `patience`; an order that was given goes on all the same.
    pub async fn switch(&self, order: &SwitchOrder, patience: Duration) -> Result<(), OrderFailure> {
        let inner = &self.inner;
        if !order.is_stopped {
            self.await_callers(order).await?;
        }
        let (to, epoch) = inner.give(order).await?;
        let Some(to) = to else { return Ok(()) };
        let until = Instant::now() + patience;
        loop {
            let mut poll = inner.poll_lock.lock().await;
            inner.poll_records(&mut poll).await;
            let given_up = poll.given_up;
            drop(poll);
            let in_use = self.in_use().ok();
            match in_use {
                Some(in_use) if in_use.index == to && in_use.epoch >= epoch => return Ok(()),
                // The copy was given up.
                Some(in_use) if in_use.epoch > epoch => {
                    let name = inner.slots[to].spec.name.clone();
                    let why = if given_up.is_empty() { "the copy was given up" } else { given_up };
                    return Err(OrderFailure::GivenUp(format!("{name} did not take the copy: {why}")));
                }
                _ if Instant::now() > until => {
                    let trouble = self.view().trouble.unwrap_or_default();
                    return Err(OrderFailure::GivenUp(format!("the switch is not complete yet: {trouble}")));
                }
                _ => sleep(POLL_SOON).await,
            }
        }
    }

    /// Waits until no transaction of a caller relies on the engine in use.
    ///
    /// # Errors
    /// `GivenUp` if one stays open.
    async fn await_callers(&self, order: &SwitchOrder) -> Result<(), OrderFailure> {
        let Ok(used) = self.in_use() else { return Ok(()) };
        if order.to.as_ref().is_some_and(|to| *to == self.inner.slots[used.index].spec.name) {
            return Ok(());
        }
        let until = Instant::now() + CALLERS_MAX;
        // An engine that does not answer is the business of the order.
        while !bounded(used.store.callers_have_ended()).await.unwrap_or(true) {
            if Instant::now() > until {
                return Err(OrderFailure::GivenUp(format!("nothing was changed: {CALLERS}")));
            }
            sleep(POLL_SOON).await;
        }
        Ok(())
    }

    /// Begins, shortens, extends or, with 0, ends a hold-off of the engine in use; `None`: of the longest lease allowed. Returns how
    /// long it lasts for locks, and for operations, in ms.
    ///
    /// # Errors
    /// When the active engine does not answer.
    pub async fn order_hold_off(&self, for_ms: Option<u64>) -> Result<(u64, u64), OrderFailure> {
        self.inner
            .change_active(|record, now| {
                let longest = record.held_off(record.ttl_ms_max, now).hold_off_until;
                // One that was ended does not return with a clock that is set back.
                let until = match for_ms {
                    None => longest,
                    Some(0) => Timestamp::default(),
                    Some(ms) => now.plus_ms(ms),
                };
                // When an operator ends a hold-off, grants say for how long leases may be missing.
                let ended = if until < record.hold_off_until { record.hold_off_until } else { Timestamp::default() };
                let forced_until = record.forced_until.max(ended);
                let (forced_until, operations_extra_ms) = match for_ms {
                    None => (forced_until, record.operations_more_ms),
                    // What is left for operations counts on as forced.
                    Some(0) => (forced_until, record.operations_extra_ms),
                    // This end is that for operations, too.
                    Some(_) if record.operations_held_until() > until => {
                        (forced_until.max(record.operations_held_until()), 0)
                    }
                    Some(_) => (forced_until, 0),
                };
                let next = EngineRecord { forced_until, operations_extra_ms, ..record.live_until(until, now) };
                next.held_because(record, "an operator has ordered it")
            })
            .await
            .map(|(record, now)| (record.hold_off_until.ms_since(now), record.operations_held_until().ms_since(now)))
    }

    /// Makes leases end later, because they seem to end too early by the jump: see [`EngineRecord::after_jump`]. Nothing is done if another
    /// node has done it.
    ///
    /// # Errors
    /// When the active engine does not answer.
    pub async fn note_jump(&self, jump: Jump) -> Result<(), StoreError> {
        let noted = |record: &EngineRecord, now: Timestamp| {
            let left_ms = jump.ms.saturating_sub(record.jumped_ms.saturating_sub(jump.before_ms));
            if left_ms <= JUMP_MS_MIN / 2 {
                return record.clone();
            }
            record.after_jump(left_ms, now)
        };
        let begun = self.inner.change_active(noted).await;
        begun.map(|_| ()).map_err(|failure| StoreError::Unavailable(failure.to_string()))
    }

    /// Begins an epoch in which all new tokens are higher than `token`, unless the present one is such.
    ///
    /// # Errors
    /// When the active engine does not answer.
    pub async fn begin_epoch_above(&self, token: u64) -> Result<(), StoreError> {
        let above = |record: &EngineRecord, _| EngineRecord {
            epoch: record.epoch.max(Epoch::above_token(token)),
            ..record.clone()
        };
        let begun = self.inner.change_active(above).await;
        begun.map(|_| ()).map_err(|failure| StoreError::Unavailable(failure.to_string()))
    }

    /// Lowers the length of hold-offs. The operator vouches that no longer lease is live. A node that allows longer leases raises it again.
    ///
    /// # Errors
    /// When the active engine does not answer, or its record has no higher number.
    pub async fn lower_ttl_max(&self, ttl_ms_max: u64) -> Result<(), OrderFailure> {
        let allowed_ms = ttl_ms_max.max(self.inner.ttl_ms_max);
        let lower =
            |record: &EngineRecord, _| EngineRecord { ttl_ms_max: allowed_ms.min(record.ttl_ms_max), ..record.clone() };
        let (record, _) = self.inner.change_active(lower).await?;
        if record.ttl_ms_max == ttl_ms_max { Ok(()) } else { Err(OrderFailure::NotLower(record.ttl_ms_max)) }
    }
}

impl Inner {
    /// Writes the records that begin the switch. Returns the engine to wait for, and from which epoch on.
    async fn give(self: &Arc<Self>, order: &SwitchOrder) -> Result<(Option<usize>, Epoch), OrderFailure> {
        let mut ordered = match &order.to {
            Some(name) => {
                Some(self.slots.iter().position(|slot| slot.spec.name == *name).ok_or(OrderFailure::UnknownEngine)?)
            }
            None => None,
        };
        for _ in 0..TRIES {
            let mut poll = self.poll_lock.lock().await;
            let readings = self.read_all(&mut poll).await;
            let active = Self::active(&poll, &readings);
            let to = match ordered {
                Some(to) => to,
                None => self.other_one(active, &readings)?,
            };
            // Once an engine of this order is active, it is not switched back.
            ordered = Some(to);
            let target = readings[to].as_ref().map_err(|_| self.no_answer(to))?;
            if active == Some(to) && !Self::is_in_doubt(to, &readings) {
                let epoch = target.epoch();
                if order.force {
                    drop(poll);
                    self.change_active(|record, _| record.forced()).await?;
                }
                return Ok((None, epoch));
            }
            if let Some(epoch) = self.begin_order(&mut poll, order, active, to, &readings).await? {
                return Ok((Some(to), epoch));
            }
            self.poll_records(&mut poll).await;
            drop(poll);
            sleep(POLL_SOON).await;
        }
        Err(OrderFailure::Contended)
    }

    /// The engine that an order means that names none.
    fn other_one(
        &self,
        active: Option<usize>,
        readings: &[Result<Reading, StoreError>],
    ) -> Result<usize, OrderFailure> {
        match active {
            _ if self.slots.len() < 2 => Err(OrderFailure::OneEngine),
            // The only one that answers is to go on.
            Some(active) if Self::is_in_doubt(active, readings) => Ok(active),
            Some(active) => Ok(1 - active),
            // A copy is under way, or the active engine does not answer.
            None => {
                let filling = |reading| Self::state(reading) == Some(EngineState::Filling);
                let to = readings.iter().position(filling).or_else(|| readings.iter().position(Result::is_ok));
                to.ok_or_else(|| self.no_answer(0))
            }
        }
    }

    /// Makes the change with which the switch to an engine begins. Returns its epoch; `None` if the records have to be looked at first.
    async fn begin_order(
        &self,
        poll: &mut Poll,
        order: &SwitchOrder,
        active: Option<usize>,
        to: usize,
        readings: &[Result<Reading, StoreError>],
    ) -> Result<Option<Epoch>, OrderFailure> {
        let Ok(target) = &readings[to] else { return Err(self.no_answer(to)) };
        let from = 1 - to;
        if let Some(record) = target.record.as_ref().filter(|_| target.is(EngineState::Moving) && active.is_none()) {
            // If it is not sure that the copy was not left for the other engine, an operator must say that this is stopped. What was
            // copied may be out of date then, and is not used.
            if readings[from].is_ok() || may_be_given_up(record, self.known(poll)) {
                return self.give_up(poll, to, target, record).await;
            }
        }
        let is_copied = |retired: &Reading, filling: &Reading| {
            retired.is(EngineState::Retired) && filling.is(EngineState::Filling) && retired.epoch() == filling.epoch()
        };
        match &readings[from] {
            // One of the engines becomes active first, or this one is to be retired first: the next poll settles it.
            Ok(source) if is_copied(source, target) || is_copied(target, source) => Ok(None),
            Ok(source)
                if target.is(EngineState::Moving)
                    || source.is(EngineState::Moving) && !target.is(EngineState::Filling) =>
            {
                Ok(None)
            }
            Ok(_) if order.is_stopped => Err(OrderFailure::NotStopped(self.name(from))),
            // It is to be one of the pair first: the next polls see to it.
            Ok(source) if source.record.as_ref().is_some_and(|record| record.pair.is_empty()) => Ok(None),
            Ok(source) if source.is(EngineState::Moving) => Ok(Some(source.epoch())),
            Ok(source) => self.begin(poll, (from, source), (to, target)).await,
            Err(_) if !order.is_stopped => Err(OrderFailure::InDoubt(self.name(from))),
            Err(_) if active == Some(to) => self.go_on(poll, (to, target), order.force).await,
            Err(_) => self.abandon(poll, (to, target), order.force).await,
        }
    }

    /// Empties the target, then freezes the source: from there on any node goes on. `None`: another node was faster.
    async fn begin(
        &self,
        poll: &mut Poll,
        (from, source): (usize, &Reading),
        (to, target): (usize, &Reading),
    ) -> Result<Option<Epoch>, OrderFailure> {
        // One that was left for an engine that has lost its data since is not copied: leases are missing there.
        let is_active = source.is(EngineState::Active) && source.epoch() >= poll.epoch;
        // Another order has begun the same switch. To begin again with the target could empty it after it has got all states.
        let is_begun = is_active && target.is(EngineState::Filling) && target.epoch() > source.epoch();
        // It has got states already, so the source was frozen: what was read of that is old, or it has lost its last record.
        if is_begun && target.copied > 0 {
            let now = self.slots[from].read(self.patience).await.map_err(|error| self.failed(from, &error))?;
            if now.revision != source.revision {
                return Ok(None);
            }
        }
        let is_begun = is_begun && target.copied == 0;
        let epoch = if is_begun && !target.is_after_fail_over {
            target.epoch()
        } else {
            poll.epoch.max(source.epoch()).max(target.epoch()).next(source.now.max(target.now))
        };
        let known_ms = source.record.as_ref().map_or(0, |record| record.ttl_ms_max);
        if !self.fill(poll, (to, target), epoch, known_ms).await? {
            return Ok(None);
        }
        let Some(record) = source.record.as_ref().filter(|_| is_active) else {
            // Neither engine is active: nothing is copied. From here on the other one cannot become active any more.
            let none = self.known(poll).first_record(EngineState::Standby, epoch, &self.pair);
            let standby = source.record.as_ref().map_or(none, |record| record.with_state(EngineState::Standby, epoch));
            let is_written = self.slots[from].write(self.patience, source, &standby).await;
            if !is_written.map_err(|error| self.failed(from, &error))? {
                return Ok(None);
            }
            return self.activate(poll, to, epoch, false).await;
        };
        poll.copying = Some(Copying::new(epoch, true));
        poll.given_up = "";
        let frozen =
            self.slots[from].change(self.patience, source, &record.with_state(EngineState::Moving, epoch)).await;
        Ok(frozen.map_err(|error| self.failed(from, &error))?.then_some(epoch))
    }

    /// The engine is being copied, and it is to stay active. `None`: another node was faster.
    async fn give_up(
        &self,
        poll: &Poll,
        to: usize,
        target: &Reading,
        record: &EngineRecord,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let next = given_up(target, record, self.known(poll));
        let written = self.slots[to].change(self.patience, target, &next).await;
        Ok(written.map_err(|error| self.failed(to, &error))?.then_some(next.epoch))
    }

    /// Whether an engine that is active, as its record says, may have forgotten in a fail-over that it was left for the other one, which does
    /// not answer.
    fn is_in_doubt(index: usize, readings: &[Result<Reading, StoreError>]) -> bool {
        let is_active = |reading: &Reading| reading.is(EngineState::Active) && reading.is_after_fail_over;
        readings[index].as_ref().is_ok_and(is_active) && readings.len() > 1 && readings[1 - index].is_err()
    }

    /// The other engine is stopped, and this one goes on after its fail-over. `None`: another node was faster.
    async fn go_on(
        &self,
        poll: &mut Poll,
        (to, target): (usize, &Reading),
        force: bool,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let Some(record) = &target.record else { return Ok(None) };
        // The other engine's clock may be ahead, and its epoch with it. So this epoch is as far ahead as that of an engine that is emptied.
        let epoch = record.epoch.max(poll.epoch).ahead_of(target.now);
        let held = EngineRecord { epoch, ..given_up(target, record, self.known(poll)) }.with_loss();
        let next = if force { held.forced() } else { held };
        let is_written = self.slots[to].write(self.patience, target, &next).await;
        let is_written = is_written.map_err(|error| self.failed(to, &error))?;
        if is_written {
            poll.epoch = next.epoch;
        }
        Ok(is_written.then_some(next.epoch))
    }

    /// The other engine is stopped: what this one held when it was left does not count.
    async fn abandon(
        &self,
        poll: &mut Poll,
        (to, target): (usize, &Reading),
        force: bool,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let left = target.record.as_ref().map_or(Epoch::NONE, last_of);
        let epoch = poll.epoch.max(left).ahead_of(target.now);
        if !self.fill(poll, (to, target), epoch, 0).await? {
            return Ok(None);
        }
        self.activate(poll, to, epoch, force).await
    }

    /// Empties an engine for an epoch, in which it may be filling already.
    async fn fill(
        &self,
        poll: &Poll,
        (to, target): (usize, &Reading),
        epoch: Epoch,
        known_ms: u64,
    ) -> Result<bool, OrderFailure> {
        let failed = |error: StoreError| self.failed(to, &error);
        let before_ms = target.record.as_ref().map_or(0, |record| record.ttl_ms_max);
        let ttl_ms_max = before_ms.max(known_ms).max(self.known(poll).lease_ms_max());
        let before_ms = target.record.as_ref().map_or(0, |record| record.operations_more_ms);
        let filling = EngineRecord {
            operations_more_ms: before_ms.max(self.known(poll).operations_more_ms),
            ..EngineRecord::new(EngineState::Filling, epoch, &self.pair, ttl_ms_max)
        };
        let is_filling = target.is(EngineState::Filling) && target.epoch() == epoch;
        if !is_filling && !self.slots[to].write(self.patience, target, &filling).await.map_err(failed)? {
            return Ok(false);
        }
        let store = self.slots[to].store().await.map_err(failed)?;
        bounded(store.clear(epoch)).await.map_err(failed)
    }

    /// Makes an emptied engine active, with a hold-off.
    async fn activate(
        &self,
        poll: &mut Poll,
        to: usize,
        epoch: Epoch,
        force: bool,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let failed = |error: StoreError| self.failed(to, &error);
        let reading = self.slots[to].read(self.patience).await.map_err(failed)?;
        let Some(record) = reading.record.as_ref().filter(|_| reading.epoch() == epoch) else { return Ok(None) };
        let held = emptied(record, reading.now, self.known(poll));
        let record = if force { held.forced() } else { held };
        let is_written = self.slots[to].write(self.patience, &reading, &record).await.map_err(failed)?;
        if is_written {
            // The operator has vouched for it to this node, so it need not read the engine that was left.
            poll.epoch = epoch;
        }
        Ok(is_written.then_some(epoch))
    }

    /// Changes the record of the active engine and begins a new epoch with it.
    async fn change_active(
        self: &Arc<Self>,
        change: impl Fn(&EngineRecord, Timestamp) -> EngineRecord,
    ) -> Result<(EngineRecord, Timestamp), OrderFailure> {
        for _ in 0..TRIES {
            let mut poll = self.poll_lock.lock().await;
            let readings = self.read_all(&mut poll).await;
            let active = Self::active(&poll, &readings);
            let Some((index, Ok(reading))) = active.map(|index| (index, &readings[index])) else {
                return Err(self.no_answer(0));
            };
            let Some(record) = &reading.record else { return Err(self.no_answer(index)) };
            let next = change(record, reading.now);
            if next == *record {
                return Ok((next, reading.now));
            }
            let next = next.with_state(EngineState::Active, next.epoch.next(reading.now));
            let written = self.slots[index].change(self.patience, reading, &next).await;
            let is_written = written.map_err(|error| self.failed(index, &error))?;
            self.poll_records(&mut poll).await;
            if is_written {
                return Ok((next, reading.now));
            }
        }
        Err(OrderFailure::Contended)
    }

    /// The active engine. An engine that was left while it was stopped may be back, and not be retired yet.
    fn active(poll: &Poll, readings: &[Result<Reading, StoreError>]) -> Option<usize> {
        let epoch = |reading: &Result<Reading, StoreError>| {
            let reading = reading.as_ref().ok().filter(|reading| reading.is(EngineState::Active))?;
            Some(reading.epoch()).filter(|epoch| *epoch >= poll.epoch)
        };
        let active = readings.iter().enumerate().filter_map(|(index, reading)| Some((epoch(reading)?, index)));
        active.max().map(|(_, index)| index)
    }

    fn name(&self, index: usize) -> String {
        self.slots[index].spec.name.clone()
    }

    fn no_answer(&self, index: usize) -> OrderFailure {
        OrderFailure::NoAnswer(format!("{} does not answer", self.name(index)))
    }

    fn failed(&self, index: usize, error: &StoreError) -> OrderFailure {
        tracing::warn!(engine = %self.slots[index].spec.name, %error, "an order could not be carried out");
        OrderFailure::NoAnswer(format!(
            "the engine record of {} cannot be changed: {}",
            self.name(index),
            error.reason()
        ))
    }
}
