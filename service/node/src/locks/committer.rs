//! The committer: one task that serves the keys of a node in batches. It takes the calls that have arrived, loads the states that it has
//! not cached, evaluates each key, writes all changes in one commit, and replies.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchgate_core::Address;
use latchgate_core::lock::{Command, LockState, can_only_wait};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch_input::{BatchInput, Inputs};
use super::call::{Call, Envelope, Failure};
use super::ended_waits::EndedWaits;
use super::key_queue::KeyQueue;
use super::kind::Locking;
use super::node::LockNode;
use super::schedule::{DOWN_PAUSE, Schedule, next_recheck};
use crate::node::{Apart, BATCH_MAX, Cache, Done, Failed, Served, UnderWay, Work, gather, run, run_locked};
use crate::store::{Epoch, WakeUp};

/// How many keys that are due are looked at with each batch, however full it is.
const RECHECKS_MIN: usize = 64;

pub(super) struct Committer {
    pub(super) node: Arc<LockNode>,
    calls: mpsc::Receiver<Envelope>,
    /// Where a delivery that fails sends its give-back.
    pub(super) home: mpsc::WeakSender<Envelope>,
    /// From the store. Some stores send none.
    wake_ups: mpsc::Receiver<WakeUp>,
    /// Keys that this node has changed beside the batches.
    rechecks: mpsc::Receiver<Address>,
    /// Of the keys that are not under way. With a hasher that is four times as fast as the standard one, and has a random seed too.
    pub(super) queues: HashMap<Address, KeyQueue, lru::DefaultHasher>,
    schedule: Schedule,
    pub(super) cache: Cache<LockState>,
    under_way: UnderWay<Call, Locking>,
    /// When each call was sent that no batch has begun with yet.
    sent: Vec<Instant>,
    pub(super) ended_waits: EndedWaits,
    pub(super) waiters: usize,
}

impl Committer {
    pub(super) fn new(
        node: Arc<LockNode>,
        calls: mpsc::Receiver<Envelope>,
        home: mpsc::WeakSender<Envelope>,
        wake_ups: mpsc::Receiver<WakeUp>,
        rechecks: mpsc::Receiver<Address>,
    ) -> Self {
        let cache = Cache::new(node.limits.cached_keys, node.limits.cached_bytes);
        let (queues, schedule, under_way) = (HashMap::default(), Schedule::default(), UnderWay::default());
        let (sent, ended_waits) = (Vec::new(), EndedWaits::default());
        Self {
            node,
            calls,
            home,
            wake_ups,
            rechecks,
            queues,
            schedule,
            cache,
            under_way,
            sent,
            ended_waits,
            waiters: 0,
        }
    }

