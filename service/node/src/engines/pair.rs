//! One store, or a pair of which one is active, as a node uses it: it reads the records, and does what they ask for.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use latchgate_core::Timestamp;
use latchgate_core::gate::HoldOff;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use super::copying::Copying;
use super::decide::{self, Candidate, Change, Next, NodeMemory};
use super::slot::{EngineSpec, Slot, no_answer};
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading, Risk};
use crate::store::store_clock::suspended_ms;
use crate::store::{Store, StoreError};

/// How often a node reads the records while one engine serves, and while none does.
const POLL_EVERY: Duration = Duration::from_secs(1);
pub(super) const POLL_SOON: Duration = Duration::from_millis(25);
pub(super) const CALLERS: &str =
    "a transaction of a caller that has used latchgate.guard or latchgate.post is still open";
/// Changes that one poll makes at most.
const ROUNDS_MAX: usize = 16;
/// A node that was stopped for longer may have missed that the other engine was used.
const SLEPT_MIN: Duration = Duration::from_secs(3);
/// How long a node that starts waits for an engine to serve.
const START_MAX: Duration = Duration::from_secs(15);

/// The engine in use, as this node knows it. The engine itself refuses what names another epoch.
pub struct EngineInUse {
    pub store: Arc<dyn Store>,
    pub index: usize,
    pub epoch: Epoch,
    pub hold_off_until: Timestamp,
    pub forced_until: Timestamp,
    /// See [`EngineRecord::operations_extra_ms`].
    pub operations_extra_ms: u64,
    /// See [`EngineRecord::late_ms`].
    late: (u64, Timestamp),
    /// See [`EngineRecord::operations_late_ms`].
    operations_late: (u64, Timestamp),
    pub(crate) jumped_ms: u64,
    /// See [`EngineRecord::since`] and [`EngineRecord::era`].
    pub(crate) since: Epoch,
    pub(crate) era: u64,
}

impl EngineInUse {
    /// The end of the hold-off, if it is still to come.
    pub fn hold_off(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.hold_off_until).filter(|until| *until > now)
    }

    /// The hold-off of operations, which may have longer leases than locks.
    pub fn hold_off_of_operations(&self) -> HoldOff {
        let end = |at: Timestamp| if at == Timestamp::default() { at } else { at.plus_ms(self.operations_extra_ms) };
        HoldOff { until: end(self.hold_off_until), forced_until: end(self.forced_until) }
    }

    /// By how much leases end later than they say, in ms.
    pub fn late_ms(&self, now: Timestamp) -> u64 {
        if now < self.late.1 { self.late.0 } else { 0 }
    }

    /// As [`EngineInUse::late_ms`], for operations.
    pub fn operations_late_ms(&self, now: Timestamp) -> u64 {
        if now < self.operations_late.1 { self.operations_late.0 } else { 0 }
    }

    /// Which clock the engine has, to [`learn`](crate::store::store_clock::StoreClock::learn) of it.
    pub fn clock(&self) -> (usize, u64) {
        (self.index, self.jumped_ms)
    }
}

/// An open engine that is not in use.
pub struct Other {
    pub name: String,
    pub store: Arc<dyn Store>,
    /// What this node read last in its record.
    pub record: Option<(EngineState, Epoch)>,
}

/// One engine as this node saw it last.
#[derive(Clone, Debug)]
pub struct EngineView {
    pub name: String,
    pub kind: &'static str,
    /// The record, or why the engine does not answer.
    pub reading: Result<Reading, String>,
}

/// Both engines as this node saw them last.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub engines: Vec<EngineView>,
    /// Why no engine is in use.
    pub trouble: Option<String>,
}

/// One store, or a pair of which one is active. Clones share it.
pub struct EngineSet {
    pub(super) inner: Arc<Inner>,
    /// Ends the polls with the last handle.
    _running: Arc<DropGuard>,
}

