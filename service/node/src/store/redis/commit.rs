//! Batches of changes, each written by one call of a script, and locked states.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use latchgate_core::lock::{Event, LockState};
use latchgate_core::{Address, App, InvalidName, Key, Timestamp};
use redis::{Cmd, Value};
use tokio::runtime::Handle;

use super::layout::beginning;
use super::scripts::{COMMIT, Call, Entry, LOCK, Made, PROBE, made, read};
use super::{StoreInner, loaded};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{
    Change, CommitResult, Committed, Loaded, LockedStates, RowKind, RowState, Rule, StoreError, Version,
};

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

pub(super) async fn write<S: RowState>(
    shared: &StoreInner,
    now: Timestamp,
    changes: &[Change<S>],
    rule: Rule,
    locker: Locker<'_>,
) -> Result<Committed, StoreError> {
    let entries = changes.iter().map(|change| Entry::of_change(change, now)).collect::<Result<Vec<_>, _>>()?;
    let epoch = changes.first().map(|change| change.epoch);
    let (now, made) = put(shared, S::KIND, Some(now), epoch, &entries, rule, locker).await?;
    let version = |(entry, made): (&Entry<'_>, bool)| entry.write.as_ref().filter(|_| made).map(|write| write.next);
    let result = match made {
        None => CommitResult::ClockOff,
        Some(made) => CommitResult::Checked(entries.iter().zip(made).map(version).collect()),
    };
    Ok(Committed { now, result, busy: Vec::new() })
}

/// Passes entries to the script.
pub(super) async fn put(
    shared: &StoreInner,
    kind: RowKind,
    now: Option<Timestamp>,
    epoch: Option<Epoch>,
    entries: &[Entry<'_>],
    rule: Rule,
    Locker { name: locker, addresses: locked }: Locker<'_>,
) -> Result<Made, StoreError> {
    let call = Call { kind, now, epoch, rule, locker, locked, history_ms: shared.history_ms };
    let add = |command: &mut Cmd| call.add_to(command, &shared.layout, entries);
    shared.link.write_with(&COMMIT, add).await.map(made)
}

/// Commits a grant of a lock that no client uses, and removes it in the same call.
pub(super) async fn probe(shared: &StoreInner) -> Result<Timestamp, StoreError> {
    // The server has the script of commits, or takes it: the next commit may need that.
    put(shared, RowKind::Lock, None, None, &[], Rule::Each, Locker::default()).await?;
    // What a probe leaves that fails half-way does not disturb the next one.
    let unnamed = |error: InvalidName| StoreError::Unavailable(error.to_string());
    let app = App::parse("latchgate:probe").map_err(unnamed)?;
    let key = Key::parse(&format!("{:016x}", rand::random::<u64>())).map_err(unnamed)?;
    let change = Change {
        address: Address { app, key },
        expected: Version::ABSENT,
        state: LockState::default(),
        events: vec![Event::unreadable(Timestamp::default())],
        notice_at: None,
        keep_until: Timestamp::default(),
        epoch: Epoch::NONE,
    };
    let entries = [Entry::of_change(&change, Timestamp::default())?];
    let call = Call {
        kind: RowKind::Lock,
        now: None,
        epoch: None,
        rule: Rule::Each,
        locker: "",
        locked: &[],
        history_ms: shared.history_ms,
    };
    let add = |command: &mut Cmd| call.add_to(command, &shared.layout, &entries);
    let (now, made) = shared.link.write_with(&PROBE, add).await.map(made)?;
    let is_made = made.is_some_and(|made| made == [true]);
    is_made.then_some(now).ok_or_else(|| StoreError::Unavailable("Redis does not take what a grant writes".to_owned()))
}

/// Locks those of the states that exist. Waits while another call has locked one of them.
pub(super) async fn lock<S: RowState>(
    shared: &Arc<StoreInner>,
    epoch: Epoch,
    addresses: &[Address],
) -> Result<(Loaded<S>, LockedKeys), StoreError> {
    let name = format!("{:016x}", rand::random::<u64>());
    let arguments = [name.clone(), LOCK_MS.to_string(), beginning(EngineState::Active, epoch)];
    let locked = LockedKeys { shared: Arc::clone(shared), kind: S::KIND, name, addresses: addresses.to_vec() };
    let states = addresses.iter().map(|address| shared.layout.state(S::KIND, address));
    let keys: Vec<String> = std::iter::once(shared.layout.engine()).chain(states).collect();
    loop {
        let (now, values): (u64, Option<Value>) = shared.link.read(&LOCK, &keys, &arguments).await?;
        let Some(values) = values else {
            tokio::time::sleep(Duration::from_millis(rand::random_range(LOCK_PAUSE_MS))).await;
            continue;
        };
        let values: Vec<Option<Vec<u8>>> = read(values).map_err(StoreError::of_reading)?;
        return Ok((loaded(addresses, &values, Timestamp::from_ms(now))?, locked));
    }
}

async fn unlock(shared: &StoreInner, kind: RowKind, locker: Locker<'_>) -> Result<(), StoreError> {
    put(shared, kind, None, None, &[], Rule::Each, locker).await?;
    Ok(())
}

/// States that are locked, or are being locked. Dropping this unlocks them.
pub(super) struct LockedKeys {
    shared: Arc<StoreInner>,
    kind: RowKind,
    name: String,
    /// Empty if no state is locked any more.
    addresses: Vec<Address>,
}

#[async_trait]
impl<S: RowState> LockedStates<S> for LockedKeys {
    async fn commit(
        mut self: Box<Self>,
        now: Timestamp,
        changes: &[Change<S>],
        rule: Rule,
    ) -> Result<Committed, StoreError> {
        let locker = Locker { name: &self.name, addresses: &self.addresses };
        let committed = write(&self.shared, now, changes, rule, locker).await?;
        // The script has unlocked them.
        self.addresses.clear();
        Ok(committed)
    }

    async fn give_up(mut self: Box<Self>) -> Result<(), StoreError> {
        unlock(&self.shared, self.kind, Locker { name: &self.name, addresses: &self.addresses }).await?;
        self.addresses.clear();
        Ok(())
    }
}

impl Drop for LockedKeys {
    fn drop(&mut self) {
        if self.addresses.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (shared, kind, name) = (Arc::clone(&self.shared), self.kind, std::mem::take(&mut self.name));
        let addresses = std::mem::take(&mut self.addresses);
        let mut unlocking = Box::pin(async move {
            // If this fails, the lock expires.
            let _ = unlock(&shared, kind, Locker { name: &name, addresses: &addresses }).await;
        });
        // It is polled once here, so that it is sent before the next command of the caller.
        if unlocking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn(unlocking);
        }
    }
}
