//! What an operator orders: a switch to the other engine, and hold-offs.

use latchgate_core::Timestamp;
use tokio::time::{Duration, Instant, sleep};

use super::copy::{Watched, bounded};
use super::decide::{Memory, emptied, given_up, is_copied, may_be_given_up, may_have_been_left, was_never_left};
use super::{Engine, Engines, Inner, LOOK_SOON, Past};
use crate::store::StoreError;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};

/// A switch as an operator orders it.
#[derive(Clone, Debug, Default)]
pub struct SwitchOrder {
    /// The engine to use; `None`: the one that is not active.
    pub to: Option<String>,
    /// The active engine is stopped and stays so until every node reaches the other one: the operator vouches for that.
    pub is_stopped: bool,
    /// Grant at once, though leases of the engine that was left may be missing.
    pub force: bool,
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderFailure {
    #[error("no engine of this name is in --locks or --gate")]
    UnknownEngine,
    #[error("there is one engine, and no other to switch to")]
    OneEngine,
    #[error("{0} does not answer")]
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
}

/// Tries of one order.
const TRIES: usize = 20;

impl<E: ?Sized + Engine> Engines<E> {
    /// Makes all nodes use another engine. Returns when this node uses it.
    ///
    /// # Errors
    /// Says why the engine is not in use within `patience`; an order that was given goes on all the same.
    pub async fn switch(&self, order: &SwitchOrder, patience: Duration) -> Result<(), OrderFailure> {
        let inner = &self.inner;
        let (to, epoch) = inner.give(order).await?;
        let Some(to) = to else { return Ok(()) };
        let until = Instant::now() + patience;
        loop {
            inner.look(&mut *inner.looking.lock().await).await;
            let standing = self.standing();
            match standing {
                Some(standing) if standing.index == to && standing.epoch >= epoch => return Ok(()),
                // The copy was given up.
                Some(standing) if standing.epoch > epoch => {
                    let name = inner.slots[to].spec.name.clone();
                    return Err(OrderFailure::GivenUp(format!(
                        "the switch was given up: {name} did not take the copy"
                    )));
                }
                _ if Instant::now() > until => {
                    let trouble = self.view().trouble.unwrap_or_default();
                    return Err(OrderFailure::GivenUp(format!("the switch is not complete yet: {trouble}")));
                }
                _ => sleep(LOOK_SOON).await,
            }
        }
    }

