//! The rounds of a batch: load, evaluate, commit, and another round for the keys that were changed meanwhile.

use std::sync::Arc;

use latchgate_core::lock::{
    self, Command, Evaluation, Event, Grant, GrantId, Lease, LockState, Outcome, Rank, Terms, evaluate,
};
use latchgate_core::{Address, Timestamp};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::call::Failure;
use super::key_queue::WaitQueue;
use super::node::Node;
use crate::engines::UsedLocks;
use crate::observe::metrics::{Retry, Uncounted};
use crate::store::{Change, CommitResult, Committed, Epoch, Loaded, Rule, StoreError, Stored, Version};

/// After this many lost races a key is served apart.
const LOSSES_MAX: u32 = 2;
/// Rounds of a batch, for lost races and wrong clocks together.
const ROUNDS_MAX: u32 = 8;
/// How many states one statement loads: 8 MiB if all are as long as is allowed.
const LOADED_MAX: usize = 128;
/// How long the states are that one statement writes, in bytes: about, because an evaluation may make them longer.
const WRITTEN_BYTES_MAX: usize = 2 << 20;

/// One key of a batch.
pub(super) struct Work {
    pub address: Address,
    pub commands: Vec<Command>,
    /// Waiters that joined the queue with this batch.
    pub arrived: SmallVec<[Rank; 1]>,
    /// Waiters whose wait ends with this batch.
    pub ended: Vec<Rank>,
    /// Waiters that an earlier commit may have granted the lock, with those grants.
    pub uncertain: Vec<(Rank, GrantId)>,
    /// A state that was current recently, or the guess that there is none. It is good enough for a change, whose commit checks its
    /// version, but not for an answer without a change.
    pub base: Option<Arc<Stored>>,
    /// The epoch of the base.
    pub epoch: Epoch,
    /// The base was loaded in this batch, so an answer may be given from it.
    pub is_fresh: bool,
    /// How many races its commits have lost.
    pub losses: u32,
}

/// What a batch came to for one key.
pub(super) struct Done {
    pub work: Box<Work>,
    /// On success the state as it is in the store, and the evaluation without its state.
    pub result: Result<(Stored, Evaluation), Failed>,
}

/// What a batch came to.
#[derive(Default)]
pub(super) struct Served {
    pub done: Vec<Done>,
    /// Keys that would hold up the others: they are to be served apart.
    pub apart: Vec<Apart>,
    /// A key that was taken to have no state has one.
    pub has_guessed_wrong: bool,
}

/// A key that is to be served apart, with all that it was given.
pub(super) struct Apart {
    pub work: Box<Work>,
    /// Another session keeps its row locked: it is not only changed often.
    pub is_busy: bool,
}

pub(super) struct Failed {
    pub failure: Failure,
    /// New grants in an evaluation whose commit has an unknown outcome.
    pub unknown: Vec<(Rank, Lease)>,
}

/// What all evaluations of one commit are made with: taken once, before the states are loaded. The store refuses the commit if the
/// epoch is over by then, and with it the hold-off of that.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub used: &'a UsedLocks,
    pub now: Timestamp,
}

/// Boxed: each round moves them.
type Works = Vec<Box<Work>>;

/// An evaluation that is not committed yet, and what it grants and ends.
type Pending = (Box<Work>, Evaluation, Uncounted);

impl Work {
    pub(super) fn fail(self: Box<Self>, failure: Failure, unknown: Vec<(Rank, Lease)>) -> Done {
        Done { work: self, result: Err(Failed { failure, unknown }) }
    }

    /// Concludes with the state as it was loaded.
    fn unchanged(self: Box<Self>, mut evaluation: Evaluation) -> Done {
        let version = self.version();
        let state = std::mem::take(&mut evaluation.state);
        Done { work: self, result: Ok((Stored { version, state }, evaluation)) }
    }

    fn again(mut self: Box<Self>, losses: u32) -> Box<Self> {
        (self.base, self.is_fresh) = (None, false);
        self.losses += losses;
        self
    }