impl Clone for EngineSet {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), _running: Arc::clone(&self._running) }
    }
}

pub(super) struct Inner {
    pub(super) slots: Vec<Slot>,
    /// The names in alphabetical order; empty for one store.
    pub(super) pair: Vec<String>,
    /// Longest time for an engine's answer.
    pub(super) patience: Duration,
    /// The longest lease that this node grants, in ms.
    pub(super) ttl_ms_max: u64,
    /// By how much operations may have longer leases, in ms.
    operations_more_ms: u64,
    in_use: watch::Sender<Option<Arc<EngineInUse>>>,
    view: watch::Sender<View>,
    /// One poll at a time.
    pub(super) poll_lock: tokio::sync::Mutex<Poll>,
    /// Something has happened that the next poll is to see at once.
    pub(super) changed: Notify,
}

/// What a node remembers between poll.
#[derive(Default)]
pub(super) struct Poll {
    /// The highest epoch in which it has used an engine.
    pub(super) epoch: Epoch,
    /// See [`NodeMemory::ttl_ms_seen`].
    ttl_ms_seen: u64,
    /// As the record in use said, see [`EngineRecord::operations_more_ms`].
    operations_more_seen: u64,
    /// When the last poll began, and [`suspended_ms`] then.
    began: Option<(Instant, f64)>,
    /// Since this node last used an engine it was stopped for some time: see [`NodeMemory::has_slept`].
    has_slept: bool,
    /// Which engines have answered since the node started.
    has_answered: [bool; 2],
    /// The copy that this node makes or follows.
    pub(super) copying: Option<Copying>,
    /// Why this node gave up the last copy.
    pub(super) given_up: &'static str,
    /// The last change of an engine that does not serve.
    chore: Option<(Change, AbortOnDropHandle<()>)>,
}

