//! The rounds of a batch: load, evaluate, commit, and another round for the keys that were changed meanwhile.

use std::sync::Arc;

use latchgate_core::{Address, Timestamp};
use tokio::time::{Instant, timeout_at};

use super::machine::Node;
use crate::engines::EngineInUse;
use crate::failure::Failure;
use crate::observe::metrics::Retry;
use crate::store::{
    Change, CommitResult, Committed, Epoch, Loaded, RowState, Rows, Rule, Store, StoreError, Stored, Version,
};

/// After this many lost races a key is served apart.
const LOSSES_MAX: u32 = 2;
/// Rounds of a batch, for lost races and wrong clocks together.
const ROUNDS_MAX: u32 = 8;
/// How many states one statement loads: 8 MiB if all are as long as is allowed.
const LOADED_MAX: usize = 128;
/// How long the states are that one statement writes, in bytes: about, because an evaluation may make them longer.
const WRITTEN_BYTES_MAX: usize = 2 << 20;

/// What a kind of state brings to the machine: how a batch is evaluated, and what follows its commit.
pub(crate) trait Kind: Sized + 'static {
    type State: RowState;
    /// What a batch brings to one key, and what its committer needs to reply.
    type Input: Send + Sync;
    /// What came of it, with the state until that is moved out.
    type Evaluation: Send + Sync;
    /// What callers may have got by a commit of unknown outcome.
    type Unknown: Default + Send;
    /// What evaluations need beside state and input.
    type Context<'a>: Copy + Send + Sync;

    fn evaluate(
        context: Self::Context<'_>,
        input: &Self::Input,
        state: &Self::State,
        round: Round<'_>,
    ) -> Self::Evaluation;

    fn has_changed(evaluation: &Self::Evaluation) -> bool;

    /// Moves the state out.
    fn take_state(evaluation: &mut Self::Evaluation) -> Self::State;

    fn change(
        context: Self::Context<'_>,
        address: &Address,
        expected: Version,
        evaluation: &mut Self::Evaluation,
        round: Round<'_>,
    ) -> Change<Self::State>;

    /// The change is in the store.
    fn committed(
        context: Self::Context<'_>,
        change: &Change<Self::State>,
        before: &Self::State,
        evaluation: &mut Self::Evaluation,
        now: Timestamp,
    );

    /// A commit had events.
    fn has_events(context: Self::Context<'_>);

    fn unknown(evaluation: Self::Evaluation) -> Self::Unknown;

    /// By how much the input may make the state longer, in bytes.
    fn bytes(input: &Self::Input) -> usize;
}

/// One key of a batch.
pub(crate) struct Work<K: Kind> {
    pub address: Address,
    pub input: K::Input,
    /// A state that was current recently, or the guess that there is none. It is good enough for a change, whose commit checks its
    /// version, but not for an answer without a change.
    pub base: Option<Arc<Stored<K::State>>>,
    /// The epoch of the base.
    pub epoch: Epoch,
    /// The base was loaded in this batch, so an answer may be given from it.
    pub is_fresh: bool,
    /// How many races its commits have lost.
    pub losses: u32,
}

type Evaluated<K> = (Stored<<K as Kind>::State>, <K as Kind>::Evaluation);

/// What a batch came to for one key.
pub(crate) struct Done<K: Kind> {
    pub work: Box<Work<K>>,
    /// On success the state as it is in the store, and the evaluation without its state.
    pub result: Result<Evaluated<K>, Failed<K>>,
}

/// What a batch came to.
pub(crate) struct Served<K: Kind> {
    pub done: Vec<Done<K>>,
    /// Keys that would hold up the others: they are to be served apart.
    pub apart: Vec<Apart<K>>,
    /// A key that was taken to have no state has one.
    pub has_guessed_wrong: bool,
}

/// A key that is to be served apart, with all that it was given.
pub(crate) struct Apart<K: Kind> {
    pub work: Box<Work<K>>,
    /// True: another session keeps its row locked. False: it is changed often.
    pub is_busy: bool,
}

pub(crate) struct Failed<K: Kind> {
    pub failure: Failure,
    /// Of an evaluation whose commit has an unknown outcome.
    pub unknown: K::Unknown,
}

