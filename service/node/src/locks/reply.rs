//! The replies of the committer: to the calls of a batch, to waiters that are granted or refused, and to waits that end.

use std::time::Duration;

use latchgate_core::lock::{
    Acquire, EndReason, Evaluation, Event, Grant, LockState, Outcome, QueueNumbers, Rank, Refusal, ReplyHandle,
};
use latchgate_core::{Address, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch_input::BatchInput;
use super::call::{Acquired, Envelope, Failure, Inspected, Reply, Waiting, give_back_later};
use super::committer::Committer;
use super::key_queue::{KeyQueue, WaitQueue, Waiter};
use super::kind::Locking;
use super::refusal::{in_time, refused};
use crate::node::{Done, Failed, Work};
use crate::observe::metrics::LockMetrics;

/// Most waiters of a key that an inspection names.
const WAITING_SHOWN_MAX: usize = 100;
/// How long the position of a probe is reserved while its multilock tries all its keys.
const PROBE_HOLD: Duration = Duration::from_secs(2);

/// A key, as far as a caller may see it.
struct Shown<'a> {
    state: &'a LockState,
    waiters: u64,
    queue: Option<&'a KeyQueue>,
}

impl Shown<'_> {
    fn inspected(&self, now: Timestamp) -> Inspected {
        let waiting = self.queue.map(waiting).unwrap_or_default();
        let waiting_elsewhere = self.waiters.saturating_sub(waiting.len() as u64);
        Inspected { state: self.state.clone(), waiters: self.waiters, waiting, waiting_elsewhere, now }
    }
}

/// The first waiters of a queue.
fn waiting(queue: &KeyQueue) -> Vec<Waiting> {
    let live = queue.queue.iter().filter(|(_, waiter)| waiter.deadline.is_some() && !waiter.reply.is_closed());
    let shown = live.take(WAITING_SHOWN_MAX).map(|(_, waiter)| Waiting {
        owner: waiter.request.lease.owner.clone(),
        mode: waiter.request.lease.demand.mode,
        group: waiter.request.lease.demand.group().cloned(),
        priority: waiter.request.position.priority,
        since: waiter.request.position.arrival,
        is_multilock: waiter.is_probe,
    });
    shown.collect()
}

/// The number of a waiter in the queue.
fn number_of(numbers: &QueueNumbers<'_>, queue: &WaitQueue, rank: Rank) -> u64 {
    queue.get(rank).map_or(1, |waiter| numbers.of(queue, Some(rank), &waiter.request))
}

impl Reply {
    fn send(self, outcome: Outcome, shown: &Shown<'_>, now: Timestamp) {
        // A caller that has gone needs no reply.
        match self {
            Self::Inspect(reply) => drop(reply.send(Ok(shown.inspected(now)))),
            Self::Outcome(reply) => drop(reply.send(Ok((outcome, now)))),
            Self::GiveBack { .. } | Self::None => {}
        }
    }

    pub(super) fn fail(self, failure: Failure, address: &Address, home: &mpsc::WeakSender<Envelope>) {
        match self {
            Self::Inspect(reply) => drop(reply.send(Err(failure))),
            Self::Outcome(reply) => drop(reply.send(Err(failure))),
            Self::GiveBack { give_back, until } => {
                give_back_later(home.clone(), address.clone(), give_back, until);
            }
            Self::None => {}
        }
    }
}

/// Counts a grant to a waiter if the lock became free while it waited. `is_timed`: a timer found that.
fn count_hand_off(metrics: &LockMetrics, state: &LockState, arrival: Timestamp, now: Timestamp, is_timed: bool) {
    let Some((ended_at, why)) = state.last_end().filter(|(at, _)| *at >= arrival) else { return };
    // The lock was not free when its lease ended.
    if state.is_delayed_after(ended_at) {
        return;
    }
    metrics.handoff_seconds.observe(Duration::from_millis(now.ms_since(ended_at)).as_secs_f64());
    // An expiry, and the end of a revoked lease, are always found by a timer.
    if is_timed && !matches!(why, EndReason::Expired | EndReason::Revoked) {
        metrics.found_by_timer.inc();
    }
}

/// Replies to a waiter that was granted the lock, or refused for good.
fn answer_waiter(
    metrics: &LockMetrics,
    mut waiter: Waiter,
    outcome: Outcome,
    state: &LockState,
    is_timed: bool,
    now: Timestamp,
) {
    let waited = waiter.reply.requested_at.elapsed();
    if waiter.deadline.is_some() && !waiter.is_probe {
        metrics.wait_seconds.observe(waited.as_secs_f64());
    }
    let answer = in_time(outcome, now);
    // A repeated grant is not given back: its first answer may have arrived.
    if let Ok(Outcome::Granted(Grant { lease, repeated: false, .. })) = &answer {
        waiter.reply.give_back.add(lease, false);
        // Permits that were kept for their shortest hold were not free when their lease ended.
        if lease.mode.permits() == 0 || lease.min_hold_ms == 0 {
            count_hand_off(metrics, state, waiter.request.position.arrival, now, is_timed);
        }
    }
    waiter.reply.answer(answer.map(|outcome| Acquired::Outcome(outcome, now)));
}

