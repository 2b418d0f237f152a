//! Batches of changes, each written by one call of a script, and locked states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use latchgate_core::{Address, Timestamp};
use redis::Value;
use tokio::runtime::Handle;

use super::Shared;
use super::layout::{beginning, decode};
use super::scripts::{COMMIT, Call, Entry, LOCK, Made, read, read_made, unexpected};
use super::slot::slot_of;
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{Change, CommitResult, Committed, Loaded, LockedStates, Rule, StoreError, Stored, all_readable};

/// After this time a lock of states expires, in ms. A node holds one only for two round trips.
const LOCK_MS: u64 = 2_000;
/// How long a node waits before it tries again to lock states that another node has locked.
const LOCK_PAUSE_MS: std::ops::Range<u64> = 1..8;

/// A call of [`lock`], by its random name, and the states that it has locked.
#[derive(Clone, Copy, Default)]
pub(super) struct Locker<'a> {
    name: &'a str,
    addresses: &'a [Address],
}

pub(super) async fn write(
    shared: &Shared,
    now: Timestamp,
    changes: &[Change],
    rule: Rule,
    locker: Locker<'_>,
) -> Result<Committed, StoreError> {
    let entries = changes.iter().map(|change| Entry::of_change(change, now)).collect::<Result<Vec<_>, _>>()?;
    let epoch = changes.first().map(|change| change.epoch);
    let (now, made) = put(shared, Some(now), epoch, &entries, rule, locker).await?;
    let version = |(entry, made): (&Entry<'_>, bool)| entry.write.filter(|_| made).map(|(_, version)| version);
    let result = match made {
        None => CommitResult::ClockOff,
        Some(made) => CommitResult::Checked(entries.iter().zip(made).map(version).collect()),
    };
    Ok(Committed { now, result, busy: Vec::new() })
}

/// Passes entries to the script: in one call, or in a cluster in one call for each slot.
pub(super) async fn put(
    shared: &Shared,
    now: Option<Timestamp>,
    epoch: Option<Epoch>,
    entries: &[Entry<'_>],
    rule: Rule,
    locker: Locker<'_>,
) -> Result<Made, StoreError> {
    let mut groups: BTreeMap<u16, Group<'_>> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        groups.entry(shared.slot(entry.address)).or_default().entries.push(index);
    }
    for address in locker.addresses {
        groups.entry(shared.slot(address)).or_default().locked.push(address);
    }
    if groups.len() > 1 && rule == Rule::AllOrNone {
        return Err(StoreError::Unavailable("these keys are in different slots of the cluster".to_owned()));
    }
    let calls = groups.values().map(|group| group.put(shared, (now, epoch), entries, rule, locker.name));
    let answers: Vec<Result<Made, StoreError>> = join_all(calls).await;
    if answers.len() > 1 && answers.iter().any(Result::is_err) {
        return Err(error_of_all(answers));
    }
    let mut clock = Timestamp::default();
    let mut all = vec![false; entries.len()];
    let mut is_off = true;
    for (group, answer) in groups.values().zip(answers) {
        let (shown, made) = answer?;
        let is_first = clock == Timestamp::default();
        match made {
            Some(made) => {
                is_off = false;
                group.entries.iter().zip(made).for_each(|(index, made)| all[*index] = made);
                clock = if is_first { shown } else { clock };
            }
            // This call has written nothing. Its changes count as lost races, and the caller repeats them with this clock.
            None => clock = shown,
        }
    }
    Ok((clock, (!is_off || entries.is_empty()).then_some(all)))
}

/// The error of a batch of which at least one call has failed.
fn error_of_all(answers: Vec<Result<Made, StoreError>>) -> StoreError {
    let nothing_was_done =
        answers.iter().all(|answer| matches!(answer, Err(StoreError::Unavailable(_) | StoreError::Contended(_))));
    let error = answers.into_iter().find_map(Result::err).unwrap_or_else(unexpected);
    if nothing_was_done { error } else { StoreError::OutcomeUnknown(error.to_string()) }
}

/// The entries (by their index) and the locked states of one call.
#[derive(Default)]
struct Group<'a> {
    entries: Vec<usize>,
    locked: Vec<&'a Address>,
}

