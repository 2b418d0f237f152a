//! The engine record: what a store says of itself, so that it can refuse nodes that do not know it yet.
//!
//! A store keeps one record for locks and one for the gate, and a third one if it is the second store of a gate: see [`Purpose`].
//! Every load and every commit names an epoch, and the store refuses
//! it in the same statement or script unless its record says `active` in this epoch. So a change of the record stops every
//! node at once, whatever the node believes and however long it was paused.

use std::fmt;

use async_trait::async_trait;
use latchgate_core::Timestamp;
use latchgate_core::lock::{token_at, token_time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::StoreError;

/// Numbers the times in which one store is written to under one rule about new grants. A change of the engine, a fail-over
/// of it and every change of a hold-off begin a new epoch, and so does the collection before it removes states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(u64);

/// Epochs are ahead of the clock by a multiple of this, in ms. When an operator leaves a stopped engine, the new epoch is one more
/// ahead: the stopped engine may have had a later epoch, or a faster clock.
const EPOCH_LEAD_MS: u64 = 60_000;

impl Epoch {
    /// Before the first epoch: of an engine that was never active.
    pub const NONE: Self = Self(0);

    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u64 {
        self.0
    }

    /// The epoch after this one. Epochs follow the clock, so that two that were chosen without knowledge of each other differ: also
    /// while they are ahead of it.
    #[must_use]
    pub fn next(self, now: Timestamp) -> Self {
        Self(now.as_ms() + self.leads(now) * EPOCH_LEAD_MS)
    }

    /// The epoch after this one and after those that were begun after it and are not known.
    #[must_use]
    pub fn ahead_of(self, now: Timestamp) -> Self {
        Self(now.as_ms() + (self.leads(now) + 1) * EPOCH_LEAD_MS)
    }

    /// No token that is granted in this epoch is lower. The collection removes only states whose tokens are: so the tokens of a key rise
    /// although its state was removed, whatever the store's clock does.
    pub const fn token_min(self) -> u64 {
        token_at(Timestamp::from_ms(self.0))
    }

    /// The first epoch in which all new tokens are higher than `token`.
    pub const fn above_token(token: u64) -> Self {
        Self(token_time(token).as_ms() + 1)
    }

    /// How many leads the next epoch is ahead of the clock.
    fn leads(self, now: Timestamp) -> u64 {
        (self.0 + 1).saturating_sub(now.as_ms()).div_ceil(EPOCH_LEAD_MS)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EngineStateName)]
pub enum EngineState {
    /// Ready to become active; what it holds does not count.
    #[default]
    Standby,
    /// Copiers write the states of the other engine into it.
    Filling,
    /// Nodes read and write it.
    Active,
    /// Frozen: its states are being copied to the other engine.
    Moving,
    /// Its states were copied to the other engine, or an operator said that it is stopped.
    Retired,
}

impl EngineState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Filling => "filling",
            Self::Active => "active",
            Self::Moving => "moving",
            Self::Retired => "retired",
        }
    }
}

/// Which records a store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Locks,
    Gate,
    /// Durable operations, in the second store of a gate.
    Durable,
}