    /// That of the base.
    fn version(&self) -> Version {
        self.base.as_ref().map(|base| base.version).unwrap_or_default()
    }
}

const TOO_SLOW: Failure = Failure::Overloaded("other nodes keep changing this key, or the store is too slow");

/// Takes every key to its end: an evaluation that is committed or was made on a state loaded here, or a failure; except keys that
/// would hold up the others.
pub(super) async fn run<'a>(node: &Node, mut open: Works, queue_of: impl Fn(&Address) -> &'a WaitQueue) -> Served {
    let mut run = Run::new(node, queue_of, Instant::now() + node.limits.store_timeout);
    for _ in 0..ROUNDS_MAX {
        if open.is_empty() {
            break;
        }
        open = run.round(open).await;
    }
    run.fail(open, &TOO_SLOW);
    run.served
}

/// Takes one key to its end, with its state locked in the store, so that no other node can change it meanwhile.
pub(super) async fn run_locked(node: &Node, work: Box<Work>, queue: &WaitQueue, deadline: Instant) -> Done {
    let mut run = Run::new(node, |_: &Address| queue, deadline);
    let mut open = vec![work];
    for _ in 0..ROUNDS_MAX {
        if open.is_empty() {
            break;
        }
        open = run.locked_round(open).await;
    }
    open.extend(std::mem::take(&mut run.served.apart).into_iter().map(|apart| apart.work));
    run.fail(open, &TOO_SLOW);
    run.served.done.pop().expect("a key comes to its end")
}

impl Node {
    pub(super) fn terms(&self, Round { used, now }: Round<'_>) -> Terms {
        Terms { hold_off: used.hold_off(now), token_min: used.epoch.token_min(), late_ms: used.late_ms(now) }
    }

    /// The change of a state with this version. Without a history it has neither events nor a notice.
    pub(super) fn change(&self, address: &Address, changed: Stored, events: Vec<Event>, round: Round<'_>) -> Change {
        let Round { used, now } = round;
        let Stored { version: expected, state } = changed;
        Change {
            address: address.clone(),
            expected,
            events: if self.history.is_kept() { events } else { Vec::new() },
            notice_at: state.next_notice().filter(|_| self.history.is_kept()),
            keep_until: state.idle_from().max(now).plus_ms(self.limits.idle_retention_ms()),
            state,
            epoch: used.epoch,
        }
    }
}

struct Run<'n, F> {
    node: &'n Node,
    queue_of: F,
    deadline: Instant,
    /// A statement was not answered in time: the rest of the batch is not sent.
    is_too_slow: bool,
    served: Served,
}

impl<'n, 'a, F: Fn(&Address) -> &'a WaitQueue> Run<'n, F> {
    fn new(node: &'n Node, queue_of: F, deadline: Instant) -> Self {
        Self { node, queue_of, deadline, is_too_slow: false, served: Served::default() }
    }

    /// Returns the keys that need another round.
    async fn round(&mut self, open: Works) -> Works {
        let Some((used, open)) = self.used(open) else { return Vec::new() };
        let mut again = Vec::new();
        let mut groups = groups(self.load_missing(open, &used, &mut again).await).into_iter();
        let mut is_first = true;
        while let Some(group) = groups.next() {
            if self.is_too_slow {
                self.fail(group, &TOO_SLOW);
                continue;
            }
            self.extend_deadline(is_first);
            is_first = false;
            // The time first: a jump that is in it is noted by then.
            let round = self.round_of(&used);
            if self.node.clock.jump().is_some() {
                return self.after_jump(group.into_iter().chain(groups.flatten()).collect(), again).await;
            }
            let mut changed = Vec::with_capacity(group.len());
            for (work, evaluation, uncounted) in self.evaluate_all(group, round) {
                if evaluation.changed {
                    changed.push((work, evaluation, uncounted));
                } else if work.is_fresh {
                    self.served.done.push(work.unchanged(evaluation));
                } else {
                    again.push(work.again(0));
                }
            }
            if !changed.is_empty() {
                let changes = self.changes(&mut changed, round);
                let commit = self.node.store.checked(used.epoch, used.store.commit(round.now, &changes));
                let committed = self.timed_commit(&used, commit).await;
                again.extend(self.conclude(changed, changes, committed));
            }
        }
        let (contended, again) = again.into_iter().partition(|work| work.losses >= LOSSES_MAX);
        self.set_apart(contended, false);
        again
    }