impl EngineSet {
    /// Finds out which engine is active, and keeps poll_lock. `patience` is the longest time for an engine's answer.
    ///
    /// # Errors
    /// Says why no engine can be used. An engine that cannot be opened at all fails here too, unless the other one serves.
    pub fn start(
        specs: Vec<EngineSpec>,
        patience: Duration,
        ttl_ms_max: u64,
    ) -> BoxFuture<'static, anyhow::Result<Self>> {
        Self::start_both(specs, patience, ttl_ms_max, ttl_ms_max)
    }

    /// As [`EngineSet::start`], with another length of the longest lease of an operation.
    ///
    /// # Errors
    /// See [`EngineSet::start`].
    pub fn start_both(
        specs: Vec<EngineSpec>,
        patience: Duration,
        ttl_ms_max: u64,
        operation_ttl_ms_max: u64,
    ) -> BoxFuture<'static, anyhow::Result<Self>> {
        async move {
            let operations_more_ms = operation_ttl_ms_max.saturating_sub(ttl_ms_max);
            let engines = Self::new(specs, patience, (ttl_ms_max, operations_more_ms), Poll::default());
            if let [only] = &engines.inner.slots[..] {
                // A poll does not wait until it is open, and does not keep the reason if that fails.
                only.store().await.map_err(|error| anyhow::anyhow!(error.reason()))?;
            }
            let mut failure = String::new();
            let started = Instant::now();
            while engines.in_use().is_err() {
                let View { engines: seen, trouble } = engines.view();
                let trouble = trouble.unwrap_or_else(|| "no engine answers".to_owned());
                let slots = &engines.inner.slots;
                let is_one_left_out = slots.iter().any(|slot| slot.spec.is_left_out);
                let have_others_answered = !seen.is_empty()
                    && slots.iter().zip(&seen).all(|(slot, engine)| slot.spec.is_left_out || engine.reading.is_ok());
                // A node without one engine may be what the operator has to talk to.
                if is_one_left_out && have_others_answered && !failure.is_empty() {
                    tracing::warn!(trouble, "no engine serves: an operator must switch to one");
                    break;
                }
                if started.elapsed() > START_MAX || (engines.inner.slots.len() == 1 && engines.is_hopeless()) {
                    anyhow::bail!("{trouble}");
                }
                failure = trouble;
                let mut in_use = engines.inner.in_use.subscribe();
                let _ = timeout(POLL_SOON * 4, in_use.wait_for(Option::is_some)).await;
            }
            Ok(engines)
        }
        .boxed()
    }

    /// As [`EngineSet::start`], for a process that grants no leases, without waiting for an engine to serve. Unless the records say how long
    /// leases are, `ttl_ms_max` is the longest.
    pub fn join(specs: Vec<EngineSpec>, patience: Duration, ttl_ms_max: u64) -> Self {
        Self::new(specs, patience, (0, 0), Poll { ttl_ms_seen: ttl_ms_max, ..Poll::default() })
    }

    fn new(
        specs: Vec<EngineSpec>,
        patience: Duration,
        (ttl_ms_max, operations_more_ms): (u64, u64),
        poll: Poll,
    ) -> Self {
        let mut pair: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        pair.sort();
        let inner = Arc::new(Inner {
            pair: if pair.len() > 1 { pair } else { Vec::new() },
            slots: specs.into_iter().map(Slot::new).collect(),
            patience,
            ttl_ms_max,
            operations_more_ms,
            in_use: watch::Sender::new(None),
            view: watch::Sender::default(),
            poll_lock: tokio::sync::Mutex::new(poll),
            changed: Notify::new(),
        });
        let running = CancellationToken::new();
        let poll = Arc::clone(&inner);
        tokio::spawn(running.clone().run_until_cancelled_owned(async move {
            loop {
                poll.poll_records(&mut *poll.poll_lock.lock().await).await;
                let pause = if poll.in_use.borrow().is_some() { POLL_EVERY } else { POLL_SOON };
                let _ = timeout(pause, poll.changed.notified()).await;
            }
        }));
        Self { inner, _running: Arc::new(running.drop_guard()) }
    }

    /// The engine in use.
    ///
    /// # Errors
    /// `Unavailable` while none is.
    pub fn in_use(&self) -> Result<Arc<EngineInUse>, StoreError> {
        self.inner.in_use.borrow().clone().ok_or_else(|| self.unavailable())
    }

    pub fn watch(&self) -> watch::Receiver<Option<Arc<EngineInUse>>> {
        self.inner.in_use.subscribe()
    }

    pub fn view(&self) -> View {
        self.inner.view.borrow().clone()
    }

    /// Why the engine in use may forget what it acknowledges, if it may.
    pub fn risk(&self) -> Option<Risk> {
        let index = self.in_use().ok()?.index;
        self.inner.view.borrow().engines.get(index)?.reading.as_ref().ok()?.risk.clone()
    }

    /// Reads the records again, because a store has refused the epoch of `stale`.
    pub async fn refresh(&self, stale: Epoch) {
        let Ok(mut poll) = self.inner.poll_lock.try_lock() else {
            // Another task is at it.
            let mut in_use = self.inner.in_use.subscribe();
            let is_fresh =
                |in_use: &Option<Arc<EngineInUse>>| in_use.as_ref().is_none_or(|in_use| in_use.epoch != stale);
            let _ = timeout(self.inner.patience, in_use.wait_for(is_fresh)).await;
            return;
        };
        if self.in_use().is_ok_and(|in_use| in_use.epoch == stale) {
            self.inner.poll_records(&mut poll).await;
        }
    }

    /// The engines that are open and not in use.
    pub fn others(&self) -> Vec<Other> {
        let used = self.in_use().ok().map(|used| used.index);
        let view = self.inner.view.borrow();
        let slots = self.inner.slots.iter().enumerate().filter(|(index, _)| Some(*index) != used);
        let others = slots.filter_map(|(index, slot)| {
            let store = Arc::clone(slot.if_open()?);
            let reading = view.engines.get(index).and_then(|engine| engine.reading.as_ref().ok());
            let record = reading.and_then(|reading| reading.record.as_ref()).map(|it| (it.state, it.epoch));
            Some(Other { name: slot.spec.name.clone(), store, record })
        });
        others.collect()
    }

    /// # Errors
    /// Those of the call, and `Unavailable` if an engine does not answer it in time.
    pub(crate) async fn in_time<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(self.inner.patience, call).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// The error for a caller while no engine is in use.
    pub(crate) fn unavailable(&self) -> StoreError {
        let trouble = self.inner.view.borrow().trouble.clone();
        StoreError::Unavailable(trouble.unwrap_or_else(|| "no engine is in use".to_owned()))
    }

    /// Whether reading the records again will not help.
    fn is_hopeless(&self) -> bool {
        let view = self.inner.view.borrow();
        let is_of_pair = |engine: &EngineView| {
            engine
                .reading
                .as_ref()
                .is_ok_and(|reading| reading.record.as_ref().is_some_and(|record| !record.pair.is_empty()))
        };
        view.engines.first().is_some_and(is_of_pair)
    }
}