    /// Begins, shortens, extends or, with 0, ends a hold-off of the engine in use; `None`: of the longest lease. Returns how
    /// long it lasts, in ms.
    ///
    /// # Errors
    /// When the active engine does not answer.
    pub async fn order_hold_off(&self, for_ms: Option<u64>) -> Result<u64, OrderFailure> {
        self.inner
            .change_active(|record, now| {
                let until = for_ms.map_or_else(|| record.longest_lease.hold_off_until(now), |ms| now.plus_ms(ms));
                // When an operator ends a hold-off, grants say for how long leases may be missing.
                let forced_until =
                    if until < record.hold_off_until { record.hold_off_until } else { record.forced_until };
                EngineRecord { hold_off_until: until, forced_until, ..record.clone() }
            })
            .await
            .map(|(record, now)| record.hold_off_until.ms_since(now))
    }
}

impl<E: ?Sized + Engine> Inner<E> {
    /// Writes the records that begin the switch. Returns the engine to wait for, and from which epoch on.
    async fn give(&self, order: &SwitchOrder) -> Result<(Option<usize>, Epoch), OrderFailure> {
        let mut ordered = match &order.to {
            Some(name) => {
                Some(self.slots.iter().position(|slot| slot.spec.name == *name).ok_or(OrderFailure::UnknownEngine)?)
            }
            None => None,
        };
        for _ in 0..TRIES {
            let mut past = self.looking.lock().await;
            let readings = self.read_all(&mut past).await;
            let active = Self::active(&past, &readings);
            let to = match (ordered, active) {
                (Some(to), _) => to,
                // The only one that answers is to go on.
                (None, Some(active)) if Self::is_in_doubt(active, &readings) => active,
                (None, Some(active)) if self.slots.len() > 1 => 1 - active,
                // A copy is under way, or the active engine does not answer.
                (None, None) if self.slots.len() > 1 => {
                    let filling = |reading| Self::state(reading) == Some(EngineState::Filling);
                    let to = readings.iter().position(filling).or_else(|| readings.iter().position(Result::is_ok));
                    to.ok_or_else(|| self.no_answer(0))?
                }
                _ => return Err(OrderFailure::OneEngine),
            };
            // Once an engine of this order is active, it is not switched back.
            ordered = Some(to);
            let target = readings[to].as_ref().map_err(|_| self.no_answer(to))?;
            let is_in_doubt = active == Some(to) && Self::is_in_doubt(to, &readings);
            if active == Some(to) && !is_in_doubt {
                if !order.force {
                    return Ok((None, target.epoch()));
                }
                drop(past);
                self.force().await?;
                return Ok((None, target.epoch()));
            }
            let from = 1 - to;
            // If it is not sure that the copy was not left for the other engine, an operator must say that this is stopped. What was
            // copied may be out of date then, and is not used.
            let is_in_use = readings[from].is_ok() || may_be_given_up(target, past.memory);
            let begun = match &readings[from] {
                source if target.is(EngineState::Moving) && active.is_none() && is_in_use => {
                    self.give_up(past.memory, (to, target), (from, source.as_ref().ok())).await?
                }
                // A copy is decided, or was emptied after that: one of the engines becomes active first. Or this engine is to be
                // retired first. The look below settles it.
                Ok(source)
                    if self.is_settled_by_a_look(source, (to, target), past.memory)
                        || self.is_settled_by_a_look(target, (from, source), past.memory)
                        || target.is(EngineState::Moving)
                        || source.is(EngineState::Moving) && !target.is(EngineState::Filling) =>
                {
                    None
                }
                Ok(_) if order.is_stopped => return Err(OrderFailure::NotStopped(self.name(from))),
                Ok(source) if source.is(EngineState::Moving) && target.is(EngineState::Filling) => Some(source.epoch()),
                Ok(source) => self.begin(&mut past, (from, source), (to, target)).await?,
                Err(_) if !order.is_stopped => return Err(OrderFailure::InDoubt(self.name(from))),
                Err(_) if is_in_doubt => self.go_on(&mut past, (to, target), order.force).await?,
                Err(_) => self.abandon(&mut past, (to, target), order.force).await?,
            };
            if let Some(epoch) = begun {
                return Ok((Some(to), epoch));
            }
            self.look(&mut past).await;
            drop(past);
            sleep(LOOK_SOON).await;
        }
        Err(OrderFailure::Contended)
    }

    /// Empties the target, then freezes the source: from there on any node goes on. `None`: another node was faster.
    async fn begin(
        &self,
        past: &mut Past,
        (from, source): (usize, &Reading),
        (to, target): (usize, &Reading),
    ) -> Result<Option<Epoch>, OrderFailure> {
        let epoch = past.memory.epoch.max(source.epoch()).max(target.epoch()).next(source.now.max(target.now));
        // One that was left for an engine that has lost its data since is not copied: leases are missing there.
        let is_active = source.is(EngineState::Active) && source.epoch() >= past.memory.epoch;
        let active = source.record.as_ref().filter(|_| is_active);
        if let (None, Some(record)) = (active, &source.record) {
            // Other nodes may have granted longer leases there than this one knows of.
            past.memory.longest_lease = record.longest_lease.or_later(past.memory.longest_lease, source.now);
        }
        if !self.fill(past.memory, to, target, epoch).await? {
            return Ok(None);
        }
        let Some(record) = active else {
            // Neither engine is active: nothing is copied. From here on the other one cannot become active any more, and any node
            // goes on (see `decide.rs`).
            let none = EngineRecord::new(EngineState::Standby, epoch, &self.pair);
            let standby = source.record.as_ref().map_or(none, |record| record.turned(EngineState::Standby, epoch));
            let written = self.slots[from].write(self.patience, source, &standby).await;
            if !written.map_err(|error| self.failed(from, &error))? {
                return Ok(None);
            }
            return self.activate(past, to, epoch, false).await;
        };
        past.copy = Some(Watched::own(epoch));
        let frozen = self.slots[from].change(self.patience, source, &record.turned(EngineState::Moving, epoch)).await;
        Ok(frozen.map_err(|error| self.failed(from, &error))?.then_some(epoch))
    }

