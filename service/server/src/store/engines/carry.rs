//! The move from one engine to another, while neither serves.
//!
//! Any number of nodes may be at it at once, and one that has stood still may go on when it is all over. So every write to
//! the new engine rests on the version of a row that was read *before* the record was seen to ask for the move still: had
//! the engine begun to serve in between, the look would have told, and what it has changed since has another version.

use std::collections::HashSet;

use latchgate_core::lock::LockState;
use latchgate_core::{Address, Timestamp};
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::record::{Move, Phase, Record};
use super::register::{Boards, Look, Register};
use super::right::GUARD;
use super::slot::{Slots, shown};
use super::{EngineSetConfig, after_longest_lease};
use crate::store::{Change, CommitResult, LockStore, StoreError, Stored, Version};

/// States that are carried at once.
const PAGE: usize = 200;
/// Tries for one page: lost races with other movers, and a wrong clock.
const TRIES: u32 = 10;
/// For so many rights the old engine may fail to answer before what it knows is given up.
const PATIENCE_RIGHTS: u32 = 3;

pub(super) struct Carrier {
    pub register: Register<Slots>,
    /// The record that asks for the move.
    pub record: Record,
    pub moving: Move,
    /// When this node learnt of it.
    pub since: Instant,
    pub config: EngineSetConfig,
}

/// What a try to move came to.
pub(super) enum Carried {
    /// The successor to be proposed: the new engine serves, or the old one is given up.
    Next(Box<Record>),
    /// It is to be tried again.
    NotYet(String),
}

type Store = std::sync::Arc<dyn LockStore>;

/// What it cannot go on without.
enum Failed {
    /// The old engine does not answer.
    Old(StoreError),
    Other(String),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Other(error.to_string())
    }
}

impl Carrier {
    pub(super) async fn run(self) -> Carried {
        // Until then some node may rely on the record before this one.
        sleep_until(self.since + self.record.right() + GUARD).await;
        match self.try_to_move().await {
            Ok(record) => Carried::Next(Box::new(record)),
            Err(Failed::Old(error)) if self.since.elapsed() > self.record.right() * (PATIENCE_RIGHTS + 1) => {
                tracing::error!(%error, "the old engine does not answer: its leases are waited for");
                let moving = Move { from: None, ..self.moving.clone() };
                Carried::Next(Box::new(Record { phase: Phase::Moving(moving), ..self.record.next() }))
            }
            Err(Failed::Old(error)) => Carried::NotYet(error.to_string()),
            Err(Failed::Other(error)) => Carried::NotYet(error),
        }
    }

    async fn try_to_move(&self) -> Result<Record, Failed> {
        let slots = &self.register.boards;
        let new = slots.need(&self.record.active)?;
        let old = match &self.moving.from {
            Some(name) => Some(slots.need(name).map_err(Failed::Old)?),
            None => None,
        };
        if let Some(from) = &self.moving.from {
            // One that has lost what it had would be carried over as it is.
            slots.read(from).await.map_err(Failed::Old)?;
        }
        // How much more the new engine's clock shows than the old one's: asked later, it shows no less for that.
        let mut by_ms = 0;
        if let Some(old) = &old {
            let before = shown(old, slots.timeout).await.map_err(Failed::Old)?;
            let after = shown(&new, slots.timeout).await?.plus_ms(1);
            by_ms = after.as_ms().cast_signed() - before.as_ms().cast_signed();
            self.copy(old, &new, by_ms).await?;
        }
        self.sweep(old.as_ref(), &new).await?;
        self.timed(new.begin_term()).await?;
        self.timed(new.expect_leases_of(self.record.ttl_ms_max)).await?;
        let now = shown(&new, slots.timeout).await?;
        let moved = |at: Timestamp| Timestamp::from_ms(at.as_ms().saturating_add_signed(by_ms));
        let (hold_off_until, forced_until) = match old {
            // A hold-off of the old engine goes on in the new one.
            Some(old) => {
                let hold_off = old.term().hold_off_until.max(self.record.hold_off_until);
                (moved(hold_off), moved(self.record.forced_until))
            }
            None if self.moving.force => (Timestamp::default(), after_longest_lease(now, &self.record)),
            None => (after_longest_lease(now, &self.record), Timestamp::default()),
        };
        // From now on, without a board it is not the engine that it was.
        if slots.read(&self.record.active).await?.version == 0 {
            return Err(Failed::Other("the new engine has not been told of the move yet".to_owned()));
        }
        let events_from = self.timed(new.last_event()).await?.to_string();
        let next = self.record.next();
        let since = next.epoch;
        Ok(Record { phase: Phase::Serving, since, hold_off_until, forced_until, events_from, ..next })
    }