/// What all evaluations of one commit are made with: taken once, before the states are loaded. If the epoch is over by
/// the time of the commit, so is its hold-off, and the store refuses the commit.
#[derive(Clone, Copy)]
pub(crate) struct Round<'a> {
    pub used: &'a Arc<EngineInUse>,
    pub now: Timestamp,
}

/// Boxed: each round moves them.
pub(crate) type Works<K> = Vec<Box<Work<K>>>;

/// An evaluation that is not committed yet.
type Pending<K> = (Box<Work<K>>, <K as Kind>::Evaluation);

impl<K: Kind> Work<K> {
    pub(crate) fn fail(self: Box<Self>, failure: Failure, unknown: K::Unknown) -> Done<K> {
        Done { work: self, result: Err(Failed { failure, unknown }) }
    }

    /// Concludes with the state as it was loaded.
    fn unchanged(self: Box<Self>, mut evaluation: K::Evaluation) -> Done<K> {
        let version = self.version();
        let state = K::take_state(&mut evaluation);
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
pub(crate) async fn run<'a, K: Kind>(node: &'a Node, context: K::Context<'a>, mut open: Works<K>) -> Served<K>
where
    dyn Store: Rows<K::State>,
{
    let mut run = Run::<K>::new(node, context, Instant::now() + node.limits.store_timeout);
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
pub(crate) async fn run_locked<'a, K: Kind>(
    node: &'a Node,
    context: K::Context<'a>,
    work: Box<Work<K>>,
    deadline: Instant,
) -> Done<K>
where
    dyn Store: Rows<K::State>,
{
    let mut run = Run::<K>::new(node, context, deadline);
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

struct Run<'n, K: Kind> {
    node: &'n Node,
    context: K::Context<'n>,
    deadline: Instant,
    /// A statement was not answered in time: the rest of the batch is not sent.
    is_too_slow: bool,
    served: Served<K>,
}

impl<'n, K: Kind> Run<'n, K>
where
    dyn Store: Rows<K::State>,
{
    fn new(node: &'n Node, context: K::Context<'n>, deadline: Instant) -> Self {
        let served = Served { done: Vec::new(), apart: Vec::new(), has_guessed_wrong: false };
        Self { node, context, deadline, is_too_slow: false, served }
    }

    /// Returns the keys that need another round.
    async fn round(&mut self, open: Works<K>) -> Works<K> {
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
            // Read the time first: a jump that it contains has then been noted.
            let round = self.round_of(&used);
            if self.node.clock.jump().is_some() {
                return self.after_jump(group.into_iter().chain(groups.flatten()).collect(), again).await;
            }
            let mut changed = Vec::with_capacity(group.len());
            for (work, evaluation) in self.evaluate_all(group, round) {
                if K::has_changed(&evaluation) {
                    changed.push((work, evaluation));
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

    fn set_apart(&mut self, works: Works<K>, is_busy: bool) {
        self.served.apart.extend(works.into_iter().map(|work| Apart { work, is_busy }));
    }

    async fn load_missing(&mut self, open: Works<K>, used: &Arc<EngineInUse>, again: &mut Works<K>) -> Works<K> {
        let epoch = used.epoch;
        // A load also tells the store's time.
        let has_time = self.node.clock.now().is_some();
        let is_missing = |work: &Work<K>| work.base.is_none() || work.epoch != epoch || !has_time;
        if !open.iter().any(|work| is_missing(work)) {
            return open;
        }
        let (missing, mut ready): (Vec<_>, Vec<_>) = open.into_iter().partition(|work| is_missing(work));
        let mut missing = missing.into_iter().peekable();
        let mut is_first = true;
        while missing.peek().is_some() {
            let group: Works<K> = missing.by_ref().take(LOADED_MAX).collect();
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
    async fn load(&mut self, missing: Works<K>, used: &Arc<EngineInUse>, ready: &mut Works<K>, again: &mut Works<K>) {
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
                            self.served.done.push(work.fail(failure, K::Unknown::default()));
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
    async fn locked_round(&mut self, open: Works<K>) -> Works<K> {
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
            evaluated.into_iter().partition(|(_, evaluation)| K::has_changed(evaluation));
        let unchanged = unchanged.into_iter().map(|(work, evaluation)| work.unchanged(evaluation));
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
    fn used(&mut self, open: Works<K>) -> Option<(Arc<EngineInUse>, Works<K>)> {
        match self.node.store.in_use() {
            Ok(used) => Some((used, open)),
            Err(error) => {
                let failure = self.node.failure(&error);
                self.fail(open, &failure);
                None
            }
        }
    }

    /// The store's clock has jumped ahead: leases may seem to have ended that have not. A hold-off begins before anything is granted.
    async fn after_jump(&mut self, open: Works<K>, again: Works<K>) -> Works<K> {
        let again: Works<K> = open.into_iter().chain(again).map(|work| work.again(0)).collect();
        match self.node.hold_off_after_jump().await {
            Ok(()) => again,
            Err(error) => {
                let failure = self.node.failure(&error);
                self.fail(again, &failure);
                Vec::new()
            }
        }
    }

    fn round_of<'u>(&self, used: &'u Arc<EngineInUse>) -> Round<'u> {
        Round { used, now: self.node.clock.now().unwrap_or_default() }
    }

    fn evaluate_all(&self, works: Works<K>, round: Round<'_>) -> Vec<Pending<K>> {
        let absent = K::State::default();
        let evaluate = |work: Box<Work<K>>| {
            let state = work.base.as_deref().map_or(&absent, |base| &base.state);
            let evaluation = K::evaluate(self.context, &work.input, state, round);
            (work, evaluation)
        };
        works.into_iter().map(evaluate).collect()
    }

    /// The states of the evaluations move into the changes, and from there into the cache.
    fn changes(&self, changed: &mut [Pending<K>], round: Round<'_>) -> Vec<Change<K::State>> {
        let change = |(work, evaluation): &mut Pending<K>| {
            K::change(self.context, &work.address, work.version(), evaluation, round)
        };
        changed.iter_mut().map(change).collect()
    }

    /// Sorts the keys of a commit into those that are done and those that need another round.
    fn conclude(
        &mut self,
        changed: Vec<Pending<K>>,
        changes: Vec<Change<K::State>>,
        committed: Result<Committed, StoreError>,
    ) -> Works<K> {
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
        for (index, (((work, mut evaluation), change), version)) in
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
            let absent = K::State::default();
            let before = work.base.as_ref().map_or(&absent, |base| &base.state);
            K::committed(self.context, &change, before, &mut evaluation, now);
            has_events |= !change.events.is_empty();
            let result = Ok((Stored { version, state: change.state }, evaluation));
            self.served.done.push(Done { work, result });
        }
        if !is_off {
            self.node.metrics.lost_races.inc_by(lost.len() as u64);
        }
        if has_events {
            K::has_events(self.context);
        }
        lost
    }

    /// As [`Run::conclude`], of a commit without an answer.
    fn conclude_failed(&mut self, changed: Vec<Pending<K>>, error: &StoreError) -> Works<K> {
        // The next round names the epoch that is in force by then, or others are out of the way by then.
        if let StoreError::EpochOver | StoreError::Contended(_) = error {
            let why = if matches!(error, StoreError::EpochOver) { Retry::Epoch } else { Retry::Contended };
            self.node.metrics.retried(why, changed.len());
            return changed.into_iter().map(|(work, _)| work.again(0)).collect();
        }
        let failure = self.node.commit_failure(error);
        let is_unknown = matches!(failure, Failure::OutcomeUnknown(_));
        for (work, evaluation) in changed {
            let unknown = if is_unknown { K::unknown(evaluation) } else { K::Unknown::default() };
            self.served.done.push(work.fail(failure.clone(), unknown));
        }
        Vec::new()
    }

    fn fail(&mut self, works: Works<K>, failure: &Failure) {
        self.served.done.extend(works.into_iter().map(|work| work.fail(failure.clone(), K::Unknown::default())));
    }

    async fn timed_commit(
        &mut self,
        used: &Arc<EngineInUse>,
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
        used: &Arc<EngineInUse>,
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
fn groups<K: Kind>(works: Works<K>) -> Vec<Works<K>> {
    let (mut groups, mut bytes) = (Vec::new(), 0);
    for work in works {
        let own = work.base.as_ref().map_or(0, |base| base.state.bytes()) + K::bytes(&work.input);
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

fn loaded<K: Kind>(works: Works<K>, states: Vec<Stored<K::State>>, epoch: Epoch) -> impl Iterator<Item = Box<Work<K>>> {
    works.into_iter().zip(states).map(move |(mut work, stored)| {
        (work.base, work.epoch, work.is_fresh) = (Some(Arc::new(stored)), epoch, true);
        work
    })
}
