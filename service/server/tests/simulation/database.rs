//! One simulated database: the states of all keys, and a check of every commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use futures::FutureExt as _;
use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::{EventKind, Group, Lease, LockState, Mode, Turn};
use latchgate_core::{Address, Timestamp};
use latchgate_node::store::engine_record::{EngineRecord, EngineState};
use latchgate_node::store::{Change, CommitResult, Committed, CopiedState, Epoch, RecordStore, Rows};
use latchgate_testkit::memory::{self, MemoryStore};

use crate::check::Checker;
use crate::log::Log;
use crate::pair::leases;
use crate::world::World;

/// The store's clock at the start of each run.
pub const EPOCH: Timestamp = Timestamp::from_ms(1_700_000_000_000);

/// Those of all operations.
pub type Records = BTreeMap<Address, OperationRecord>;

/// What a database had at some time.
pub struct Saved {
    store: memory::Saved,
    states: BTreeMap<Address, LockState>,
    record: Option<EngineRecord>,
    /// How many events were written by then.
    written: usize,
}

pub struct Database {
    pub name: &'static str,
    pub store: MemoryStore,
    /// How much more its clock shows than the true time, in ms.
    ahead_ms: AtomicI64,
    pub checker: Arc<Checker>,
    pub log: Arc<Log>,
    pub states: Mutex<BTreeMap<Address, LockState>>,
    /// The engine record that was written last; `None` if the database has lost it.
    pub record: Mutex<Option<EngineRecord>>,
    /// The other one of a pair.
    pub other: OnceLock<Weak<Database>>,
}

impl Database {
    pub fn new(name: &'static str, ahead_ms: i64, checker: Arc<Checker>, log: Arc<Log>) -> Self {
        let store = MemoryStore::starting_at(Timestamp::from_ms(EPOCH.as_ms().saturating_add_signed(ahead_ms)));
        let (states, record, other) = (Mutex::default(), Mutex::default(), OnceLock::new());
        let ahead_ms = AtomicI64::new(ahead_ms);
        Self { name, store, ahead_ms, checker, log, states, record, other }
    }

    /// The token that the fence of a key remembers.
    pub fn fence(&self, key: &str) -> u64 {
        self.states.lock().unwrap().get(&World::address(key)).map_or(0, LockState::fence)
    }

    /// A copier has emptied the database.
    pub fn cleared(&self, epoch: Epoch) {
        self.expect_filling(epoch);
        self.states.lock().unwrap().clear();
    }

    /// A copier has written states.
    pub fn filled(&self, epoch: Epoch, copied: &[CopiedState]) {
        self.expect_filling(epoch);
        for CopiedState { address, state, .. } in copied {
            self.checker.has(address.key.as_str(), state, self.ahead_ms());
            self.states.lock().unwrap().insert(address.clone(), state.clone());
        }
    }

    pub fn expect_filling(&self, epoch: Epoch) {
        let record = self.record.lock().unwrap();
        if !record.as_ref().is_some_and(|record| record.state == EngineState::Filling && record.epoch == epoch) {
            self.checker.broken(format!("{} takes a copy of epoch {epoch}: {record:?}", self.name));
        }
    }

    /// The true time when its clock shows this.
    pub fn true_time(&self, shown: Timestamp) -> Timestamp {
        Timestamp::from_ms(shown.as_ms().saturating_add_signed(-self.ahead_ms()))
    }

    fn ahead_ms(&self) -> i64 {
        self.ahead_ms.load(Ordering::Relaxed)
    }

    /// Its clock steps. If that is ahead, leases end early by it, and a hold-off has to begin. If it is back, they end later than
    /// was ordered.
    pub fn step_clock(&self, by_ms: i64) {
        self.store.step_clock(by_ms);
        self.ahead_ms.fetch_add(by_ms, Ordering::Relaxed);
        if by_ms > 0 {
            self.checker.lose(leases(&self.states.lock().unwrap()).map(|(lease, _)| lease));
        } else {
            self.checker.note_loss();
        }
    }

    /// All that it has now.
    pub fn save(&self) -> Saved {
        let (states, record) = (self.states.lock().unwrap().clone(), self.record.lock().unwrap().clone());
        Saved { store: self.store.save(), states, record, written: self.checker.facts().story.len() }
    }