impl Group<'_> {
    async fn put(
        &self,
        shared: &Shared,
        (now, epoch): (Option<Timestamp>, Option<Epoch>),
        entries: &[Entry<'_>],
        rule: Rule,
        locker: &str,
    ) -> Result<Made, StoreError> {
        let call = Call { now, epoch, rule, locker, locked: &self.locked, history_ms: shared.history_ms };
        let entries: Vec<&Entry<'_>> = self.entries.iter().map(|index| &entries[*index]).collect();
        let is_cluster = shared.servers.is_cluster();
        let keys = call.keys(&shared.layout, is_cluster, &entries);
        let arguments = call.arguments(is_cluster, &entries)?;
        let answer = shared.servers.run(&COMMIT, &keys, &arguments).await.map_err(|failed| failed.of_write())?;
        read_made(answer)
    }
}

/// Locks those of the states that exist. Waits while another call has locked one of them.
pub(super) async fn lock(
    shared: &Arc<Shared>,
    epoch: Epoch,
    addresses: &[Address],
) -> Result<(Loaded, Locked), StoreError> {
    let name = format!("{:016x}", rand::random::<u64>());
    let mut locked = Locked { shared: Arc::clone(shared), name, addresses: Vec::new() };
    let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (index, address) in addresses.iter().enumerate() {
        groups.entry(shared.slot(address)).or_default().push(index);
    }
    let mut states = vec![Ok(Stored::default()); addresses.len()];
    let mut now = Timestamp::default();
    // The slots are locked in their order, so that two calls cannot deadlock.
    for indexes in groups.values() {
        let state_keys = indexes.iter().map(|index| shared.layout.state(&addresses[*index]));
        let is_fenced = !shared.servers.is_cluster();
        let keys: Vec<String> = is_fenced.then(|| shared.layout.engine()).into_iter().chain(state_keys).collect();
        let record = if is_fenced { beginning(EngineState::Active, epoch) } else { String::new() };
        locked.addresses.extend(indexes.iter().map(|index| addresses[*index].clone()));
        let values = loop {
            let arguments = [locked.name.clone(), LOCK_MS.to_string(), record.clone()];
            let answer = shared.servers.run(&LOCK, &keys, &arguments).await.map_err(|failed| failed.of_read())?;
            let (shown, values): (u64, Option<Value>) = read(answer).map_err(StoreError::of_reading)?;
            now = Timestamp::from_ms(shown);
            match values {
                Some(values) => break read::<Vec<Option<Vec<u8>>>>(values).map_err(StoreError::of_reading)?,
                None => tokio::time::sleep(Duration::from_millis(rand::random_range(LOCK_PAUSE_MS))).await,
            }
        };
        for (index, value) in indexes.iter().zip(values) {
            states[*index] = decode(value.as_deref());
        }
    }
    Ok((Loaded { states: all_readable(addresses, states)?, now }, locked))
}

async fn unlock(shared: &Shared, locker: Locker<'_>) -> Result<(), StoreError> {
    put(shared, None, None, &[], Rule::Each, locker).await?;
    Ok(())
}

/// States that are locked, or are being locked. Dropping this unlocks them.
pub(super) struct Locked {
    shared: Arc<Shared>,
    name: String,
    /// Empty if no state is locked any more.
    addresses: Vec<Address>,
}

impl Locked {
    async fn write(mut self, now: Timestamp, changes: &[Change], rule: Rule) -> Result<Committed, StoreError> {
        let locker = Locker { name: &self.name, addresses: &self.addresses };
        let committed = write(&self.shared, now, changes, rule, locker).await?;
        // The script has unlocked them.
        self.addresses.clear();
        Ok(committed)
    }
}

#[async_trait]
impl LockedStates for Locked {
    async fn commit(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::Each).await
    }

    async fn commit_all(self: Box<Self>, now: Timestamp, changes: &[Change]) -> Result<Committed, StoreError> {
        self.write(now, changes, Rule::AllOrNone).await
    }

    async fn give_up(mut self: Box<Self>) -> Result<(), StoreError> {
        unlock(&self.shared, Locker { name: &self.name, addresses: &self.addresses }).await?;
        self.addresses.clear();
        Ok(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.addresses.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (shared, name) = (Arc::clone(&self.shared), std::mem::take(&mut self.name));
        let addresses = std::mem::take(&mut self.addresses);
        let mut unlocking = Box::pin(async move {
            // If this fails, the lock expires.
            let _ = unlock(&shared, Locker { name: &name, addresses: &addresses }).await;
        });
        // It is polled once here, so that it is sent before the next command of the caller.
        if unlocking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn(unlocking);
        }
    }
}

impl Shared {
    /// The slot of a lock's keys; 0 without a cluster.
    pub(super) fn slot(&self, address: &Address) -> u16 {
        if self.servers.is_cluster() { slot_of(&self.layout.state(address)) } else { 0 }
    }
}