    fn set_apart(&mut self, works: Works, is_busy: bool) {
        self.served.apart.extend(works.into_iter().map(|work| Apart { work, is_busy }));
    }

    async fn load_missing(&mut self, open: Works, used: &UsedLocks, again: &mut Works) -> Works {
        let epoch = used.epoch;
        // A load also tells the store's time.
        let has_time = self.node.clock.now().is_some();
        let is_missing = |work: &Work| work.base.is_none() || work.epoch != epoch || !has_time;
        if !open.iter().any(|work| is_missing(work)) {
            return open;
        }
        let (missing, mut ready): (Vec<_>, Vec<_>) = open.into_iter().partition(|work| is_missing(work));
        let mut missing = missing.into_iter().peekable();
        let mut is_first = true;
        while missing.peek().is_some() {
            let group: Works = missing.by_ref().take(LOADED_MAX).collect();
            if self.is_too_slow {
                self.fail(group, &TOO_SLOW);
                continue;
            }
            self.extend_deadline(is_first);
            is_first = false;
            self.load(group, used, &mut ready, again).await;
        }
        ready
    }

    /// Loads states with one statement.
    async fn load(&mut self, missing: Works, used: &UsedLocks, ready: &mut Works, again: &mut Works) {
        let epoch = used.epoch;
        let addresses: Vec<Address> = missing.iter().map(|work| work.address.clone()).collect();
        let load = self.node.store.checked(epoch, used.store.load(epoch, &addresses));
        match self.timed(used, load, |loaded| loaded.now).await {
            Ok(Loaded { states, .. }) => ready.extend(loaded(missing, states, epoch)),
            // The next round names the epoch that is in force by then.
            Err(StoreError::EpochOver) => {
                self.node.metrics.retried(Retry::Epoch, missing.len());
                again.extend(missing);
            }
            // The others are loaded without them in the next round.
            Err(StoreError::Unreadable { keys, reason }) if !keys.is_empty() => {
                for work in missing {
                    match keys.contains(&work.address) {
                        true => {
                            let keys = vec![work.address.clone()];
                            let failure = StoreError::Unreadable { keys, reason: reason.clone() }.into();
                            self.served.done.push(work.fail(failure, Vec::new()));
                        }
                        false => again.push(work),
                    }
                }
            }
            Err(error) => {
                let failure = self.node.failure(&error.of_reading());
                self.fail(missing, &failure);
            }
        }
    }

    /// Each further statement of a round has as much time as the first.
    fn extend_deadline(&mut self, is_first: bool) {
        if !is_first {
            self.deadline = Instant::now() + self.node.limits.store_timeout;
        }
    }

    /// As [`Run::round`], with the states locked in the store.
    async fn locked_round(&mut self, open: Works) -> Works {
        let Some((used, open)) = self.used(open) else { return Vec::new() };
        let addresses: Vec<Address> = open.iter().map(|work| work.address.clone()).collect();
        let (Loaded { states, .. }, locked) = match self.node.lock(&used, &addresses, self.deadline).await {
            Ok(Some(locked)) => locked,
            Ok(None) => return open,
            Err(error) => {
                let failure = self.node.failure(&error);
                self.fail(open, &failure);
                return Vec::new();
            }
        };
        let round = self.round_of(&used);
        if self.node.clock.jump().is_some() {
            self.node.give_up(locked, self.deadline).await;
            return self.after_jump(open, Vec::new()).await;
        }
        let evaluated = self.evaluate_all(loaded(open, states, used.epoch).collect(), round);
        let (mut changed, unchanged): (Vec<_>, Vec<_>) =
            evaluated.into_iter().partition(|(_, evaluation, _)| evaluation.changed);
        let unchanged = unchanged.into_iter().map(|(work, evaluation, _)| work.unchanged(evaluation));
        self.served.done.extend(unchanged);
        if changed.is_empty() {
            self.node.give_up(locked, self.deadline).await;
            return Vec::new();
        }
        let changes = self.changes(&mut changed, round);
        let commit = self.node.store.checked(used.epoch, locked.commit(round.now, &changes, Rule::Each));
        let committed = self.timed_commit(&used, commit).await;
        self.conclude(changed, changes, committed)
    }

