//! The rounds of a batch: load, judge, commit, and again for the keys that somebody else changed meanwhile.

use std::collections::HashMap;
use std::time::Instant;

use latchgate_core::lock::{Command, Event, Refusal};
use latchgate_core::{Address, Timestamp};
use tokio::time::timeout_at;

use super::call::Failure;
use super::node::Node;
use super::queue::{Rank, WaitQueue};
use super::verdict::{Verdict, judge};
use crate::store::{Change, CommitResult, Committed, Loaded, StoreError, Stored, Term, TermId};

/// After so many lost races a key's state is locked instead.
const LOSSES_MAX: u32 = 2;
/// Rounds of a batch, lost races and wrong clocks counted together.
const ROUNDS_MAX: u32 = 8;

/// What is to be done for one key.
pub(super) struct Work {
    pub address: Address,
    pub commands: Vec<Command>,
    /// The waiters that came with this batch.
    pub arrived: Vec<Rank>,
    /// Waiters that may have been granted the lock by an earlier commit.
    pub uncertain: Vec<Rank>,
    /// A state that was current not long ago. Good enough for a change, whose commit checks it, but not for an answer
    /// without one.
    pub base: Option<Stored>,
    /// The term that the base is of.
    pub term: TermId,
}

pub(super) struct Judged {
    pub address: Address,
    pub result: Result<(Stored, Decided), Failed>,
}

/// A verdict that holds.
pub(super) struct Decided {
    /// Of the state.
    pub term: TermId,
    pub outcomes: Vec<latchgate_core::lock::Outcome>,
    pub settled: Vec<(Rank, latchgate_core::lock::Outcome)>,
    pub called: Vec<Rank>,
    pub arrived: Vec<Rank>,
    pub refusals: HashMap<Rank, Refusal>,
}

pub(super) struct Failed {
    pub failure: Failure,
    /// Waiters whose answer hangs on a commit of unknown outcome.
    pub settled: Vec<Rank>,
    pub arrived: Vec<Rank>,
}

/// A key on its way through the rounds.
struct Entry {
    work: Work,
    losses: u32,
    /// The base was loaded in this batch, so an answer may be given from it.
    is_fresh: bool,
}

/// What the verdicts of one commit are given under.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub now: Timestamp,
    pub term: Term,
}

impl Entry {
    fn fail(self, failure: Failure, settled: Vec<Rank>) -> Judged {
        let Work { address, arrived, .. } = self.work;
        Judged { address, result: Err(Failed { failure, settled, arrived }) }
    }

    /// An answer from the state as it was loaded.
    fn decide_unchanged(self, mut verdict: Verdict) -> Judged {
        let version = self.work.base.as_ref().map(|base| base.version).unwrap_or_default();
        let state = std::mem::take(&mut verdict.state);
        self.decide(Stored { version, state }, verdict)
    }

    fn decide(self, stored: Stored, verdict: Verdict) -> Judged {
        let Work { address, arrived, term, .. } = self.work;
        let Verdict { outcomes, settled, called, refusals, .. } = verdict;
        Judged { address, result: Ok((stored, Decided { term, outcomes, settled, called, arrived, refusals })) }
    }
}

/// Takes every key to its end: an outcome that is committed, or read from a state that was loaded here, or a failure.
pub(super) async fn run<'a>(
    node: &Node,
    works: Vec<Work>,
    queue_of: impl Fn(&Address) -> &'a WaitQueue,
) -> Vec<Judged> {
    let mut run = Run {
        node,
        queue_of,
        deadline: tokio::time::Instant::now() + node.limits.store_timeout,
        done: Vec::with_capacity(works.len()),
    };
    let mut open: Vec<Entry> = works.into_iter().map(|work| Entry { work, losses: 0, is_fresh: false }).collect();
    for _ in 0..ROUNDS_MAX {
        if open.is_empty() {
            break;
        }
        open = run.round(open).await;
    }
    for entry in open {
        run.done.push(
            entry.fail(Failure::Overloaded("others keep changing this key, or the store is too slow"), Vec::new()),
        );
    }
    run.done
}

