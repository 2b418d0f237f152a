//! Two databases as a pair of engines: how nodes open it, and what must hold of its engine records and copies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{OperationRecord, Phase};
use latchgate_core::lock::{LeaseId, LockState};
use latchgate_core::{Address, Timestamp};
use latchgate_node::engines::{EngineSet, EngineSpec};
use latchgate_node::store::engine_record::{EngineRecord, EngineState};
use latchgate_node::store::{CopiedState, Epoch, Rows, Store};

use crate::database::Database;

/// Longest time that a node waits for an engine to answer.
const PATIENCE: Duration = Duration::from_millis(800);

/// Opens the pair as a node does. `left_out` is the engine that the operator starts it without.
pub async fn open(
    stores: Vec<(&str, Arc<dyn Store>)>,
    left_out: Option<usize>,
    lease_ms_max: u64,
) -> anyhow::Result<EngineSet> {
    let spec =
        |(index, (name, store))| EngineSpec { is_left_out: left_out == Some(index), ..EngineSpec::opened(name, store) };
    EngineSet::start(stores.into_iter().enumerate().map(spec).collect(), PATIENCE, lease_ms_max).await
}

impl Database {
    /// Whether it is the active engine: of two the one with the later epoch.
    pub fn is_in_charge(&self) -> bool {
        let Some(other) = self.the_other() else { return true };
        self.active_epoch().is_some_and(|epoch| other.active_epoch().is_none_or(|other| other < epoch))
    }

    /// The epoch of its record, if that says that it is active.
    pub fn active_epoch(&self) -> Option<Epoch> {
        let record = self.record.lock().unwrap();
        record.as_ref().filter(|record| record.state == EngineState::Active).map(|record| record.epoch)
    }

    /// Judges a record that has just been written.
    pub async fn record_written(&self, next: &EngineRecord) {
        let Some(other) = self.the_other() else { return };
        let before = self.record.lock().unwrap().replace(next.clone());
        let Some(before) = before else { return self.abandon(&other) };
        if next.epoch < before.epoch {
            self.checker.broken(format!("{}: the epoch fell: {before:?}, then {next:?}", self.name));
        }
        if next.state != EngineState::Active {
            return;
        }
        let there = other.record.lock().unwrap().clone();
        // It is used again as it was left. Readers of events may have seen what it has.
        let is_left = there.as_ref().is_none_or(|there| there.epoch > before.epoch);
        if is_left && before.epoch < next.epoch && before.state != EngineState::Moving {
            self.checker.facts().has_repeated_events = true;
        }
        let is_complete = there.is_some_and(|there| there.state == EngineState::Retired && there.epoch == before.epoch);
        match before.state {
            EngineState::Active => {}
            EngineState::Moving => {
                self.log.saw("switch given up");
                if next.epoch <= before.epoch {
                    self.checker.broken(format!("{}: a switch was given up in its own epoch: {next:?}", self.name));
                }
            }
            EngineState::Filling if is_complete => {
                self.log.saw("planned switch");
                if next.hold_off_until > self.now().await {
                    self.log.saw("switch during a hold-off");
                }
                // In a new epoch, a part of the copy was lost, and a hold-off begins.
                if next.epoch == before.epoch {
                    self.check_copy(&other).await;
                    self.check_copied_operations(&other);
                } else {
                    self.abandon(&other);
                }
            }
            EngineState::Filling | EngineState::Retired | EngineState::Standby => self.abandon(&other),
        }
    }

    /// It has lost its data, and its record with it.
    pub fn forget(&self) {
        let is_left =
            self.the_other().is_some_and(|other| other.is_in_charge()) || self.record.lock().unwrap().is_none();
        self.store.forget();
        *self.record.lock().unwrap() = None;
        let states = std::mem::take(&mut *self.states.lock().unwrap());
        if !is_left {
            self.checker.lose(leases(&states).map(|(lease, _)| lease));
        }
    }

    pub fn the_other(&self) -> Option<Arc<Self>> {
        self.other.get().and_then(std::sync::Weak::upgrade)
    }