    /// All states of the old engine, into the places of whatever the new one has.
    async fn copy(&self, old: &Store, new: &Store, by_ms: i64) -> Result<(), Failed> {
        let mut from: Option<String> = None;
        let mut count = 0;
        loop {
            let page = self.timed(old.dump(from.as_deref(), PAGE)).await.map_err(Failed::Old)?;
            let (states, next) = page;
            count += states.len();
            let carried = |address: &Address, there: &LockState| {
                let old = states.iter().find(|(other, _)| other == address).map(|(_, stored)| &stored.state);
                old.map(|old| old.carried(by_ms, there))
            };
            let addresses: Vec<Address> = states.iter().map(|(address, _)| address.clone()).collect();
            self.replace(new, addresses, carried).await?;
            if next.is_none() {
                tracing::info!(count, from = ?self.moving.from, to = self.record.active, "carried the locks over");
                return Ok(());
            }
            from = next;
        }
    }

    /// What the new engine has from earlier times and the old one does not know is over.
    async fn sweep(&self, old: Option<&Store>, new: &Store) -> Result<(), Failed> {
        let mut from: Option<String> = None;
        loop {
            let (states, next) = self.timed(new.dump(from.as_deref(), PAGE)).await?;
            let held = states.into_iter().filter(|(_, stored)| stored.state != stored.state.emptied());
            let mut addresses: Vec<Address> = held.map(|(address, _)| address).collect();
            if let Some(old) = old.filter(|_| !addresses.is_empty()) {
                let known = self.timed(old.load(&addresses)).await.map_err(Failed::Old)?.states;
                let known = addresses.iter().zip(&known).filter(|(_, stored)| stored.version != Version::ABSENT);
                let known: HashSet<Address> = known.map(|(address, _)| address.clone()).collect();
                addresses.retain(|address| !known.contains(address));
            }
            self.replace(new, addresses, |_, there| Some(there.emptied())).await?;
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }

    /// Writes what `wanted` says of each state, given what is there.
    async fn replace(
        &self,
        new: &Store,
        addresses: Vec<Address>,
        wanted: impl Fn(&Address, &LockState) -> Option<LockState>,
    ) -> Result<(), Failed> {
        let mut addresses = addresses;
        for _ in 0..TRIES {
            if addresses.is_empty() {
                return Ok(());
            }
            let term = new.term();
            let asked = std::time::Instant::now();
            let loaded = self.timed(new.load(&addresses)).await?;
            let answered = std::time::Instant::now();
            // Not before what is there has been read: see above.
            self.check().await?;
            let change = |(address, stored): (&Address, Stored)| {
                let state = wanted(address, &stored.state).filter(|state| *state != stored.state)?;
                let keep = u64::try_from(self.config.idle_retention.as_millis()).unwrap_or(u64::MAX);
                Some(Change {
                    address: address.clone(),
                    expected: stored.version,
                    events: Vec::new(),
                    notice_at: state.next_notice(),
                    keep_until: state.idle_from().max(loaded.now).plus_ms(keep),
                    state,
                    term: term.id,
                })
            };
            let changes: Vec<Change> = addresses.iter().zip(loaded.states.clone()).filter_map(change).collect();
            if changes.is_empty() {
                return Ok(());
            }
            // By the clock as it was then: what comes late, because this node stood still or the network did, is refused by the
            // engine. A row that was not there has no version to tell that it has come and gone since.
            if asked.elapsed() > self.record.right() {
                return Err(Failed::Other("it took too long to confirm the move".to_owned()));
            }
            let since_ms = u64::try_from(answered.elapsed().as_millis()).unwrap_or(u64::MAX);
            let committed = self.timed(new.commit(loaded.now.plus_ms(since_ms), &changes)).await?;
            addresses = match committed.result {
                CommitResult::Checked(versions) => {
                    let lost = changes.into_iter().zip(versions).filter(|(_, version)| version.is_none());
                    lost.map(|(change, _)| change.address).collect()
                }
                CommitResult::ClockOff | CommitResult::TermOver => {
                    changes.into_iter().map(|change| change.address).collect()
                }
            };
        }
        Err(Failed::Other("others keep changing the new engine".to_owned()))
    }

    /// Fails unless the move is still asked for.
    async fn check(&self) -> Result<(), Failed> {
        let deciders: Vec<String> = self.record.deciders().into_iter().map(str::to_owned).collect();
        let looked = self.register.look(&self.record, &deciders).await;
        match looked.look {
            Look::Current => Ok(()),
            Look::Later(_) => Err(Failed::Other("it is decided otherwise".to_owned())),
            Look::Undecided | Look::Unknown => Err(Failed::Other("the engines do not confirm the move".to_owned())),
        }
    }

    async fn timed<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        // A page is more work than a call of a client.
        let answer = timeout(self.config.timeout.max(Duration::from_secs(2)), answer).await;
        answer.unwrap_or_else(|_| Err(StoreError::Unavailable("it took too long to answer".to_owned())))
    }
}