impl Node {
    /// The change of what was loaded with this version to this state. Without a history nobody hears of it, nor of what
    /// time does to it.
    pub(super) fn change(&self, address: &Address, changed: Stored, events: Vec<Event>, moment: Moment) -> Change {
        let Moment { now, term } = moment;
        let Stored { version: expected, state } = changed;
        Change {
            address: address.clone(),
            expected,
            events: if self.history.is_kept() { events } else { Vec::new() },
            notice_at: state.next_notice().filter(|_| self.history.is_kept()),
            keep_until: state.idle_from().max(now).plus_ms(self.limits.idle_retention_ms()),
            state,
            term: term.id,
        }
    }
}

struct Run<'n, F> {
    node: &'n Node,
    queue_of: F,
    deadline: tokio::time::Instant,
    done: Vec<Judged>,
}

impl<'a, F: Fn(&Address) -> &'a WaitQueue> Run<'_, F> {
    /// Returns the keys that need another round.
    async fn round(&mut self, open: Vec<Entry>) -> Vec<Entry> {
        // Before anything is loaded: what is loaded in a later term is then refused, and not the other way round.
        let term = self.node.store.term();
        let (contended, open): (Vec<_>, Vec<_>) = open.into_iter().partition(|entry| entry.losses >= LOSSES_MAX);
        let mut again = self.commit_locked(contended, term).await;
        let open = self.load_missing(open, term).await;
        let mut changed = Vec::new();
        for (entry, verdict, moment) in self.judge_all(open, term) {
            if verdict.changed {
                changed.push((entry, verdict, moment));
            } else if entry.is_fresh {
                self.done.push(entry.decide_unchanged(verdict));
            } else {
                again.push(Entry { work: Work { base: None, ..entry.work }, ..entry });
            }
        }
        again.extend(self.commit(changed).await);
        again
    }

    async fn load_missing(&mut self, open: Vec<Entry>, term: Term) -> Vec<Entry> {
        // Loading also tells the time.
        let has_time = self.node.clock.now().is_some();
        let is_missing = |entry: &Entry| entry.work.base.is_none() || entry.work.term != term.id || !has_time;
        let (mut missing, mut ready): (Vec<_>, Vec<_>) = open.into_iter().partition(is_missing);
        if missing.is_empty() {
            return ready;
        }
        let addresses: Vec<Address> = missing.iter().map(|entry| entry.work.address.clone()).collect();
        match self.timed(self.node.store.load(&addresses), |loaded| loaded.now).await {
            Ok(Loaded { states, .. }) => {
                for (entry, stored) in missing.iter_mut().zip(states) {
                    entry.work.base = Some(stored);
                    entry.work.term = term.id;
                    entry.is_fresh = true;
                }
                ready.append(&mut missing);
            }
            Err(error) => {
                let failure = self.node.failure(&error.of_reading());
                self.done.extend(missing.into_iter().map(|entry| entry.fail(failure.clone(), Vec::new())));
            }
        }
        ready
    }

    fn judge_all(&self, entries: Vec<Entry>, term: Term) -> Vec<(Entry, Verdict, Moment)> {
        let moment = Moment { now: self.node.clock.now().unwrap_or_default(), term };
        let judge = |entry: Entry| {
            let verdict = self.judge(&entry, moment);
            (entry, verdict, moment)
        };
        entries.into_iter().map(judge).collect()
    }

    fn judge(&self, entry: &Entry, Moment { now, term }: Moment) -> Verdict {
        let nothing = Stored::default();
        let base = entry.work.base.as_ref().unwrap_or(&nothing);
        let work = &entry.work;
        let queue = (self.queue_of)(&work.address);
        let maybe_granted = work.arrived.iter().chain(&work.uncertain);
        judge(&base.state, &work.commands, queue, maybe_granted, &self.node.id, now, term.hold_off(now))
    }

    /// The verdict's state goes into the change, and from there, once committed, into the cache.
    fn change(&self, entry: &Entry, verdict: &mut Verdict, moment: Moment) -> Change {
        let Work { address, base, .. } = &entry.work;
        let stored = Stored {
            version: base.as_ref().map(|base| base.version).unwrap_or_default(),
            state: std::mem::take(&mut verdict.state),
        };
        self.node.change(address, stored, std::mem::take(&mut verdict.events), moment)
    }

    async fn commit(&mut self, judged: Vec<(Entry, Verdict, Moment)>) -> Vec<Entry> {
        let Some((_, _, moment)) = judged.first() else { return Vec::new() };
        let moment = *moment;
        let mut judged = judged;
        let changes: Vec<Change> =
            judged.iter_mut().map(|(entry, verdict, _)| self.change(entry, verdict, moment)).collect();
        let committed = self.timed(self.node.store.commit(moment.now, &changes), |committed| committed.now).await;
        self.conclude(judged, changes, committed)
    }

    /// Keys that have lost twice: nobody else can change them meanwhile.
    async fn commit_locked(&mut self, contended: Vec<Entry>, term: Term) -> Vec<Entry> {
        if contended.is_empty() {
            return Vec::new();
        }
        let addresses: Vec<Address> = contended.iter().map(|entry| entry.work.address.clone()).collect();
        let (Loaded { states, .. }, locked) = match self.node.lock(&addresses, self.deadline).await {
            Ok(locked) => locked,
            Err(failure) => {
                self.done.extend(contended.into_iter().map(|entry| entry.fail(failure.clone(), Vec::new())));
                return Vec::new();
            }
        };
        let with_state = |(entry, stored): (Entry, Stored)| Entry {
            work: Work { base: Some(stored), term: term.id, ..entry.work },
            is_fresh: true,
            ..entry
        };
        let judged = self.judge_all(contended.into_iter().zip(states).map(with_state).collect(), term);
        let (judged, unchanged): (Vec<_>, Vec<_>) = judged.into_iter().partition(|(_, verdict, _)| verdict.changed);
        for (entry, verdict, _) in unchanged {
            self.done.push(entry.decide_unchanged(verdict));
        }
        let Some((_, _, moment)) = judged.first() else {
            self.node.give_up(locked, self.deadline).await;
            return Vec::new();
        };
        let moment = *moment;
        let mut judged = judged;
        let changes: Vec<Change> =
            judged.iter_mut().map(|(entry, verdict, _)| self.change(entry, verdict, moment)).collect();
        let committed = self.timed(locked.commit(moment.now, &changes), |committed| committed.now).await;
        self.conclude(judged, changes, committed)
    }

    /// Sorts a commit's keys into those that are done and those that lost.
    fn conclude(
        &mut self,
        judged: Vec<(Entry, Verdict, Moment)>,
        changes: Vec<Change>,
        committed: Result<Committed, StoreError>,
    ) -> Vec<Entry> {
        let again = |entry: Entry, losses: u32| Entry {
            work: Work { base: None, ..entry.work },
            losses: entry.losses + losses,
            is_fresh: false,
        };
        match committed {
            Ok(Committed { now, result: CommitResult::Checked(versions) }) => {
                let mut lost = Vec::new();
                let mut has_news = false;
                for (((entry, verdict, _), change), version) in judged.into_iter().zip(changes).zip(versions) {
                    let Some(version) = version else {
                        lost.push(again(entry, 1));
                        continue;
                    };
                    self.node.tell_next(&change.address, &change.state, now);
                    has_news |= !change.events.is_empty();
                    self.done.push(entry.decide(Stored { version, state: change.state }, verdict));
                }
                if has_news {
                    self.node.history.has_news();
                }
                lost
            }
            Ok(Committed { result: CommitResult::TermOver, .. }) => {
                // The store knows the new one by now.
                judged.into_iter().map(|(entry, _, _)| again(entry, 0)).collect()
            }
            Ok(Committed { now, result: CommitResult::ClockOff }) => {
                // The answer has corrected the estimate; or nothing was wrong with it, but the commit came too late.
                tracing::debug!(store_now_ms = now.as_ms(), "a commit's time was off");
                judged.into_iter().map(|(entry, _, _)| again(entry, 0)).collect()
            }
            Err(error) => {
                let failure = self.node.failure(&error);
                for (entry, verdict, _) in judged {
                    let settled = verdict.settled.iter().map(|(rank, _)| *rank).collect();
                    let settled = if matches!(failure, Failure::OutcomeUnknown(_)) { settled } else { Vec::new() };
                    self.done.push(entry.fail(failure.clone(), settled));
                }
                Vec::new()
            }
        }
    }

    /// Waits for the store until the batch's deadline, and learns its clock from the answer.
    async fn timed<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
        shown: fn(&T) -> Timestamp,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        let Ok(answer) = timeout_at(self.deadline, answer).await else {
            return Err(StoreError::OutcomeUnknown("it took too long to answer".to_owned()));
        };
        let answer = answer?;
        self.node.clock.learn(shown(&answer), asked, Instant::now());
        Ok(answer)
    }
}
