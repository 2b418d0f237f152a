//! Whether the primary store can be relied on, and what has to be put right when it is back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, Outcome, StoreRole};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::active::Active;
use super::stamp::Home;
use super::{COMMAND_MAX, Inner, Second};
use crate::store::StoreError;
use crate::store::gate::{Fence, Stored};

/// How often a store that is away is probed.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How often records of the fallback are looked for while the second store is active.
const SETTLE_EVERY: Duration = Duration::from_secs(1);
/// How often records that other nodes left in the fallback store are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the primary is taken for returning at least: claims that were on their way to the fallback store when it came
/// back, here or at a node that has not noticed yet, have arrived by then.
const RETURN_MIN: Duration = Duration::from_secs(1);
/// Records carried back at a time.
const CARRY_MAX: usize = 200;
/// The log says each time how many have been carried back.
const CARRIED_SHOWN_EVERY: u64 = 5_000;
/// How often a record is carried in one round if it changes each time before it can be removed.
const CARRY_TRIES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Primary {
    Up,
    /// It serves all callers again, but the fallback store may still have records: a pre first carries that of its operation.
    Returning,
    /// It does not answer: nodes only probe whether it is back.
    Down,
}

pub(super) struct Outage {
    primary: watch::Sender<Primary>,
    /// What could not be carried back, because it cannot be decoded. Another pre of it must not go in the primary.
    left_behind: Mutex<HashSet<OperationAddress>>,
}

impl Default for Outage {
    /// Nodes that ran before may have left records in the fallback store.
    fn default() -> Self {
        Self { primary: watch::Sender::new(Primary::Returning), left_behind: Mutex::default() }
    }
}

impl Outage {
    pub(super) fn state(&self) -> Primary {
        *self.primary.borrow()
    }

    /// Whether a pre in the primary must first look at what the second store has of the operation.
    pub(super) fn may_be_in_second(&self, address: &OperationAddress) -> bool {
        self.state() == Primary::Returning || self.left_behind.lock().contains(address)
    }

    pub(super) fn is_down(&self) -> bool {
        self.state() == Primary::Down
    }

    pub(super) fn begin(&self, error: &StoreError) {
        let has_begun = self.primary.send_if_modified(|was| std::mem::replace(was, Primary::Down) != Primary::Down);
        if has_begun {
            tracing::warn!(%error, "the gate's store is down");
        }
    }

    /// Until the primary is no longer down.
    pub(super) async fn ended(&self) {
        // The sender lives as long as `self`.
        let _ = self.primary.subscribe().wait_for(|primary| *primary != Primary::Down).await;
    }

    /// Unless it has turned to something else meanwhile.
    fn turn(&self, from: Primary, to: Primary) -> bool {
        self.primary.send_if_modified(|was| {
            let turns = *was == from;
            if turns {
                *was = to;
            }
            turns
        })
    }
}

/// Looks after the primary: finds out that it is back, and carries back what was claimed in the second store.
pub(super) async fn look_after(inner: Arc<Inner>) {
    let mut primary = inner.outage.primary.subscribe();
    loop {
        let settled = primary.wait_for(|primary| *primary != Primary::Up);
        let is_away = tokio::time::timeout(LOOK_EVERY, settled).await.is_ok();
        let Some(active) = inner.active(Home::Primary).filter(|active| active.is_primary) else {
            // When the primary is active again, records of the second store are looked for first.
            inner.outage.primary.send_if_modified(|was| std::mem::replace(was, Primary::Returning) == Primary::Down);
            if let Some(active) = inner.active(Home::Primary) {
                settle(&active).await;
            }
            tokio::time::sleep(SETTLE_EVERY).await;
            continue;
        };
        if inner.outage.is_down() {
            if !active.target.gate.is_up(active.fence()).await {
                tokio::time::sleep(PROBE_EVERY).await;
                continue;
            }
            if inner.outage.turn(Primary::Down, Primary::Returning) {
                tracing::info!("the gate's store is back");
            }
        }
        match carry_all_back(&inner, &active, is_away).await {
            Ok(()) => {}
            Err(StoreError::EpochOver) => {
                inner.engines.refresh(active.epoch).await;
                tokio::time::sleep(PROBE_EVERY).await;
                continue;
            }
            Err(error) => {
                inner.outage.begin(&error);
                tokio::time::sleep(PROBE_EVERY).await;
                continue;
            }
        }
        if inner.outage.turn(Primary::Returning, Primary::Up) {
            tracing::info!("the gate's store is up");
        }
    }
}

/// While the second store is active, its records of the fallback are its own: nothing is carried back.
async fn settle(active: &Active<'_>) {
    loop {
        let listing = active.target.gate.store().fallbacks(CARRY_MAX);
        let Ok(Ok(found)) = tokio::time::timeout(COMMAND_MAX, listing).await else { return };
        let found: Vec<_> = found.into_iter().filter_map(|(address, stored)| Some((address, stored?))).collect();
        if found.is_empty() {
            return;
        }
        for (address, stored) in found {
            let own = stored.record.clone().settled();
            if !matches!(active.target.gate.put(active.fence(), &address, &stored, Some(&own)).await, Ok(true)) {
                // It has changed meanwhile, or the store does not answer: it is found again.
                return;
            }
        }
    }
}