impl Committer {
    /// Replies with what a batch came to for one key.
    pub(super) fn answer(&mut self, done: Done<Locking>, input: &mut BatchInput) {
        let Done { work, result } = done;
        let Work { address, epoch, .. } = *work;
        let evaluation = match result {
            Ok((stored, (evaluation, _))) => {
                self.cache.put(address.clone(), stored, epoch);
                evaluation
            }
            Err(failed) => {
                self.cache.remove(&address);
                return self.answer_failure(&address, input, failed);
            }
        };
        let Evaluation { outcomes, answered, notified, refusals, .. } = evaluation;
        let now = self.node.clock.latest().unwrap_or_default();
        let Some(state) = self.cache.last_known(&address) else { return };
        let queue = self.queues.get_mut(&address);
        let here = queue.as_ref().map_or(0, |queue| queue.queue.waiting());
        let waiters = state.waiting_elsewhere(&self.node.id) + here as u64;
        for (reply, outcome) in input.replies.drain(..).zip(outcomes) {
            reply.send(outcome, &Shown { state, waiters, queue: queue.as_deref() }, now);
        }
        let Some(queue) = queue else { return };
        // The state has been written since, or loaded with what was written: nothing is uncertain any more.
        for rank in queue.uncertain.drain(..) {
            if let Some(reply) = queue.queue.reply_mut(rank) {
                reply.give_back.forget();
            }
        }
        let queue = &mut queue.queue;
        // Now, because a state remembers few ended leases.
        queue.drop_granted_reservations(state);
        queue.note_served(state);
        let instant = Instant::now();
        for (rank, outcome) in answered {
            let Some(waiter) = queue.remove(rank) else { continue };
            self.waiters -= 1;
            answer_waiter(&self.node.metrics, waiter, outcome, state, input.is_timed, now);
        }
        for rank in notified {
            queue.reserve(rank, instant + PROBE_HOLD);
            let Some(waiter) = queue.remove(rank) else { continue };
            self.waiters -= 1;
            waiter.reply.answer(Ok(Acquired::Notified));
        }
        let numbers = QueueNumbers::new(state, &self.node.id);
        for rank in input.arrived.iter().copied() {
            if queue.get(rank).is_none_or(|waiter| waiter.deadline.is_some()) {
                continue;
            }
            // It does not wait, and was not granted the lock.
            let number = number_of(&numbers, queue, rank);
            let Some(waiter) = queue.remove(rank) else { continue };
            self.waiters -= 1;
            let refusal = refusals.get(&rank).copied().unwrap_or(Refusal::Held);
            let request = (&waiter.request, waiter.reply.requested_at);
            let refused = refused(state, refusal, request, (number, waiters), now);
            waiter.reply.answer(Ok(Acquired::Refused(refused)));
        }
    }

    /// The calls and the waiters of this batch get the failure. Earlier waiters go on waiting: the store may answer again
    /// before their waits end.
    pub(super) fn answer_failure(&mut self, address: &Address, input: &mut BatchInput, failed: Failed<Locking>) {
        for reply in input.replies.drain(..) {
            reply.fail(failed.failure.clone(), address, &self.home);
        }
        let Some(queue) = self.queues.get_mut(address) else { return };
        for (rank, lease) in &failed.unknown {
            if let Some(reply) = queue.queue.reply_mut(*rank) {
                reply.give_back.add(lease, true);
            }
        }
        for rank in &input.arrived {
            if let Some(waiter) = queue.queue.remove(*rank) {
                self.waiters -= 1;
                waiter.reply.answer(Err(failed.failure.clone()));
            }
        }
        let unknown = failed.unknown.iter().map(|(rank, _)| *rank);
        queue.uncertain.extend(unknown.filter(|rank| queue.queue.get(*rank).is_some()));
        queue.uncertain.sort_unstable();
        queue.uncertain.dedup();
        input.failure = Some(failed.failure);
    }

    /// Replies to the waits that end with this batch, if its evaluation has not answered them. If it failed, it is not known
    /// whether the caller has the lease: an earlier request with its lease id may have been granted at another node.
    pub(super) fn answer_ended(&mut self, address: &Address, ended: &[Rank], failure: Option<&Failure>) {
        if ended.is_empty() {
            return;
        }
        let now = self.node.clock.latest().unwrap_or_default();
        let Some(KeyQueue { queue, uncertain }) = self.queues.get_mut(address) else { return };
        let unknown = LockState::default();
        let state = self.cache.last_known(address).unwrap_or(&unknown);
        let numbers = QueueNumbers::new(state, &self.node.id);
        for rank in ended {
            let number = number_of(&numbers, queue, *rank);
            let Some(waiter) = queue.remove(*rank) else { continue };
            self.waiters -= 1;
            if !waiter.is_probe {
                self.node.metrics.wait_seconds.observe(waiter.reply.requested_at.elapsed().as_secs_f64());
            }
            let Acquire { lease, position, .. } = &waiter.request;
            if let Some(failure) = failure {
                let failure = if uncertain.contains(rank) {
                    Failure::OutcomeUnknown("the store did not answer before the wait ended".to_owned())
                } else {
                    failure.clone()
                };
                let position = *position;
                waiter.reply.answer(Ok(Acquired::WaitFailed { failure, position }));
                continue;
            }
            let event = Event::waited(lease.owner.clone(), lease.demand.mode, now.ms_since(position.arrival), now);
            let logged = match self.node.closing.is_cancelled() {
                true => Some((address.clone(), event)),
                false => self.ended_waits.hold(address, *position, event),
            };
            if let Some((address, event)) = logged {
                self.node.history.log(&address, event);
            }
            let waiters = state.waiting_elsewhere(&self.node.id) + queue.waiting() as u64;
            let request = (&waiter.request, waiter.reply.requested_at);
            let refused = refused(state, Refusal::WaitTimeout, request, (number, waiters), now);
            waiter.reply.answer(Ok(Acquired::Refused(refused)));
        }
    }
}
