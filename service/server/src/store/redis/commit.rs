//! Batches of changes, each written by one script; and states that are locked for one.

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
use super::layout::decode;
use super::scripts::{COMMIT, Call, Entry, LOCK, Made, read, read_made, unexpected};
use super::slot::slot_of;
use crate::store::{Change, CommitResult, Committed, Loaded, LockedStates, Rule, StoreError, Stored};

/// After this a lock of states lapses, in ms: nobody holds one for longer than two round trips.
const LOCK_MS: u64 = 2_000;
/// How long to wait for a lock that somebody else has, until it is tried again.
const LOCK_PAUSE_MS: std::ops::Range<u64> = 1..8;

/// Who has locked what.
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
    let (now, made) = put(shared, Some(now), &entries, rule, locker).await?;
    let version = |(entry, made): (&Entry<'_>, bool)| entry.write.filter(|_| made).map(|(_, version)| version);
    let result = match made {
        None => CommitResult::ClockOff,
        Some(made) => CommitResult::Checked(entries.iter().zip(made).map(version).collect()),
    };
    Ok(Committed { now, result })
}

/// Puts entries to the script: in one call, or in a cluster in one for each slot.
pub(super) async fn put(
    shared: &Shared,
    now: Option<Timestamp>,
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
    let calls = groups.values().map(|group| group.put(shared, now, entries, rule, locker.name));
    let answers: Vec<Result<Made, StoreError>> = join_all(calls).await;
    if answers.len() > 1 && answers.iter().any(Result::is_err) {
        return Err(of_part(answers));
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
            // What it did not write counts as lost: it is tried again, by this clock.
            None => clock = shown,
        }
    }
    Ok((clock, (!is_off || entries.is_empty()).then_some(all)))
}

/// What a batch that failed in one part of a cluster is told.
fn of_part(answers: Vec<Result<Made, StoreError>>) -> StoreError {
    let nothing_was_done =
        answers.iter().all(|answer| matches!(answer, Err(StoreError::Unavailable(_) | StoreError::Contended(_))));
    let error = answers.into_iter().find_map(Result::err).unwrap_or_else(unexpected);
    if nothing_was_done { error } else { StoreError::OutcomeUnknown(error.to_string()) }
}

/// Entries and locked states of one call, the entries by their index.
#[derive(Default)]
struct Group<'a> {
    entries: Vec<usize>,
    locked: Vec<&'a Address>,
}

impl Group<'_> {
    async fn put(
        &self,
        shared: &Shared,
        now: Option<Timestamp>,
        entries: &[Entry<'_>],
        rule: Rule,
        locker: &str,
    ) -> Result<Made, StoreError> {
        let call = Call { now, rule, locker, locked: &self.locked, history_ms: shared.history_ms };
        let entries: Vec<&Entry<'_>> = self.entries.iter().map(|index| &entries[*index]).collect();
        let is_cluster = shared.servers.is_cluster();
        let keys = call.keys(&shared.layout, is_cluster, &entries);
        let arguments = call.arguments(is_cluster, &entries)?;
        let answer = shared.servers.run(&COMMIT, &keys, &arguments).await.map_err(|failed| failed.of_write())?;
        read_made(answer)
    }
}

/// Locks what is there of the states; waits while somebody else has locked one of them.
pub(super) async fn lock(shared: &Arc<Shared>, addresses: &[Address]) -> Result<(Loaded, Locked), StoreError> {
    let name = format!("{:016x}", rand::random::<u64>());
    let mut locked = Locked { shared: Arc::clone(shared), name, addresses: Vec::new() };
    let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (index, address) in addresses.iter().enumerate() {
        groups.entry(shared.slot(address)).or_default().push(index);
    }
    let mut states = vec![Stored::default(); addresses.len()];
    let mut now = Timestamp::default();
    // One slot after the other, always in their order, so that no two wait for each other.
    for indexes in groups.values() {
        let keys: Vec<String> = indexes.iter().map(|index| shared.layout.state(&addresses[*index])).collect();
        locked.addresses.extend(indexes.iter().map(|index| addresses[*index].clone()));
        let values = loop {
            let arguments = [locked.name.clone(), LOCK_MS.to_string()];
            let answer = shared.servers.run(&LOCK, &keys, &arguments).await.map_err(|failed| failed.of_read())?;
            let (shown, values): (u64, Option<Value>) = read(answer).map_err(StoreError::of_reading)?;
            now = Timestamp::from_ms(shown);
            match values {
                Some(values) => break read::<Vec<Option<Vec<u8>>>>(values).map_err(StoreError::of_reading)?,
                None => tokio::time::sleep(Duration::from_millis(rand::random_range(LOCK_PAUSE_MS))).await,
            }
        };
        for (index, value) in indexes.iter().zip(values) {
            states[*index] = decode(value.as_deref())?;
        }
    }
    Ok((Loaded { states, now }, locked))
}

async fn unlock(shared: &Shared, locker: Locker<'_>) -> Result<(), StoreError> {
    put(shared, None, &[], Rule::Each, locker).await?;
    Ok(())
}

/// States that are locked, or about to be. Dropped, it unlocks them.
pub(super) struct Locked {
    shared: Arc<Shared>,
    name: String,
    /// Nothing is locked any more when it is empty.
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
            // If it fails, the lock lapses.
            let _ = unlock(&shared, Locker { name: &name, addresses: &addresses }).await;
        });
        // Begun here, so that it is on its way before whatever the caller sends next.
        if unlocking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn(unlocking);
        }
    }
}

impl Shared {
    /// The slot of a lock's keys; where there is no cluster, all are together.
    pub(super) fn slot(&self, address: &Address) -> u16 {
        if self.servers.is_cluster() { slot_of(&self.layout.state(address)) } else { 0 }
    }
}