impl Inner {
    /// Reads the records and does what they ask for, until an engine serves or nothing more can be done.
    pub(super) fn poll_records<'a>(self: &'a Arc<Self>, poll: &'a mut Poll) -> BoxFuture<'a, ()> {
        // Boxed: the compiler cannot tell otherwise that callers' futures can move between threads.
        Box::pin(self.poll_until_settled(poll))
    }

    async fn poll_until_settled(self: &Arc<Self>, poll: &mut Poll) {
        for _ in 0..ROUNDS_MAX {
            let readings = self.read_all(poll).await;
            match decide::next(&self.candidates(poll, &readings), &self.pair, self.known(poll)) {
                Next::Serve { engine, chore } => {
                    self.serve(poll, engine, &readings);
                    return self.update_peer(poll, chore, &readings);
                }
                Next::Wait(trouble) => return self.wait(readings, trouble),
                Next::Write(mut change) => {
                    let Ok(read) = &readings[change.engine] else { return };
                    if read.is(EngineState::Moving) && change.record.state == EngineState::Active {
                        if poll.copying.as_ref().is_some_and(Copying::awaits_callers) {
                            change.why = CALLERS;
                        }
                        poll.given_up = change.why;
                    }
                    if let Err(error) = self.write(&change, read).await {
                        let name = &self.slots[change.engine].spec.name;
                        return self.wait(readings, format!("the engine record of {name} cannot be changed: {error}"));
                    }
                }
                Next::Copy { from, to } => {
                    if let Ok(source) = &readings[from] {
                        self.copy(poll, from, to, source);
                    }
                    let awaits_callers = poll.copying.as_ref().is_some_and(Copying::awaits_callers);
                    let is_filled = format!("{} is being filled", self.slots[to].spec.name);
                    return self.wait(readings, if awaits_callers { CALLERS.to_owned() } else { is_filled });
                }
            }
        }
    }

    pub(super) async fn write(
        &self,
        Change { engine, record, why }: &Change,
        read: &Reading,
    ) -> Result<(), StoreError> {
        let slot = &self.slots[*engine];
        let record = record.clone().held_because(&read.record.clone().unwrap_or_default(), why);
        if slot.write(self.patience, read, &record).await? {
            let (engine, state, epoch) = (&slot.spec.name, record.state.as_str(), record.epoch.number());
            if decide::EXPECTED.contains(why) {
                tracing::info!(%engine, state, epoch, why, "the engine record was written");
            } else {
                tracing::warn!(%engine, state, epoch, why, "the engine record was changed");
            }
        }
        Ok(())
    }