    /// Another server takes over, or this one restarts, with what was saved. What came after is lost.
    pub fn fail_over(&self, saved: Saved) {
        // During a switch none is active, and the leases are still here.
        let is_left = self.the_other().is_some_and(|other| other.is_in_charge());
        let kept: Vec<_> = leases(&saved.states).collect();
        let before = std::mem::replace(&mut *self.states.lock().unwrap(), saved.states.clone());
        *self.record.lock().unwrap() = saved.record;
        self.store.fail_over(saved.store);
        self.checker.facts().story[saved.written..].iter_mut().for_each(|written| written.is_lost = true);
        if !is_left {
            self.checker.lose(leases(&before).filter(|lease| !kept.contains(lease)).map(|(lease, _)| lease));
        }
    }

    /// The records of all operations that it has now.
    pub fn operations(&self) -> Records {
        let page =
            Rows::<Option<OperationRecord>>::dump(&self.store, None, usize::MAX).now_or_never().unwrap().unwrap();
        page.items.into_iter().filter_map(|copied| Some((copied.address, copied.state?))).collect()
    }

    /// What its clock shows.
    pub async fn now(&self) -> Timestamp {
        self.store.ping().await.unwrap()
    }

    /// Takes note of a commit that has just been executed for `node`.
    pub fn executed(&self, node: &str, changes: &[Change], committed: &Committed) {
        let CommitResult::Checked(versions) = &committed.result else {
            self.log.saw("clock off");
            return self.log.line(|| format!("{node}  {}: commit refused: {:?}", self.name, committed.result));
        };
        let mut states = self.states.lock().unwrap();
        let mut granted = BTreeSet::new();
        for (change, version) in changes.iter().zip(versions) {
            let key = change.address.key.as_str();
            let Some(version) = version else {
                self.log.saw("lost race");
                self.log.line(|| format!("{node}  {}: {key} lost: not {:?}", self.name, change.expected));
                continue;
            };
            let before = states.insert(change.address.clone(), change.state.clone()).unwrap_or_default();
            if change.events.iter().any(|event| event.kind == EventKind::GivenBack) {
                self.log.saw("given back");
            }
            if !change.state.kept().is_empty() {
                self.log.saw("permits kept");
            }
            let (name, expected) = (self.name, change.expected);
            self.log.line(|| format!("{node}  {name}: {key} {expected:?} -> {version:?} {}", summary(&change.state)));
            self.checker.has(key, &change.state, self.ahead_ms());
            let (states_of_key, now) = ((&before, &change.state), self.true_time(committed.now));
            let had = |lease: &&Lease| before.holders().iter().any(|other| other.lease_id == lease.lease_id);
            granted
                .extend(change.state.holders().iter().filter(|lease| !had(lease)).map(|lease| lease.lease_id.clone()));
            self.checker.committed(key, states_of_key, &change.events, now, self.is_in_charge(), node);
        }
        self.checker.check_multilocks(&granted, |key, lease_id| {
            let state = states.get(&World::address(key));
            state.is_some_and(|state| state.holders().iter().any(|lease| lease.lease_id == *lease_id))
        });
    }
}

fn summary(state: &LockState) -> String {
    let holder = |lease: &Lease| {
        let Lease { lease_id, mode, token, expires_at, .. } = lease;
        let mode = match mode {
            Mode::Exclusive => "x".to_owned(),
            Mode::Shared => "s".to_owned(),
            Mode::Permits(permits) => format!("p{permits}"),
        };
        let group = lease.group.as_ref().map_or("", Group::as_str);
        format!("{}:{mode}:{group}:{}..{}", lease_id.as_str(), token % 100_000_000, expires_at.ms_since(EPOCH))
    };
    let holders: Vec<String> = state.holders().iter().map(holder).collect();
    let turn = |turn: &Turn| {
        let (priority, arrival, until) =
            (turn.position.priority, turn.position.arrival.ms_since(EPOCH), turn.until.ms_since(EPOCH));
        let group = turn.group().map_or("", Group::as_str);
        format!("{}:{group}:{priority}@{arrival}x{}..{until}", turn.node.as_str(), turn.waiting)
    };
    let turns: Vec<String> = state.turns().iter().map(turn).collect();
    format!("held by [{}], turns [{}]", holders.join(" "), turns.join(" "))
}
