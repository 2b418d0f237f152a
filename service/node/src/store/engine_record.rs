//! The engine record: what a store says of itself, so that it can refuse nodes that do not know it yet.
//!
//! Every load and every commit names an epoch, and the store refuses it in the same statement or script unless its record says `active` in this epoch. So a change of the record stops every
//! node at once, whatever the node believes and however long it was paused.

use std::fmt;

use async_trait::async_trait;
use latchgate_core::Timestamp;
use latchgate_core::lock::{token_at, token_time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::StoreError;
use super::store_clock::JUMP_MS_MIN;

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
    /// Why the hold-off began, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_off_why: Option<String>,
    /// How long the hold-off can last, in ms. An end that is further ahead was written by a clock that was wrong.
    #[serde(default = "unbounded")]
    pub hold_off_ms: u64,
    /// Until then, by the store's clock, leases that clients hold may be missing here, and an operator has forced grants all
    /// the same.
    #[serde(default)]
    pub forced_until: Timestamp,
    /// The store's clock has jumped ahead by so much while leases were live, in ms. Until `late_until`, when none of them is left, leases end
    /// later by as much.
    #[serde(default)]
    pub late_ms: u64,
    #[serde(default)]
    pub late_until: Timestamp,
    /// The same for operations, whose leases may be longer.
    #[serde(default)]
    pub operations_late_ms: u64,
    #[serde(default)]
    pub operations_late_until: Timestamp,
    /// How far the store's clock has jumped ahead, as far as nodes have dealt with it, in ms: the sum of all jumps.
    #[serde(default)]
    pub jumped_ms: u64,
    /// The longest lease that any node grants, in ms: `--ttl-max`. A hold-off lasts as long. A node that allows longer leases raises it before
    /// it serves; only an operator lowers it.
    #[serde(alias = "lease_ms_max")]
    pub ttl_ms_max: u64,
    /// By how much the longest lease of an operation may be longer than that, in ms.
    #[serde(default)]
    pub operations_more_ms: u64,
    /// By how much longer this hold-off lasts for operations. Nothing more if an operator has set its end.
    #[serde(default)]
    pub operations_extra_ms: u64,
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
    #[serde(default, rename = "beside")]
    pub peer_epoch: Epoch,
    /// The other engine of the pair has lost what it had. Either a node knew that this one was not left for it, or a hold-off has begun.
    #[serde(default, rename = "lost_beside")]
    pub peer_lost_data: bool,
}

fn unbounded() -> u64 {
    u64::MAX
}

/// A node's clock may be ahead by the clock bound, and by its clock a lease ends late.
const HOLD_OFF_MARGIN_MS: u64 = 2 * latchgate_core::CLOCK_BOUND_MS;

impl EngineRecord {
    pub fn new(state: EngineState, epoch: Epoch, pair: &[String], ttl_ms_max: u64) -> Self {
        Self { state, epoch, pair: pair.to_vec(), ttl_ms_max, ..Self::default() }
    }

    /// The same in another state and epoch.
    #[must_use]
    pub fn with_state(&self, state: EngineState, epoch: Epoch) -> Self {
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
        let held = self.live_until(now.plus_ms(lease_ms + HOLD_OFF_MARGIN_MS).max(self.hold_off_until), now);
        Self { operations_extra_ms: self.operations_more_ms, ..held }
    }

    /// The same with a hold-off until then.
    #[must_use]
    pub fn live_until(&self, hold_off_until: Timestamp, now: Timestamp) -> Self {
        Self { hold_off_until, hold_off_ms: hold_off_until.ms_since(now), ..self.clone() }
    }