    /// It is active without a copy of the other engine: what only that one has is lost.
    fn abandon(&self, other: &Self) {
        let record = self.record.lock().unwrap().clone();
        if !record.is_some_and(|record| record.state == EngineState::Active) {
            return;
        }
        let (here, there) = (self.states.lock().unwrap(), other.states.lock().unwrap());
        let known: Vec<_> = leases(&here).map(|(lease, _)| lease).collect();
        let lost: Vec<_> = leases(&there).map(|(lease, _)| lease).filter(|lease| !known.contains(lease)).collect();
        self.log.line(|| format!("{}: active without a copy, {} leases are lost", self.name, lost.len()));
        self.checker.lose(lost);
    }

    /// It has become active after a copy, which must have everything that the other engine has, and nothing else.
    async fn check_copy(&self, other: &Self) {
        let (copied, original) = (self.dump().await, other.dump().await);
        for address in copied.keys().filter(|address| !original.contains_key(address)) {
            self.checker.broken(format!("{} has kept {:?} of an earlier time", self.name, address.key));
        }
        for (address, original) in original {
            let key = address.key.as_str();
            let Some(copied) = copied.get(&address) else {
                self.checker.broken(format!("{key} was not copied to {}: {original:?}", self.name));
                continue;
            };
            if copied.token() != original.token() {
                self.checker.broken(format!("{key} was copied with another token: {original:?}, then {copied:?}"));
            }
            let there = self.true_ends(copied);
            for (lease_id, end) in other.true_ends(&original) {
                if !there.iter().any(|(copied, until)| *copied == lease_id && *until >= end) {
                    self.checker.broken(format!("{lease_id:?} of {key} was not copied to its end: {original:?}"));
                }
            }
        }
    }

    /// As [`Self::check_copy`], of operations.
    fn check_copied_operations(&self, other: &Self) {
        let (copied, original) = (self.operations(), other.operations());
        for address in copied.keys().chain(original.keys()) {
            self.log.saw("operation copied");
            let (copied, original) = (copied.get(address), original.get(address));
            let facts = |record: &OperationRecord| {
                (record.operation.clone(), record.state(), record.stamp(), record.attempt, record.earlier.clone())
            };
            let is_complete = copied.map(facts) == original.map(facts)
                && copied.map(|record| self.true_end(record)) >= original.map(|record| other.true_end(record));
            if !is_complete {
                self.checker.broken(format!("an operation was copied to {}: {original:?}, then {copied:?}", self.name));
            }
        }
    }

    /// Of the lease of an operation, or of the time for which its success is kept.
    fn true_end(&self, record: &OperationRecord) -> Option<Timestamp> {
        match &record.phase {
            Phase::Started(started) => Some(self.true_time(started.lease_until)),
            Phase::Succeeded(succeeded) => succeeded.keep_until.map(|until| self.true_time(until)),
            Phase::Unknown { .. } | Phase::Vacant { .. } => None,
        }
    }

    fn true_ends(&self, state: &LockState) -> Vec<(LeaseId, Timestamp)> {
        let ends = |lease: &latchgate_core::lock::Lease| (lease.lease_id.clone(), self.true_time(lease.expires_at));
        state.holders().iter().map(ends).collect()
    }

    async fn dump(&self) -> BTreeMap<Address, LockState> {
        let page = Rows::<LockState>::dump(&self.store, None, usize::MAX).await.unwrap();
        page.items.into_iter().map(|CopiedState { address, state, .. }| (address, state)).collect()
    }
}

/// The leases of these states, with the times of their expiry.
pub fn leases(states: &BTreeMap<Address, LockState>) -> impl Iterator<Item = ((String, LeaseId, u64), Timestamp)> {
    states.iter().flat_map(|(address, state)| {
        let lease = |lease: &latchgate_core::lock::Lease| {
            ((address.key.as_str().to_owned(), lease.lease_id.clone(), lease.token), lease.expires_at)
        };
        state.holders().iter().map(lease)
    })
}