impl Purpose {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Gate => "gate",
            Self::Durable => "durable",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRecord {
    pub state: EngineState,
    pub epoch: Epoch,
    /// The names of both engines of the pair in alphabetical order; empty for a store that is used alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pair: Vec<String>,
    /// Until then, by the store's clock, nothing new is granted: leases that clients hold may be missing here.
    #[serde(default)]
    pub hold_off_until: Timestamp,
    /// Until then, by the store's clock, leases that clients hold may be missing here, and an operator has forced grants all
    /// the same.
    #[serde(default)]
    pub forced_until: Timestamp,
    /// How far the store's clock has jumped ahead, as far as nodes have dealt with it, in ms: the sum of all jumps.
    #[serde(default)]
    pub jumped_ms: u64,
    /// The longest lease that the cluster has needed so far, in ms: see [`lease_step`]. A hold-off lasts as long. The first longer
    /// lease raises it; only an operator lowers it.
    pub lease_ms_max: u64,
    /// The epoch that an operator began by lowering `lease_ms_max`. A lower number without a later such epoch is a loss.
    #[serde(default)]
    pub lowered: Epoch,
    /// How many states the copier had copied when it retired this engine: an engine with fewer has lost some. The highest number if
    /// the copy is not known to be complete.
    #[serde(default)]
    pub copied: u64,
    /// How many states the copier had left out, because they cannot be decoded.
    #[serde(default)]
    pub unreadable: u64,
    /// The epoch in which the store last became active after the other engine; [`Epoch::NONE`] if it never did.
    #[serde(default)]
    pub since: Epoch,
    /// The epoch that began with the last loss of data, after which events from before it may be missing; [`Epoch::NONE`] if there was none.
    #[serde(default)]
    pub lost: Epoch,
    /// The epoch in which the store was found without a record, by a node that had used none before; [`Epoch::NONE`] after a loss.
    #[serde(default)]
    pub founded: Epoch,
    /// The last epoch in which the other engine of the pair is known to have been active.
    #[serde(default)]
    pub beside: Epoch,
    /// The other engine of the pair has lost what it had. Either a node knew that this one was not left for it, or a hold-off has begun.
    #[serde(default)]
    pub lost_beside: bool,
}

/// The lengths that `lease_ms_max` of an engine record rises to, in ms, before the longest lease that is allowed.
const LEASE_STEPS: [u64; 2] = [60_000, 600_000];

/// What `lease_ms_max` becomes for a lease of `ttl_ms`, where `ttl_ms_max` is the longest lease that is allowed.
pub fn lease_step(ttl_ms: u64, ttl_ms_max: u64) -> u64 {
    let step = LEASE_STEPS.into_iter().find(|step| ttl_ms <= *step).unwrap_or(ttl_ms_max);
    step.min(ttl_ms_max).max(ttl_ms)
}

/// A node's clock may be ahead by the clock bound, and by its clock a lease ends late.
const HOLD_OFF_MARGIN_MS: u64 = 2 * latchgate_core::CLOCK_BOUND_MS;

impl EngineRecord {
    pub fn new(state: EngineState, epoch: Epoch, pair: &[String], lease_ms_max: u64) -> Self {
        Self { state, epoch, pair: pair.to_vec(), lease_ms_max, ..Self::default() }
    }

    /// The same in another state and epoch.
    #[must_use]
    pub fn turned(&self, state: EngineState, epoch: Epoch) -> Self {
        Self { state, epoch, ..self.clone() }
    }

    /// The same after a loss of data.
    #[must_use]
    pub fn with_loss(&self) -> Self {
        Self { lost: self.epoch, ..self.clone() }
    }

    /// Which events the store has: those since a switch to it, or since a loss. Cursors name it. Later eras have higher numbers, whichever
    /// engine of a pair they are of.
    pub fn era(&self) -> u64 {
        self.since.max(self.lost).number()
    }

    /// The same with a hold-off of at least `lease_ms`, beginning at `now`.
    #[must_use]
    pub fn held_off(&self, lease_ms: u64, now: Timestamp) -> Self {
        let hold_off_until = now.plus_ms(lease_ms + HOLD_OFF_MARGIN_MS).max(self.hold_off_until);
        Self { hold_off_until, ..self.clone() }
    }

    /// The same without a hold-off. Grants say until when leases may be missing.
    #[must_use]
    pub fn forced(&self) -> Self {
        let forced_until = self.hold_off_until.max(self.forced_until);
        Self { hold_off_until: Timestamp::default(), forced_until, ..self.clone() }
    }
}

/// An engine record as a store holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// `None` while the store has none: it is new, or has lost what it had.
    pub record: Option<EngineRecord>,
    /// Which write made the record, at random: 0 while there is none.
    pub revision: u64,
    /// How many states copiers have written since the store began to fill.
    pub copied: u64,
    /// Which server answered, where a fail-over shows in it.
    pub server: String,
    /// The record was written on another server: commits that were acknowledged may be missing here.
    pub is_after_fail_over: bool,
    /// What this node had seen on disk is missing, and the record does not say so. It may be of any age. Then it counts as after a fail-over,
    /// too.
    pub has_gone_back: bool,
    /// The store's clock while it answered.
    pub now: Timestamp,
    /// Why the store may forget what it acknowledges, if it may.
    pub risk: Option<Risk>,
}