    /// The engine is being copied, and it is to stay active. `None`: another node was faster.
    async fn give_up(
        &self,
        memory: Memory,
        (to, target): (usize, &Reading),
        (from, source): (usize, Option<&Reading>),
    ) -> Result<Option<Epoch>, OrderFailure> {
        let Some(record) = &target.record else { return Ok(None) };
        let was_left =
            source.is_some_and(|source| may_have_been_left(target, source, self.slots[from].may_forget(), memory));
        let next = given_up(target, record, was_left, self.slots[to].spec.is_trusted, memory);
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
        past: &mut Past,
        (to, target): (usize, &Reading),
        force: bool,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let Some(record) = &target.record else { return Ok(None) };
        // The other engine's clock may be ahead, and its epoch with it. So this epoch is as far ahead as that of an engine that is emptied.
        let epoch = record.epoch.max(past.memory.epoch).ahead_of(target.now);
        let held = EngineRecord { epoch, ..given_up(target, record, true, false, past.memory) };
        let next = if force { forced(&held) } else { held };
        let is_written = self.slots[to].write(self.patience, target, &next).await;
        let is_written = is_written.map_err(|error| self.failed(to, &error))?;
        if is_written {
            past.memory = Memory { epoch: next.epoch, longest_lease: next.longest_lease, ..past.memory };
        }
        Ok(is_written.then_some(next.epoch))
    }

    /// The other engine is stopped: what this one held when it was left does not count.
    async fn abandon(
        &self,
        past: &mut Past,
        (to, target): (usize, &Reading),
        force: bool,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let epoch = past.memory.epoch.max(target.epoch()).ahead_of(target.now);
        if !self.fill(past.memory, to, target, epoch).await? {
            return Ok(None);
        }
        self.activate(past, to, epoch, force).await
    }

    /// Empties an engine. Its record has the longest lease that this node knows of, in case nothing is copied to it.
    async fn fill(&self, memory: Memory, to: usize, target: &Reading, epoch: Epoch) -> Result<bool, OrderFailure> {
        let failed = |error: StoreError| self.failed(to, &error);
        let filling = EngineRecord {
            since: Self::filling_since(target).unwrap_or(epoch),
            longest_lease: memory.longest_live(target.epoch(), target.now),
            ..EngineRecord::new(EngineState::Filling, epoch, &self.pair)
        };
        if !self.slots[to].write(self.patience, target, &filling).await.map_err(failed)? {
            return Ok(false);
        }
        let store = self.slots[to].store().await.map_err(failed)?;
        bounded(store.empty(epoch)).await.map_err(failed)
    }

    /// The first of the epochs in which the engine has been filling, if it is. A fail-over may have forgotten that it was active.
    fn filling_since(target: &Reading) -> Option<Epoch> {
        let record =
            target.record.as_ref().filter(|_| target.is(EngineState::Filling) && !target.is_after_fail_over)?;
        Some(record.since).filter(|since| *since > Epoch::NONE)
    }

    /// Whether a look at these records makes one of the engines active.
    fn is_settled_by_a_look(&self, retired: &Reading, (index, filling): (usize, &Reading), memory: Memory) -> bool {
        is_copied(retired, filling) || was_never_left(retired, filling, self.slots[index].may_forget(), memory)
    }

    /// Makes an emptied engine active, with a hold-off of the longest lease that was known when it was emptied.
    async fn activate(
        &self,
        past: &mut Past,
        to: usize,
        epoch: Epoch,
        force: bool,
    ) -> Result<Option<Epoch>, OrderFailure> {
        let failed = |error: StoreError| self.failed(to, &error);
        let reading = self.slots[to].read(self.patience).await.map_err(failed)?;
        let Some(record) = reading.record.as_ref().filter(|_| reading.epoch() == epoch) else { return Ok(None) };
        let held = emptied(record, reading.now);
        let record = if force { forced(&held) } else { held };
        let is_written = self.slots[to].write(self.patience, &reading, &record).await.map_err(failed)?;
        if is_written {
            // The operator has vouched for it to this node, so it need not read the engine that was left.
            past.memory = Memory { epoch, longest_lease: record.longest_lease, ..past.memory };
        }
        Ok(is_written.then_some(epoch))
    }

    async fn force(&self) -> Result<(), OrderFailure> {
        self.change_active(|record, _| forced(record)).await.map(|_| ())
    }