    /// The engine in use. Without one the keys fail, and nothing is evaluated: whether a hold-off is in force is not known.
    fn used(&mut self, open: Works) -> Option<(UsedLocks, Works)> {
        match self.node.store.used() {
            Ok(used) => Some((used, open)),
            Err(error) => {
                let failure = self.node.failure(&error);
                self.fail(open, &failure);
                None
            }
        }
    }

    /// The store's clock has jumped ahead: leases may seem to have ended that have not. A hold-off begins before anything is granted.
    async fn after_jump(&mut self, open: Works, again: Works) -> Works {
        let again: Works = open.into_iter().chain(again).map(|work| work.again(0)).collect();
        match self.node.hold_off_after_jump().await {
            Ok(()) => again,
            Err(error) => {
                let failure = self.node.failure(&error);
                self.fail(again, &failure);
                Vec::new()
            }
        }
    }

    fn round_of<'u>(&self, used: &'u UsedLocks) -> Round<'u> {
        Round { used, now: self.node.clock.now().unwrap_or_default() }
    }

    fn evaluate_all(&self, works: Works, round: Round<'_>) -> Vec<Pending> {
        let terms = self.node.terms(round);
        let evaluate = |work: Box<Work>| {
            let Work { address, commands, arrived, ended, uncertain, base, .. } = &*work;
            let absent = Stored::default();
            let state = &base.as_deref().unwrap_or(&absent).state;
            let batch = lock::Batch { commands, arrived, uncertain, ended };
            let evaluation = evaluate(state, batch, (self.queue_of)(address), &self.node.id, round.now, terms);
            let uncounted = Uncounted::of(&evaluation.events);
            (work, evaluation, uncounted)
        };
        works.into_iter().map(evaluate).collect()
    }

    /// The states of the evaluations move into the changes, and from there into the cache.
    fn changes(&self, changed: &mut [Pending], round: Round<'_>) -> Vec<Change> {
        let change = |(work, evaluation, _): &mut Pending| {
            let stored = Stored { version: work.version(), state: std::mem::take(&mut evaluation.state) };
            self.node.change(&work.address, stored, std::mem::take(&mut evaluation.events), round)
        };
        changed.iter_mut().map(change).collect()
    }

    /// Sorts the keys of a commit into those that are done and those that need another round.
    fn conclude(
        &mut self,
        changed: Vec<Pending>,
        changes: Vec<Change>,
        committed: Result<Committed, StoreError>,
    ) -> Works {
        let is_off = matches!(&committed, Ok(Committed { result: CommitResult::ClockOff, .. }));
        let (now, versions, busy) = match committed {
            Ok(Committed { now, result: CommitResult::Checked(versions), busy }) => (now, versions, busy),
            // The answer has corrected the estimate; or the estimate was right, but the commit arrived too late.
            Ok(Committed { now, result: CommitResult::ClockOff, busy }) => {
                self.node.metrics.retried(Retry::Clock, changes.len());
                tracing::debug!(store_now_ms = now.as_ms(), "a commit was refused because of its time");
                (now, vec![None; changes.len()], busy)
            }
            Err(error) => return self.conclude_failed(changed, &error),
        };
        if versions.iter().any(Option::is_some) {
            self.node.health.committed();
        }
        self.served.done.reserve(changed.len());
        let mut lost = Vec::new();
        let mut has_events = false;
        for (index, (((work, evaluation, uncounted), change), version)) in
            changed.into_iter().zip(changes).zip(versions).enumerate()
        {
            let Some(version) = version else {
                match busy.contains(&index) {
                    true => {
                        self.node.metrics.retried(Retry::Contended, 1);
                        self.set_apart(vec![work.again(0)], true);
                    }
                    false => {
                        let was_guess = !work.is_fresh && change.expected == Version::ABSENT;
                        self.served.has_guessed_wrong |= was_guess && !is_off;
                        lost.push(work.again(u32::from(!is_off && !was_guess)));
                    }
                }
                continue;
            };
            let absent = LockState::default();
            let before = work.base.as_ref().map_or(&absent, |base| &base.state);
            self.node.metrics.committed(uncounted, before, &change.state, now);
            self.node.notify_next(&change.address, &change.state, now);
            has_events |= !change.events.is_empty();
            let result = Ok((Stored { version, state: change.state }, evaluation));
            self.served.done.push(Done { work, result });
        }
        if !is_off {
            self.node.metrics.lost_races.inc_by(lost.len() as u64);
        }
        if has_events {
            self.node.history.has_events();
        }
        lost
    }

    /// As [`Run::conclude`], of a commit without an answer.
    fn conclude_failed(&mut self, changed: Vec<Pending>, error: &StoreError) -> Works {
        // The next round names the epoch that is in force by then, or others are out of the way by then.
        if let StoreError::EpochOver | StoreError::Contended(_) = error {
            let why = if matches!(error, StoreError::EpochOver) { Retry::Epoch } else { Retry::Contended };
            self.node.metrics.retried(why, changed.len());
            return changed.into_iter().map(|(work, ..)| work.again(0)).collect();
        }
        let failure = self.node.commit_failure(error);
        let is_unknown = matches!(failure, Failure::OutcomeUnknown(_));
        for (work, evaluation, _) in changed {
            let answered = evaluation.answered.into_iter().filter(|_| is_unknown);
            let unknown = answered.filter_map(|(rank, outcome)| match outcome {
                Outcome::Granted(Grant { lease, repeated: false, .. }) => Some((rank, lease)),
                _ => None,
            });
            self.served.done.push(work.fail(failure.clone(), unknown.collect()));
        }
        Vec::new()
    }

    fn fail(&mut self, works: Works, failure: &Failure) {
        self.served.done.extend(works.into_iter().map(|work| work.fail(failure.clone(), Vec::new())));
    }

    async fn timed_commit(
        &mut self,
        used: &UsedLocks,
        commit: impl Future<Output = Result<Committed, StoreError>>,
    ) -> Result<Committed, StoreError> {
        let sent = Instant::now();
        let committed = self.timed(used, commit, |committed| committed.now).await;
        self.node.metrics.commit_took(self.node.store.name(), sent.elapsed());
        committed
    }

    /// Waits for the store until the batch's deadline, and learns the store's time from the answer.
    async fn timed<T>(
        &mut self,
        used: &UsedLocks,
        answer: impl Future<Output = Result<T, StoreError>>,
        time_of: fn(&T) -> Timestamp,
    ) -> Result<T, StoreError> {
        let sent = Instant::now();
        let Ok(answer) = timeout_at(self.deadline, answer).await else {
            self.is_too_slow = true;
            return Err(StoreError::OutcomeUnknown("it took too long to answer".to_owned()));
        };
        let answer = answer?;
        self.node.clock.learn(used.clock(), time_of(&answer), sent, Instant::now());
        Ok(answer)
    }
}

/// The works in groups that one statement each can write.
fn groups(works: Works) -> Vec<Works> {
    let (mut groups, mut bytes) = (Vec::new(), 0);
    for work in works {
        let own = work.base.as_ref().map_or(0, |base| base.state.bytes());
        bytes += own;
        if groups.is_empty() || bytes > WRITTEN_BYTES_MAX {
            groups.push(Vec::new());
            bytes = own;
        }
        if let Some(group) = groups.last_mut() {
            group.push(work);
        }
    }
    groups
}

fn loaded(works: Works, states: Vec<Stored>, epoch: Epoch) -> impl Iterator<Item = Box<Work>> {
    works.into_iter().zip(states).map(move |(mut work, stored)| {
        (work.base, work.epoch, work.is_fresh) = (Some(Arc::new(stored)), epoch, true);
        work
    })
}