/// A setting with which a store may forget what it acknowledges, and which may have changed since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Risk {
    pub what: String,
    /// The operator has accepted it: see `--allow-eviction` and `--allow-volatile`.
    pub is_accepted: bool,
}

impl Reading {
    pub fn is(&self, state: EngineState) -> bool {
        self.record.as_ref().is_some_and(|record| record.state == state)
    }

    pub fn epoch(&self) -> Epoch {
        self.record.as_ref().map_or(Epoch::NONE, |record| record.epoch)
    }
}

/// How a pool of connections is used at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub name: &'static str,
    pub used: usize,
    pub idle: usize,
    pub max: usize,
}

/// A store that keeps an engine record.
#[async_trait]
pub trait RecordStore: Send + Sync + 'static {
    /// The kind of the store: `sqlite`, `postgres`, `redis`.
    fn kind(&self) -> &'static str;

    /// Whether commits that were acknowledged may be lost in a fail-over, so that a change must be given time to reach
    /// replicas before anything relies on it.
    fn may_fail_over(&self) -> bool {
        false
    }

    /// Whether the record may be lost without the process of the store, or with it.
    fn may_forget(&self) -> bool {
        false
    }

    /// How its pools of connections are used. None if it has none.
    fn pools(&self) -> Vec<PoolUse> {
        Vec::new()
    }

    async fn read_record(&self) -> Result<Reading, StoreError>;

    /// Replaces the record that was read if neither it nor the server has changed since; waits for commits in flight, so that
    /// none lands after the change. Returns whether it was replaced.
    async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError>;

    /// Whether no transaction of a caller is open that relied on the store before its record was frozen, with `latchgate.guard` or
    /// `latchgate.post`. From then on none can be: a frozen store refuses them.
    async fn callers_have_ended(&self) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// The store's clock, if the store answers.
    async fn ping(&self) -> Result<Timestamp, StoreError> {
        Ok(self.read_record().await?.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000_000_000);

    #[test]
    fn the_longest_lease_rises_in_three_steps_and_never_above_what_is_allowed() {
        for (ttl_ms, ttl_ms_max, step) in [
            (100, 3_600_000, 60_000),
            (60_000, 3_600_000, 60_000),
            (60_001, 3_600_000, 600_000),
            (600_001, 3_600_000, 3_600_000),
            (100, 5_000, 5_000),
            (70_000, 90_000, 90_000),
        ] {
            assert_eq!(lease_step(ttl_ms, ttl_ms_max), step, "{ttl_ms} of {ttl_ms_max}");
        }
    }

    #[test]
    fn epochs_rise_and_follow_the_clock() {
        assert_eq!(Epoch::NONE.next(NOW), Epoch::from_number(NOW.as_ms()));
        assert_eq!(Epoch::from_number(5).next(NOW), Epoch::from_number(NOW.as_ms()));
        let far_ahead = Epoch::from_number(NOW.as_ms() + 2 * EPOCH_LEAD_MS);
        assert!(far_ahead.next(NOW) > far_ahead);
    }

    #[test]
    fn the_first_epoch_above_a_token_is_the_lowest_whose_tokens_are_all_higher() {
        for token in [0, 1, 1_023, 1_024, 1_025, token_at(NOW), token_at(NOW) + 1_023] {
            let epoch = Epoch::above_token(token);
            assert!(epoch.token_min() > token, "{token}");
            assert!(Epoch::from_number(epoch.number() - 1).token_min() <= token, "{token}");
        }
    }

    #[test]
    fn epochs_that_are_chosen_without_knowledge_of_each_other_differ_also_while_they_are_ahead_of_the_clock() {
        let known = Epoch::from_number(1).ahead_of(NOW);
        let here = known.next(NOW.plus_ms(5));
        let there = known.next(NOW.plus_ms(7));
        assert!(here > known && there > here);
        // Another engine replaces this one, and its clock is behind.
        assert!(known.ahead_of(NOW) > known.next(NOW.plus_ms(50_000)));
    }
}