    /// Changes the record of the active engine and begins a new epoch with it.
    async fn change_active(
        &self,
        change: impl Fn(&EngineRecord, Timestamp) -> EngineRecord,
    ) -> Result<(EngineRecord, Timestamp), OrderFailure> {
        for _ in 0..TRIES {
            let mut past = self.looking.lock().await;
            let readings = self.read_all(&mut past).await;
            let active = Self::active(&past, &readings);
            let Some((index, Ok(reading))) = active.map(|index| (index, &readings[index])) else {
                return Err(self.no_answer(0));
            };
            let Some(record) = &reading.record else { return Err(self.no_answer(index)) };
            let next = change(record, reading.now).turned(EngineState::Active, record.epoch.next(reading.now));
            if next.hold_off_until == record.hold_off_until && next.forced_until == record.forced_until {
                return Ok((next, reading.now));
            }
            let written = self.slots[index].change(self.patience, reading, &next).await;
            let is_written = written.map_err(|error| self.failed(index, &error))?;
            self.look(&mut past).await;
            if is_written {
                return Ok((next, reading.now));
            }
        }
        Err(OrderFailure::Contended)
    }

    /// The active engine. An engine that was left while it was stopped may be back, and not be retired yet.
    fn active(past: &Past, readings: &[Result<Reading, StoreError>]) -> Option<usize> {
        let epoch = |reading: &Result<Reading, StoreError>| {
            let reading = reading.as_ref().ok().filter(|reading| reading.is(EngineState::Active))?;
            Some(reading.epoch()).filter(|epoch| *epoch >= past.memory.epoch)
        };
        let active = readings.iter().enumerate().filter_map(|(index, reading)| Some((epoch(reading)?, index)));
        active.max().map(|(_, index)| index)
    }

    fn name(&self, index: usize) -> String {
        self.slots[index].spec.name.clone()
    }

    fn no_answer(&self, index: usize) -> OrderFailure {
        OrderFailure::NoAnswer(self.name(index))
    }