    /// Serves until every handle on the locks has been dropped.
    pub(super) async fn run(mut self) {
        let mut calls = Vec::with_capacity(BATCH_MAX);
        let closing = self.node.closing.clone();
        let (mut inputs, mut is_closing, mut is_over) = (Inputs::new(), false, false);
        while !is_over || !self.under_way.is_empty() {
            let next = self.schedule.next().into_iter().chain(self.ended_waits.next()).min();
            // What is due is looked at when a batch begins.
            let next = next.filter(|_| !self.under_way.has_batch());
            let has_room = !is_over && self.sent.len() < BATCH_MAX;
            tokio::select! {
                biased;
                () = closing.cancelled(), if !is_closing => is_closing = true,
                Some(wake_up) = self.wake_ups.recv() => self.wake(wake_up, &mut inputs),
                Some(address) = self.rechecks.recv() => self.wake(WakeUp::Key(address), &mut inputs),
                count = self.calls.recv_many(&mut calls, BATCH_MAX), if has_room => is_over = count == 0,
                Some(served) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.take_back(served, &mut inputs);
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(far)), if next.is_some() => {}
            }
            // However many calls come.
            while let Some(served) = self.under_way.try_next() {
                self.take_back(served, &mut inputs);
            }
            gather(&mut self.calls, &mut calls).await;
            while let Ok(wake_up) = self.wake_ups.try_recv() {
                self.wake(wake_up, &mut inputs);
            }
            while let Ok(address) = self.rechecks.try_recv() {
                self.wake(WakeUp::Key(address), &mut inputs);
            }
            for envelope in calls.drain(..) {
                self.sent.push(envelope.sent_at);
                self.take(envelope, &mut inputs);
            }
            if self.under_way.may_begin(inputs.len()) {
                if is_closing {
                    self.end_waits(&mut inputs);
                }
                let now = Instant::now();
                self.log_ended_waits(if is_closing { far() } else { now });
                self.recheck_due(&mut inputs);
                for sent in self.sent.drain(..) {
                    let delay = now.saturating_duration_since(sent);
                    self.node.metrics.committer_queue_seconds.observe(delay.as_secs_f64());
                }
                self.serve(std::mem::take(&mut inputs));
            }
            self.node.waiters.store(self.waiters as u64, Ordering::Relaxed);
        }
        self.log_ended_waits(far());
    }

    fn log_ended_waits(&mut self, until: Instant) {
        while let Some((address, event)) = self.ended_waits.pop(until) {
            self.node.history.log(&address, event);
        }
    }

    fn wake(&mut self, wake_up: WakeUp, inputs: &mut Inputs) {
        match wake_up {
            WakeUp::Key(address) if self.under_way.arrived(&address).is_some() => {
                self.under_way.arrived(&address).into_iter().for_each(|arrived| arrived.is_woken = true);
            }
            WakeUp::Key(address) if self.queues.contains_key(&address) => {
                inputs.entry(address).or_default().must_load = true
            }
            WakeUp::Key(_) => {}
            // Wake-ups may have been missed: all keys are due, and a batch takes as many as it can.
            WakeUp::All => {
                let now = Instant::now();
                for address in self.queues.keys() {
                    self.schedule.set(address.clone(), now);
                }
                self.under_way.all_arrived().for_each(|arrived| arrived.is_woken = true);
            }
        }
    }

    fn take(&mut self, Envelope { address, call, .. }: Envelope, inputs: &mut Inputs) {
        if let Some(arrived) = self.under_way.arrived(&address) {
            if arrived.calls.len() < self.node.limits.calls_max {
                arrived.calls.push(call);
            } else {
                call.refuse(Failure::Overloaded("too many calls wait for this key"), &address, &self.home);
            }
            return;
        }
        let (command, reply) = match call {
            Call::Acquire(call) => {
                if !call.reply.is_closed() {
                    self.enqueue(address, call, inputs);
                }
                return;
            }
            Call::Leave(id) => {
                self.leave(address, id, inputs);
                return;
            }
            Call::Command { command, reply } => (command, reply),
        };
        let input = inputs.entry(address).or_default();
        input.must_load |= matches!(command, Command::Tick);
        input.commands.push(command);
        input.replies.push(reply);
        input.is_timed = false;
    }

    /// Keys come back: they are answered, and what has arrived meanwhile is served.
    fn take_back(&mut self, served: Served<Locking>, inputs: &mut Inputs) {
        if served.has_guessed_wrong {
            self.cache.guessed_wrong();
        }
        served.apart.into_iter().for_each(|apart| self.set_apart(apart));
        for done in served.done {
            let arrived = self.under_way.leave(&done);
            let address = done.work.address.clone();
            self.conclude(done);
            if arrived.is_woken && self.queues.contains_key(&address) {
                inputs.entry(address.clone()).or_default().must_load = true;
            }
            for call in arrived.calls {
                self.take(Envelope::new(address.clone(), call), inputs);
            }
        }
    }

    /// Takes back the queue of a key, and answers its calls.
    fn conclude(&mut self, mut done: Done<Locking>) {
        let address = done.work.address.clone();
        let mut input = std::mem::take(&mut done.work.input);
        if !input.queue.queue.is_empty() {
            self.queues.insert(address.clone(), std::mem::take(&mut input.queue));
        }
        self.answer(done, &mut input);
        self.answer_ended(&address, &input.ended, input.failure.as_ref());
        self.schedule_next(address);
    }

    /// The key leaves the committer.
    fn set_apart(&mut self, apart: Apart<Locking>) {
        self.cache.remove(&apart.work.address);
        let node = Arc::clone(&self.node);
        self.under_way.begin_apart(Arc::clone(&node.node), apart, async move |work, deadline| {
            run_locked(&node, &*node, work, deadline).await
        });
    }

    /// Adds the keys whose recheck is due: a wait has ended, a lease may have expired, or the turn must be refreshed.
    fn recheck_due(&mut self, inputs: &mut Inputs) {
        let now = Instant::now();
        let most = BATCH_MAX.max(inputs.len() + RECHECKS_MIN);
        while inputs.len() < most {
            let Some(address) = self.schedule.pop_due(now) else { break };
            let Some(queue) = self.queues.get_mut(&address) else { continue };
            let input = inputs.entry(address).or_default();
            let overdue = queue.queue.overdue(now);
            if overdue.is_empty() {
                // This walks the whole queue, so it is not done each time that one wait ends.
                self.waiters -= queue.queue.remove_closed();
            }
            let had_ended = queue.queue.drop_ended_reservations(now);
            // If no wait or reservation has ended, the recheck is for a change in the store.
            if overdue.is_empty() && !had_ended {
                input.is_timed = !input.must_load && input.calls() == 0;
                input.must_load = true;
            }
            for rank in &overdue {
                let is_returning = queue.queue.get(*rank).is_some_and(|waiter| waiter.is_returning);
                if is_returning && queue.queue.reserved_len() < self.node.limits.waiters_per_key {
                    queue.queue.reserve(*rank, now + self.node.limits.ticket_hold);
                }
            }
            // While the node shuts down, every wait ends with this batch already.
            if input.ended.is_empty() {
                input.ended = overdue;
            }
        }
    }

    /// Begins a batch.
    fn serve(&mut self, inputs: Inputs) {
        let mut works = Vec::with_capacity(inputs.len());
        let is_up = self.node.health.is_up();
        let epoch = self.node.store.epoch();
        for (address, mut input) in inputs {
            if is_up && !self.only_waits(&address, &input, epoch) {
                let work = self.work(address, input, epoch);
                match self.under_way.is_busy(&work.address) {
                    true => self.set_apart(Apart { work, is_busy: true }),
                    false => works.push(work),
                }
                continue;
            }
            if !is_up {
                let failure = Failure::StoreUnavailable("the store does not answer".to_owned());
                self.cache.remove(&address);
                self.answer_failure(&address, &mut input, Failed { failure, unknown: Vec::new() });
            }
            self.answer_ended(&address, &input.ended, input.failure.as_ref());
            self.schedule_next(address);
        }
        if !works.is_empty() {
            let calls = works.iter().map(|work| work.input.calls()).sum::<usize>();
            self.node.metrics.batch_calls().observe(calls as f64);
            let node = Arc::clone(&self.node);
            self.under_way.begin(works, async move |works| run(&node, &*node, works).await);
        }
    }

    /// With the queue of the key.
    fn work(&mut self, address: Address, mut input: BatchInput, epoch: Epoch) -> Box<Work<Locking>> {
        self.schedule.remove(&address);
        input.queue = self.queues.remove(&address).unwrap_or_default();
        // If other nodes wait for the key, they have most likely changed it.
        let is_shared = |state: &LockState| state.turns().iter().any(|turn| turn.node != self.node.id);
        let base = if input.must_load { None } else { self.cache.base(&address, epoch) };
        let base = base.filter(|base| !is_shared(&base.state));
        let metrics = &self.node.metrics;
        if base.is_some() {
            metrics.cache_hits.inc();
        } else {
            metrics.cache_misses.inc();
        }
        // All waiters of the key have just arrived, so the node may not have met it.
        let is_new = !input.arrived.is_empty() && input.queue.queue.len() == input.arrived.len();
        let may_guess =
            is_new && input.commands.is_empty() && !input.must_load && self.cache.may_guess_absent(&address);
        let base = base.or_else(|| may_guess.then(Arc::default));
        Box::new(Work { address, input, base, epoch, is_fresh: false, losses: 0 })
    }

    /// Whether the key needs neither a read nor a write: its new waiters only join a queue whose turn is published.
    fn only_waits(&self, address: &Address, input: &BatchInput, epoch: Epoch) -> bool {
        if input.must_load || !input.commands.is_empty() || !input.ended.is_empty() {
            return false;
        }
        let Some(state) = self.cache.last_known_in(address, epoch) else { return false };
        let (Some(queue), Some(now)) = (self.queues.get(address), self.node.clock.now()) else { return false };
        can_only_wait(state, &input.arrived, &queue.queue, &self.node.id, now)
    }

    /// Drops the queue if it is empty; otherwise sets the key's next recheck.
    fn schedule_next(&mut self, address: Address) {
        let Entry::Occupied(entry) = self.queues.entry(address.clone()) else { return };
        let KeyQueue { queue, .. } = entry.get();
        if queue.is_empty() {
            entry.remove();
            self.schedule.remove(&address);
            return;
        }
        let now = Instant::now();
        let first = queue.first_waiting(|_| false, &LockState::default());
        let recheck = match (self.cache.last_known(&address), first) {
            (Some(state), Some(first)) => next_recheck(&self.node, state, first.position, now),
            _ => now + DOWN_PAUSE,
        };
        let at = queue.next_deadline().map_or(recheck, |deadline| deadline.min(recheck));
        self.schedule.set(address, at);
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}