    /// Changes the record of an engine that does not serve. It may refuse or never answer: nothing waits for it.
    fn update_peer(self: &Arc<Self>, poll: &mut Poll, chore: Option<Change>, readings: &[Result<Reading, StoreError>]) {
        let Some(change) = chore else { return };
        let Ok(read) = readings[change.engine].clone() else { return };
        let before = poll.chore.take();
        if before.as_ref().is_some_and(|(_, task)| !task.is_finished()) {
            poll.chore = before;
            return;
        }
        // It is tried at every poll, and reported once.
        let is_reported = before.is_some_and(|(before, _)| before == change);
        let (inner, record) = (Arc::clone(self), change.clone());
        let task = tokio::spawn(async move {
            match inner.write(&record, &read).await {
                Ok(()) => inner.changed.notify_one(),
                Err(error) if !is_reported => {
                    let engine = &inner.slots[record.engine].spec.name;
                    tracing::warn!(%engine, %error, why = record.why, "an engine that does not serve refuses a change of its record");
                }
                Err(_) => {}
            }
        });
        poll.chore = Some((change, AbortOnDropHandle::new(task)));
    }

    pub(super) async fn read_all(&self, poll: &mut Poll) -> Vec<Result<Reading, StoreError>> {
        let before = poll.began.replace((Instant::now(), suspended_ms()));
        let mut readings = join_all(self.slots.iter().map(|slot| slot.read(self.patience))).await;
        if let Some((at, before_ms)) = before {
            let passed_ms = at.elapsed().as_secs_f64() * 1_000.0 + suspended_ms() - before_ms;
            poll.has_slept |= passed_ms > SLEPT_MIN.as_secs_f64() * 1_000.0;
        }
        // An engine is frozen after the other one has begun to fill, and retired after that has all states: only a later reading of that
        // one shows whether it still fills, and how many states it has.
        let is_any = |reading: Option<&Result<Reading, StoreError>>, states: &[EngineState]| {
            reading.is_some_and(|reading| Self::state(reading).is_some_and(|state| states.contains(&state)))
        };
        let is_copied_to = |from: &usize| {
            is_any(readings.get(*from), &[EngineState::Moving])
                || is_any(readings.get(*from), &[EngineState::Retired])
                    && is_any(readings.get(1 - *from), &[EngineState::Filling])
        };
        if let Some(to) = (0..2).find(is_copied_to).map(|from| 1 - from).filter(|_| self.slots.len() > 1) {
            readings[to] = self.slots[to].read(self.patience).await;
        }
        for (has_answered, reading) in poll.has_answered.iter_mut().zip(&readings) {
            *has_answered |= reading.is_ok();
        }
        Self::follow_copy(poll, &readings);
        readings
    }

    fn candidates<'a>(&'a self, poll: &Poll, readings: &'a [Result<Reading, StoreError>]) -> Vec<Candidate<'a>> {
        let candidate = |(index, reading): (usize, &'a Result<Reading, StoreError>)| {
            let Slot { spec, .. } = &self.slots[index];
            Candidate {
                name: &spec.name,
                reading: reading.as_ref().ok(),
                // An engine of a pair that is back is no longer left out: it may become active, and then be out of reach.
                is_left_out: spec.is_left_out && (self.pair.is_empty() || !poll.has_answered[index]),
                may_forget: self.slots[index].may_forget(),
                is_trusted: spec.is_trusted,
                is_new: spec.is_new,
            }
        };
        readings.iter().enumerate().map(candidate).collect()
    }

    pub(super) fn known(&self, poll: &Poll) -> NodeMemory {
        NodeMemory {
            epoch: poll.epoch,
            ttl_ms_max: self.ttl_ms_max,
            operations_more_ms: self.operations_more_ms.max(poll.operations_more_seen),
            ttl_ms_seen: poll.ttl_ms_seen,
            has_slept: poll.has_slept,
            is_stalled: poll.copying.as_ref().is_some_and(Copying::is_stalled),
        }
    }