    /// The same after the store's clock has jumped ahead: leases would seem to end too early. If it was a short jump, they end later by as
    /// much; after a longer one no lock is granted until all its leases have ended.
    #[must_use]
    pub fn after_jump(&self, jumped_ms: u64, now: Timestamp) -> Self {
        let late = |late_ms: u64, until: Timestamp, longest_ms: u64| {
            let late_ms = if now < until.plus_ms(jumped_ms) { late_ms + jumped_ms } else { jumped_ms };
            (late_ms, now.plus_ms(longest_ms + late_ms.min(longest_ms) + HOLD_OFF_MARGIN_MS))
        };
        let longest_ms = self.ttl_ms_max + self.operations_more_ms;
        let (late_ms, late_until) = late(self.late_ms, self.late_until, self.ttl_ms_max);
        let (operations_late_ms, operations_late_until) =
            late(self.operations_late_ms, self.operations_late_until, longest_ms);
        let moved = |at: Timestamp| if at > Timestamp::default() { at.plus_ms(jumped_ms) } else { at };
        let record = Self {
            operations_late_ms,
            operations_late_until,
            jumped_ms: self.jumped_ms + jumped_ms,
            forced_until: moved(self.forced_until),
            ..self.live_until(moved(self.hold_off_until), now)
        };
        if late_ms >= self.ttl_ms_max {
            let held = Self { late_ms: 0, ..record.held_off(self.ttl_ms_max, now) };
            return held.held_because(self, "the store's clock has jumped ahead");
        }
        Self { late_ms, late_until, ..record }
    }

    /// Until when the hold-off lasts for operations.
    pub fn operations_held_until(&self) -> Timestamp {
        if self.hold_off_until == Timestamp::default() {
            return self.hold_off_until;
        }
        self.hold_off_until.plus_ms(self.operations_extra_ms)
    }

    /// The same; if its hold-off ends later than that of the record before, with the reason.
    #[must_use]
    pub fn held_because(self, before: &Self, why: &str) -> Self {
        let is_longer = self.hold_off_until > before.hold_off_until;
        let why = if is_longer { Some(why.to_owned()) } else { before.hold_off_why.clone() };
        Self { hold_off_why: why.filter(|_| self.hold_off_until > Timestamp::default()), ..self }
    }

    /// The same with a hold-off that ends by elapsed time, if the clock was set back since it began.
    pub fn held_by_elapsed_time(&self, now: Timestamp) -> Option<Self> {
        let is_too_far = self.hold_off_until.ms_since(now) > self.hold_off_ms.saturating_add(JUMP_MS_MIN);
        is_too_far.then(|| self.live_until(now.plus_ms(self.hold_off_ms), now))
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
    fn epochs_rise_and_follow_the_clock() {
        assert_eq!(Epoch::NONE.next(NOW), Epoch::from_number(NOW.as_ms()));
        assert_eq!(Epoch::from_number(5).next(NOW), Epoch::from_number(NOW.as_ms()));
        let far_ahead = Epoch::from_number(NOW.as_ms() + 2 * EPOCH_LEAD_MS);
        assert!(far_ahead.next(NOW) > far_ahead);
    }

    #[test]
    fn the_first_epoch_above_a_token_is_the_lowest_with_only_higher_tokens() {
        for token in [0, 1, 1_023, 1_024, 1_025, token_at(NOW), token_at(NOW) + 1_023] {
            let epoch = Epoch::above_token(token);
            assert!(epoch.token_min() > token, "{token}");
            assert!(Epoch::from_number(epoch.number() - 1).token_min() <= token, "{token}");
        }
    }

    #[test]
    fn epochs_chosen_independently_differ_even_while_ahead_of_the_clock() {
        let known = Epoch::from_number(1).ahead_of(NOW);
        let here = known.next(NOW.plus_ms(5));
        let there = known.next(NOW.plus_ms(7));
        assert!(here > known && there > here);
        // Another engine replaces this one, and its clock is behind.
        assert!(known.ahead_of(NOW) > known.next(NOW.plus_ms(50_000)));
    }

    #[test]
    fn after_a_jump_operation_leases_end_later_until_the_longest_has_ended() {
        // They end later by the whole jump, whatever its length.
        let record = EngineRecord {
            operations_more_ms: 3_000_000,
            ..EngineRecord::new(EngineState::Active, Epoch::NONE, &[], 600_000)
        };
        for jumped_ms in [5_000, 700_000, 86_400_000] {
            let now = NOW.plus_ms(jumped_ms);
            let jumped = record.after_jump(jumped_ms, now);
            assert_eq!(jumped.operations_late_ms, jumped_ms);
            assert!(jumped.operations_late_until >= now.plus_ms(3_600_000), "{jumped_ms}");
            let again = jumped.after_jump(jumped_ms, now.plus_ms(jumped_ms));
            assert_eq!(again.operations_late_ms, 2 * jumped_ms);
        }
    }
}
