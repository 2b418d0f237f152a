//! Whether the primary store can be relied on, and what has to be put right when it is back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, Outcome, Shelf};
use tokio::sync::watch;

use super::{Inner, Side};
use crate::store::StoreError;
use crate::store::engines::gate::GateEngines;
use crate::store::gate::Stored;

/// How often a store that is away is asked whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How often records that other nodes left in the fallback store are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the primary is taken for returning at least: claims that were on their way to the fallback store when it came
/// back, here or at a node that has not noticed yet, have arrived by then.
const RETURN_MIN: Duration = Duration::from_secs(1);
/// Records carried back at a time.
const CARRY_MAX: usize = 200;
/// How often a record is carried in one round if it changes each time before it can be removed.
const CARRY_TRIES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Primary {
    Up,
    /// It serves everybody again, but the fallback store may still have records of operations: who asks for one of them
    /// has it carried first.
    Returning,
    /// It does not answer: nothing is asked of it but whether it is back.
    Down,
}

pub(super) struct Outage {
    primary: watch::Sender<Primary>,
}

impl Default for Outage {
    /// Whoever ran before may have left records in the fallback store.
    fn default() -> Self {
        Self { primary: watch::Sender::new(Primary::Returning) }
    }
}

impl Outage {
    pub(super) fn state(&self) -> Primary {
        *self.primary.borrow()
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

/// Looks after the primary: finds out that it is back, and carries back what was claimed elsewhere.
pub(super) async fn look_after(inner: Arc<Inner>) {
    let mut primary = inner.outage.primary.subscribe();
    loop {
        let settled = primary.wait_for(|primary| *primary != Primary::Up);
        let is_away = tokio::time::timeout(LOOK_EVERY, settled).await.is_ok();
        while inner.outage.is_down() && !is_back(&inner).await {
            tokio::time::sleep(PROBE_EVERY).await;
        }
        if inner.outage.turn(Primary::Down, Primary::Returning) {
            tracing::info!("the gate's store is back");
        }
        match carry_all_back(&inner, is_away).await {
            Ok(true) => {}
            // Nobody knows yet which way to carry.
            Ok(false) => {
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

async fn is_back(inner: &Inner) -> bool {
    let ping = tokio::time::timeout(inner.limits.command_max, inner.primary.gate.store().ping()).await;
    let confirms = async |engines: &GateEngines| {
        let standing = engines.standing();
        // Whoever finds the primary back may claim there.
        standing.is_moving() || !standing.is_first() || engines.confirmed().await.is_some()
    };
    match &inner.engines {
        Some(engines) => matches!(ping, Ok(Ok(_))) && confirms(engines).await,
        None => matches!(ping, Ok(Ok(_))),
    }
}

/// Returns whether the records of the fallback were looked for.
///
/// # Errors
/// When the primary is away again.
async fn carry_all_back(inner: &Inner, is_away: bool) -> Result<bool, StoreError> {
    let Some(second) = &inner.second else { return Ok(true) };
    if !put_right(inner, second).await? {
        return Ok(false);
    }
    if is_away {
        tokio::time::sleep(RETURN_MIN).await;
        return put_right(inner, second).await;
    }
    Ok(true)
}

/// Unites records of the fallback with those of the primary, in the active engine.
async fn put_right(inner: &Inner, second: &Side) -> Result<bool, StoreError> {
    let Some(engines) = &inner.engines else { return carry_round(inner, second, Direction::Back).await.map(|()| true) };
    let Some(standing) = engines.confirmed().await else { return Ok(false) };
    let direction = if standing.is_first() { Direction::Back } else { Direction::Over };
    carry_round(inner, second, direction).await.map(|()| true)
}

/// To the active engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the second store to the primary.
    Back,
    /// From the primary to the second store.
    Over,
}

/// Carries back all that is found, as far as the second store lets it: what stays is found at the next look.
///
/// # Errors
/// When the primary is away again.
async fn carry_round(inner: &Inner, second: &Side, direction: Direction) -> Result<(), StoreError> {
    let mut tries: HashMap<OperationAddress, u32> = HashMap::new();
    loop {
        let is_given_up = |tries: u32| tries >= CARRY_TRIES_MAX;
        let given_up = tries.values().filter(|tries| is_given_up(**tries)).count();
        let listing = second.gate.store().fallbacks(CARRY_MAX + given_up);
        let Ok(Ok(mut found)) = tokio::time::timeout(inner.limits.command_max, listing).await else {
            tracing::warn!("the fallback store does not answer: nothing can be carried back");
            return Ok(());
        };
        found.retain(|(address, _)| !tries.get(address).is_some_and(|tries| is_given_up(*tries)));
        if found.is_empty() {
            return Ok(());
        }
        for (address, stored) in found {
            let carried = match direction {
                Direction::Back => carry_back(inner, second, &address, &stored).await,
                Direction::Over => settle(inner, second, &address, &stored).await,
            };
            match carried {
                Ok(Removed::Yes) => {}
                // It has changed meanwhile: it is found, and carried, once more.
                Ok(Removed::Changed) => *tries.entry(address).or_default() += 1,
                Ok(Removed::Failed) => return Ok(()),
                // The primary answers, so it is about this record: the others are carried all the same.
                Err(error) if is_back(inner).await => {
                    tracing::warn!(%error, id = %address.id, "a record could not be carried back");
                    tries.insert(address, CARRY_TRIES_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Carries back one operation that somebody asks for, if it was claimed in the second store while the primary was away.
///
/// # Errors
/// When the primary does not take it.
pub(super) async fn carry_one_back(inner: &Inner, address: &OperationAddress) -> Result<(), StoreError> {
    let Some(second) = &inner.second else { return Ok(()) };
    let found = tokio::time::timeout(inner.limits.command_max, second.gate.store().load(address)).await;
    match found {
        Ok(Ok(at)) => {
            if let Some(stored) = at.answer.filter(|stored| stored.record.claimed_in == Shelf::Fallback) {
                carry_back(inner, second, address, &stored).await?;
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, id = %address.id, "the fallback store cannot be asked"),
        Err(_) => tracing::warn!(id = %address.id, "the fallback store does not answer in time"),
    }
    Ok(())
}

/// Whether a record that was carried back is gone from the second store.
pub(super) enum Removed {
    Yes,
    /// It has changed since it was read.
    Changed,
    Failed,
}

/// # Errors
/// When the primary does not take it.
async fn carry_back(
    inner: &Inner,
    second: &Side,
    address: &OperationAddress,
    stored: &Stored,
) -> Result<Removed, StoreError> {
    carry(second, &inner.primary, address, stored, || inner.may_carry(true)).await
}

/// The second store is the active engine: a record of the fallback stays there, with what the primary knows of it.
///
/// # Errors
/// When the primary does not answer.
async fn settle(
    inner: &Inner,
    second: &Side,
    address: &OperationAddress,
    stored: &Stored,
) -> Result<Removed, StoreError> {
    if !inner.may_carry(false) {
        return Ok(Removed::Failed);
    }
    if let Some(known) = inner.primary.gate.remembered(address).await? {
        return Ok(match carry(&inner.primary, second, address, &known, || inner.may_carry(false)).await {
            // It is found once more, and nothing is known of it then.
            Ok(Removed::Yes | Removed::Changed) => Removed::Changed,
            Ok(Removed::Failed) | Err(_) => Removed::Failed,
        });
    }
    Ok(match second.gate.settle(address, stored).await {
        Ok(true) => Removed::Yes,
        Ok(false) => Removed::Changed,
        Err(error) => {
            tracing::warn!(%error, id = %address.id, "a record of the fallback could not be settled");
            Removed::Failed
        }
    })
}

/// Unites a record with what `to` has of the operation, and then removes it. Not if `may_remove` is over by then: whoever
/// looked into the one store before it was united may look into the other after it was removed.
///
/// # Errors
/// When `to` does not take it.
pub(super) async fn carry(
    from: &Side,
    to: &Side,
    address: &OperationAddress,
    stored: &Stored,
    may_remove: impl Fn() -> bool,
) -> Result<Removed, StoreError> {
    let told = to.gate.apply(address, &Command::CarryBack(Box::new(stored.record.clone()))).await?;
    if told.outcome == (Outcome::Carried { suspected: true }) {
        let operation = stored.record.operation.as_str();
        tracing::warn!(id = %address.id, operation, "suspected double run: two stores had a success");
    }
    if !may_remove() {
        return Ok(Removed::Failed);
    }
    Ok(match from.gate.remove(address, stored).await {
        Ok(true) => Removed::Yes,
        Ok(false) => Removed::Changed,
        Err(error) => {
            tracing::warn!(%error, id = %address.id, "a record that was carried back could not be removed");
            Removed::Failed
        }
    })
}