/// # Errors
/// When the primary is away again, or is not active any more.
async fn carry_all_back(inner: &Inner, active: &Active<'_>, is_away: bool) -> Result<(), StoreError> {
    let Some(second) = &inner.second else { return Ok(()) };
    carry_round(inner, active, second).await?;
    if is_away {
        tokio::time::sleep(RETURN_MIN).await;
        carry_round(inner, active, second).await?;
    }
    Ok(())
}

/// Carries back all that is found, as far as the second store lets it: what stays is found at the next look.
///
/// # Errors
/// When the primary is away again.
async fn carry_round(inner: &Inner, active: &Active<'_>, second: &Second) -> Result<(), StoreError> {
    let mut tries: HashMap<OperationAddress, u32> = HashMap::new();
    let mut left_behind = HashSet::new();
    let (mut carried, mut shown) = (0, 0);
    loop {
        let is_given_up = |tries: u32| tries >= CARRY_TRIES_MAX;
        let given_up = tries.values().filter(|tries| is_given_up(**tries)).count();
        let listing = second.own.gate.store().fallbacks(CARRY_MAX + given_up);
        let Ok(Ok(mut found)) = tokio::time::timeout(COMMAND_MAX, listing).await else {
            tracing::warn!("the fallback store does not answer: nothing can be carried back");
            return Ok(());
        };
        found.retain(|(address, _)| !tries.get(address).is_some_and(|tries| is_given_up(*tries)));
        if carried >= shown + CARRIED_SHOWN_EVERY || (found.is_empty() && carried > 0) {
            shown = carried;
            tracing::info!(carried, is_complete = found.is_empty(), "operations are carried back to the primary store");
        }
        if found.is_empty() {
            *inner.outage.left_behind.lock() = left_behind;
            return Ok(());
        }
        for (address, stored) in found {
            let Some(stored) = stored else {
                tracing::error!(id = %address.id, "a record cannot be decoded, and is not carried back");
                tries.insert(address.clone(), CARRY_TRIES_MAX);
                left_behind.insert(address);
                continue;
            };
            match carry_back(inner, active, second, &address, &stored).await {
                Ok(Removed::Yes) => carried += 1,
                // It has changed meanwhile: it is found, and carried, once more.
                Ok(Removed::Changed) => *tries.entry(address).or_default() += 1,
                Ok(Removed::Failed) => return Ok(()),
                Err(StoreError::EpochOver) => return Err(StoreError::EpochOver),
                // The primary answers, so it is about this record: the others are carried all the same.
                Err(error) if active.target.gate.is_up(active.fence()).await => {
                    tracing::warn!(%error, id = %address.id, "a record could not be carried back");
                    tries.insert(address, CARRY_TRIES_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Carries back one operation that a caller requests, if it was claimed in the second store while the primary was away.
///
/// # Errors
/// When the primary does not take it.
pub(super) async fn carry_one_back(
    inner: &Inner,
    active: &Active<'_>,
    address: &OperationAddress,
) -> Result<(), StoreError> {
    let Some(second) = &inner.second else { return Ok(()) };
    let load = second.own.gate.store().load(Fence::None, address);
    match tokio::time::timeout(COMMAND_MAX, load).await {
        Ok(Ok(at)) => {
            if let Some(stored) = at.answer.filter(|stored| stored.record.claimed_in == StoreRole::Fallback) {
                carry_back(inner, active, second, address, &stored).await?;
            }
        }
        Ok(Err(error @ StoreError::Unreadable { .. })) => return Err(error),
        Ok(Err(error)) => tracing::warn!(%error, id = %address.id, "the fallback store does not answer"),
        Err(_) => tracing::warn!(id = %address.id, "the fallback store does not answer in time"),
    }
    Ok(())
}

/// Whether a record that was carried back is gone from the second store.
enum Removed {
    Yes,
    /// It has changed since it was read.
    Changed,
    Failed,
}

/// Unites a record with what the primary, which is active, has of the operation, and then removes it from the second store. A
/// switch in between replaces the record there, so that it is not removed.
///
/// # Errors
/// When the primary does not take it.
async fn carry_back(
    inner: &Inner,
    primary: &Active<'_>,
    second: &Second,
    address: &OperationAddress,
    stored: &Stored,
) -> Result<Removed, StoreError> {
    let carried = Command::CarryBack(Box::new(stored.record.clone()));
    let reply = primary.target.gate.apply(primary.fence(), address, &carried).await?;
    if reply.outcome == (Outcome::Carried { suspected: true }) {
        inner.metrics.double_runs.inc();
        let operation = stored.record.operation.as_str();
        tracing::warn!(id = %address.id, operation, "suspected double run: two stores had a success");
    }
    Ok(match second.own.gate.put(Fence::None, address, stored, None).await {
        Ok(true) => Removed::Yes,
        Ok(false) => Removed::Changed,
        Err(error) => {
            tracing::warn!(%error, id = %address.id, "a record that was carried back could not be removed");
            Removed::Failed
        }
    })
}