    fn serve(&self, poll: &mut Poll, index: usize, readings: &[Result<Reading, StoreError>]) {
        let (Some(Ok(reading)), Some(store)) = (readings.get(index), self.slots[index].if_open()) else { return };
        let Some(record) = &reading.record else { return };
        poll.epoch = poll.epoch.max(record.epoch);
        poll.has_slept = false;
        (poll.ttl_ms_seen, poll.operations_more_seen) = (record.ttl_ms_max, record.operations_more_ms);
        let before = self.in_use.borrow().as_ref().map(|in_use| (in_use.index, in_use.epoch));
        if before != Some((index, record.epoch)) {
            self.report(before, index, record, reading.now);
            self.in_use.send_replace(Some(Arc::new(EngineInUse {
                store: Arc::clone(store),
                index,
                epoch: record.epoch,
                hold_off_until: record.hold_off_until,
                forced_until: record.forced_until,
                operations_extra_ms: record.operations_extra_ms,
                late: (record.late_ms, record.late_until),
                operations_late: (record.operations_late_ms, record.operations_late_until),
                jumped_ms: record.jumped_ms,
                since: record.since,
                era: record.era(),
            })));
        }
        self.show(readings.to_vec(), None);
    }

    fn report(&self, before: Option<(usize, Epoch)>, index: usize, record: &EngineRecord, now: Timestamp) {
        let (engine, epoch) = (self.slots[index].spec.name.as_str(), record.epoch.number());
        if before.is_none_or(|(before, _)| before != index) {
            tracing::info!(engine, epoch, "this engine is in use");
        }
        if record.hold_off_until > now {
            let for_ms = record.hold_off_until.ms_since(now);
            tracing::warn!(engine, epoch, for_ms, "HOLD-OFF: no new grants; known leases are renewed and released");
        } else if before.is_some_and(|(before, _)| before == index) {
            tracing::info!(engine, epoch, "a new epoch, without a hold-off");
        }
    }

    fn wait(&self, readings: Vec<Result<Reading, StoreError>>, trouble: String) {
        let errors =
            self.slots.iter().zip(&readings).filter_map(|(slot, reading)| Some((slot, reading.as_ref().err()?)));
        let errors: Vec<String> =
            errors.map(|(slot, error)| format!("{}: {}", slot.spec.name, error.reason())).collect();
        let trouble = if errors.is_empty() { trouble } else { format!("{trouble} ({})", errors.join("; ")) };
        // An engine that does not answer stays in use: it refuses this node itself if it is left meanwhile.
        let is_away = |in_use: &EngineInUse| readings.get(in_use.index).is_some_and(Result::is_err);
        if self.in_use.borrow().as_ref().is_some_and(|in_use| !is_away(in_use)) {
            tracing::warn!(trouble, "no engine is in use");
            self.in_use.send_replace(None);
        }
        self.show(readings, Some(trouble));
    }

    fn show(&self, readings: Vec<Result<Reading, StoreError>>, trouble: Option<String>) {
        for (index, slot) in self.slots.iter().enumerate() {
            let known = self.view.borrow().engines.get(index).map(|engine| engine.reading.clone());
            slot.report_risk(known.as_ref().and_then(|known| known.as_ref().ok()), readings[index].as_ref().ok());
        }
        let engine = |(slot, reading): (&Slot, Result<Reading, StoreError>)| EngineView {
            name: slot.spec.name.clone(),
            kind: slot.spec.kind,
            reading: reading.map_err(|error| error.to_string()),
        };
        let engines = self.slots.iter().zip(readings).map(engine).collect();
        self.view.send_replace(View { engines, trouble });
    }

    /// The state of an engine as its record says.
    pub(super) fn state(reading: &Result<Reading, StoreError>) -> Option<EngineState> {
        reading.as_ref().ok()?.record.as_ref().map(|record| record.state)
    }
}