    fn failed(&self, index: usize, error: &StoreError) -> OrderFailure {
        tracing::warn!(engine = %self.slots[index].spec.name, %error, "an order could not be carried out");
        self.no_answer(index)
    }
}

/// Without a hold-off; grants say until when leases may be missing.
fn forced(record: &EngineRecord) -> EngineRecord {
    let forced_until = record.hold_off_until.max(record.forced_until);
    EngineRecord { hold_off_until: Timestamp::default(), forced_until, ..record.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{EngineSpec, LockEngines, Opener};
    use super::*;
    use crate::store::engine_record::LongestLease;
    use crate::store::memory::MemoryStore;
    use crate::store::{LockStore, RecordStore};

    const PATIENCE: Duration = Duration::from_secs(5);

    async fn write(store: &MemoryStore, state: EngineState, epoch: u64) {
        let read = store.read_record().await.unwrap();
        let pair = ["one".to_owned(), "other".to_owned()];
        let mut next = EngineRecord::new(state, Epoch::from_number(epoch), &pair);
        next.longest_lease = LongestLease::short(60_000);
        if state == EngineState::Filling {
            next.since = next.epoch;
        }
        assert!(store.write_record(&read, &next).await.unwrap());
    }

    /// A node of a pair whose records are these, as they are before it looks at them.
    async fn pair(records: [(EngineState, u64); 2]) -> (LockEngines, [MemoryStore; 2]) {
        let stores = [MemoryStore::default(), MemoryStore::default()];
        for (store, (state, epoch)) in stores.iter().zip(records) {
            write(store, state, epoch).await;
        }
        let opened =
            |name, store: &MemoryStore| EngineSpec::opened(name, Arc::new(store.clone()) as Arc<dyn LockStore>);
        let specs = vec![opened("one", &stores[0]), opened("other", &stores[1])];
        (LockEngines::join(specs, PATIENCE, 60_000), stores)
    }

    fn to(engine: Option<&str>) -> SwitchOrder {
        SwitchOrder { to: engine.map(str::to_owned), ..SwitchOrder::default() }
    }

    async fn records(stores: &[MemoryStore; 2]) -> [Option<EngineState>; 2] {
        let [one, other] = [stores[0].read_record().await.unwrap(), stores[1].read_record().await.unwrap()];
        [one, other].map(|reading| reading.record.map(|record| record.state))
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_during_a_copy_does_not_empty_the_source() {
        let moving = [(EngineState::Moving, 2), (EngineState::Filling, 2)];
        let (engines, stores) = pair(moving).await;
        engines.switch(&to(None), PATIENCE).await.unwrap();
        assert_eq!(records(&stores).await, [Some(EngineState::Retired), Some(EngineState::Active)]);

        let (engines, stores) = pair(moving).await;
        engines.switch(&to(Some("one")), PATIENCE).await.unwrap();
        assert_eq!(stores[0].read_record().await.unwrap().record.unwrap().hold_off_until, Timestamp::default());
        assert_eq!(records(&stores).await[0], Some(EngineState::Active));
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_back_after_the_decision_loses_nothing() {
        let (engines, stores) = pair([(EngineState::Retired, 2), (EngineState::Filling, 2)]).await;
        engines.switch(&to(Some("one")), PATIENCE).await.unwrap();
        let record = stores[0].read_record().await.unwrap().record.unwrap();
        assert_eq!((record.state, record.hold_off_until), (EngineState::Active, Timestamp::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_stopped_during_a_copy_and_was_left_does_not_take_over_when_it_is_back() {
        let (engines, stores) = pair([(EngineState::Moving, 2), (EngineState::Active, 3)]).await;
        let mut used = engines.watch();
        let _ = used.wait_for(Option::is_some).await.unwrap();
        assert_eq!(engines.standing().unwrap().index, 1);
        assert_eq!(records(&stores).await, [Some(EngineState::Retired), Some(EngineState::Active)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_does_not_empty_the_later_of_two_active_engines() {
        for (order, active) in [(to(None), 0), (to(Some("other")), 1)] {
            let (engines, stores) = pair([(EngineState::Active, 2), (EngineState::Active, 3)]).await;
            engines.switch(&order, PATIENCE).await.unwrap();
            let record = stores[active].read_record().await.unwrap().record.unwrap();
            assert_eq!((record.state, record.hold_off_until), (EngineState::Active, Timestamp::default()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_replaces_a_stopped_one_is_in_a_later_epoch_by_any_clock() {
        let one = MemoryStore::starting_at(Timestamp::from_ms(1_000_000));
        // The stopped engine's clock was ahead, and its last epoch was begun by another node.
        let last = Epoch::from_number(1_030_000);
        write(&one, EngineState::Standby, 1).await;
        let engines = beside_a_stopped(&one);
        engines.switch(&SwitchOrder { is_stopped: true, ..to(Some("one")) }, PATIENCE).await.unwrap();
        assert!(one.read_record().await.unwrap().epoch() > last);
    }
    #[tokio::test(start_paused = true)]
    async fn an_engine_that_stopped_during_a_copy_is_held_off_by_a_node_that_does_not_know_whether_it_was_left() {
        let one = MemoryStore::default();
        write(&one, EngineState::Moving, 2).await;
        let engines = beside_a_stopped(&one);
        engines.switch(&SwitchOrder { is_stopped: true, ..to(None) }, PATIENCE).await.unwrap();
        let read = one.read_record().await.unwrap();
        assert!(read.record.unwrap().hold_off_until > read.now.plus_ms(50_000));
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_for_an_engine_that_was_left_during_a_copy_begins_a_hold_off() {
        let (engines, stores) = pair([(EngineState::Standby, 2), (EngineState::Active, 3)]).await;
        let _ = engines.watch().wait_for(Option::is_some).await.unwrap();
        write(&stores[0], EngineState::Moving, 2).await;
        write(&stores[1], EngineState::Standby, 1).await;
        engines.switch(&to(Some("one")), PATIENCE).await.unwrap();
        let read = stores[0].read_record().await.unwrap();
        let record = read.record.unwrap();
        assert_eq!(record.state, EngineState::Active);
        assert!(record.hold_off_until > read.now.plus_ms(50_000) && record.epoch > Epoch::from_number(3));
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_was_left_is_not_copied_although_the_other_one_has_lost_its_data() {
        let (engines, stores) = pair([(EngineState::Standby, 2), (EngineState::Active, 3)]).await;
        let _ = engines.watch().wait_for(Option::is_some).await.unwrap();
        write(&stores[0], EngineState::Active, 2).await;
        write(&stores[1], EngineState::Standby, 4).await;
        engines.switch(&to(Some("other")), PATIENCE).await.unwrap();
        let read = stores[1].read_record().await.unwrap();
        assert!(read.record.unwrap().hold_off_until > read.now);
        assert_eq!(records(&stores).await[0], Some(EngineState::Standby));
    }

    /// A node that was started without the other engine, which is stopped.
    fn beside_a_stopped(one: &MemoryStore) -> LockEngines {
        let gone: Opener<dyn LockStore> = Arc::new(|| Box::pin(async { anyhow::bail!("it is stopped") }));
        let stopped =
            EngineSpec { name: "other".to_owned(), kind: "memory", open: gone, is_trusted: false, is_left_out: true };
        let specs = vec![EngineSpec::opened("one", Arc::new(one.clone()) as Arc<dyn LockStore>), stopped];
        LockEngines::join(specs, PATIENCE, 60_000)
    }
}
