//! A shard: one task that serves its keys in batches. Take what has arrived, load what is not known, judge, write all
//! changes in one commit, answer, repeat.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use latchgate_core::lock::{Acquire, Command, Event, LockState, Outcome, Owner, Place, Refusal, Release, Renew};
use latchgate_core::{Address, Timestamp};
use lru::LruCache;
use tokio::sync::{mpsc, oneshot};

use super::answers::{acquired, refused, released, renewed};
use super::batch::{self, Judged, Work};
use super::call::{
    Acquired, Answer, Ask, Call, Delivery, Envelope, Failure, Inspected, RefusedBecause, Released, Renewed, WaiterId,
};
use super::node::Node;
use super::queue::{Rank, WaitQueue, Waiter};
use super::verdict::{REFRESH_BEFORE_MS, stands};
use crate::store::{Stored, TermId};

/// How many calls one batch takes.
const BATCH_MAX: usize = 512;
/// A cached state older than this is loaded again; well below the time for which idle rows are kept.
pub(super) const CACHE_MAX_AGE: Duration = Duration::from_secs(30);
/// A state older than this does not tell whether somebody who comes holds the lock already, at another node.
const JOIN_MAX_AGE: Duration = Duration::from_millis(20);
/// How long a scout's place is kept for it to try its other keys.
const SCOUT_HOLD: Duration = Duration::from_secs(2);
/// How often waiters are looked after while the store is down.
const DOWN_PAUSE: Duration = Duration::from_millis(250);

pub(super) struct Shard {
    node: Arc<Node>,
    calls: mpsc::Receiver<Envelope>,
    /// For leases to find their way back.
    home: mpsc::WeakSender<Envelope>,
    wake_ups: mpsc::Receiver<Option<Address>>,
    rooms: HashMap<Address, Room>,
    schedule: BTreeSet<(Instant, Address)>,
    cache: LruCache<Address, Cached>,
    waiters: usize,
    /// How many of them the node has been told of.
    counted: usize,
}

/// A key that somebody waits for.
#[derive(Default)]
struct Room {
    queue: WaitQueue,
    /// Waiters that a commit of unknown outcome may have granted the lock: they ask again, as their clients would.
    uncertain: Vec<Rank>,
    next_look: Option<Instant>,
}

impl Room {
    fn overdue(&self, taken: Vec<(usize, Rank, Waiter)>) -> impl Iterator<Item = Overdue> {
        let is_uncertain = |rank: &Rank| self.uncertain.contains(rank);
        taken.into_iter().map(move |(before, rank, waiter)| Overdue {
            waiter,
            before,
            is_uncertain: is_uncertain(&rank),
        })
    }
}

struct Cached {
    stored: Stored,
    /// It was loaded or committed in.
    term: TermId,
    at: Instant,
}

/// What one batch brings to one key.
#[derive(Default)]
struct Brought {
    commands: Vec<Command>,
    replies: Vec<Reply>,
    arrived: Vec<Rank>,
    overdue: Vec<Overdue>,
    /// The cached state will not do.
    must_load: bool,
}

/// A waiter whose time is up.
struct Overdue {
    waiter: Waiter,
    /// How many stood before it.
    before: usize,
    /// A commit of unknown outcome may have granted it the lock.
    is_uncertain: bool,
}

/// An acquire on its way into a queue.
struct Asking {
    id: WaiterId,
    ask: Ask,
    asked: Instant,
    is_scout: bool,
    reply: super::call::AcquireReply,
}

enum Reply {
    Renew(oneshot::Sender<Answer<Renewed>>),
    Release(oneshot::Sender<Answer<Released>>),
    Inspect(oneshot::Sender<Answer<Inspected>>),
    Outcome(oneshot::Sender<Answer<(Outcome, Timestamp)>>),
    Nobody,
}

impl Shard {
    pub(super) fn new(
        node: Arc<Node>,
        calls: mpsc::Receiver<Envelope>,
        home: mpsc::WeakSender<Envelope>,
        wake_ups: mpsc::Receiver<Option<Address>>,
    ) -> Self {
        let cached_max = NonZeroUsize::new(node.limits.cached_keys_per_shard).unwrap_or(NonZeroUsize::MIN);
        Self {
            node,
            calls,
            home,
            wake_ups,
            rooms: HashMap::new(),
            schedule: BTreeSet::new(),
            cache: LruCache::new(cached_max),
            waiters: 0,
            counted: 0,
        }
    }

    /// Serves until every handle on the shard is gone.
    pub(super) async fn run(mut self) {
        let mut calls = Vec::with_capacity(BATCH_MAX);
        let closing = self.node.closing.clone();
        let mut closed = false;
        loop {
            let mut brought = HashMap::new();
            let next_look = self.schedule.first().map(|(at, _)| tokio::time::Instant::from_std(*at));
            tokio::select! {
                biased;
                () = closing.cancelled(), if !closed => closed = true,
                Some(wake_up) = self.wake_ups.recv() => self.wake(wake_up, &mut brought),
                count = self.calls.recv_many(&mut calls, BATCH_MAX) => {
                    if count == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep_until(next_look.unwrap_or_else(far)), if next_look.is_some() => {}
            }
            // Handlers that are ready to run have calls to bring: let them, so that one commit serves them all. With
            // nobody else ready this returns at once.
            tokio::task::yield_now().await;
            // Whatever woke it, a batch takes all that is there.
            while calls.len() < BATCH_MAX {
                let Ok(envelope) = self.calls.try_recv() else { break };
                calls.push(envelope);
            }
            while let Ok(wake_up) = self.wake_ups.try_recv() {
                self.wake(wake_up, &mut brought);
            }
            for envelope in calls.drain(..) {
                self.take(envelope, &mut brought);
            }
            if closed {
                self.end_waits(&mut brought);
            }
            self.look_after_due(&mut brought);
            self.serve(brought).await;
            self.count_waiters();
        }
    }

    fn count_waiters(&mut self) {
        if self.waiters > self.counted {
            self.node.waiters.fetch_add((self.waiters - self.counted) as u64, Ordering::Relaxed);
        } else if self.waiters < self.counted {
            self.node.waiters.fetch_sub((self.counted - self.waiters) as u64, Ordering::Relaxed);
        }
        self.counted = self.waiters;
    }

    fn wake(&mut self, address: Option<Address>, brought: &mut HashMap<Address, Brought>) {
        match address {
            Some(address) if self.rooms.contains_key(&address) => brought.entry(address).or_default().must_load = true,
            Some(_) => {}
            // All are due now, and served as many at a time as a batch takes.
            None => {
                let now = Instant::now();
                for (address, room) in &mut self.rooms {
                    if let Some(at) = room.next_look.replace(now) {
                        self.schedule.remove(&(at, address.clone()));
                    }
                    self.schedule.insert((now, address.clone()));
                }
            }
        }
    }

    fn take(&mut self, Envelope { address, call }: Envelope, brought: &mut HashMap<Address, Brought>) {
        let (command, reply) = match call {
            Call::Acquire { id, ask, asked, is_scout, reply } => {
                if !reply.is_closed() {
                    self.enqueue(address, Asking { id, ask, asked, is_scout, reply }, brought);
                }
                return;
            }
            Call::Leave(id) => {
                self.leave(address, id, brought);
                return;
            }
            Call::Renew { lease_id, ttl_ms, reply } => {
                (Command::Renew(Renew { lease_id, ttl_ms }), Reply::Renew(reply))
            }
            Call::Release { lease_id, reply } => (Command::Release(Release { lease_id }), Reply::Release(reply)),
            Call::Inspect { reply } => (Command::Tick, Reply::Inspect(reply)),
            Call::Command { command, reply } => (command, Reply::Outcome(reply)),
            Call::GiveBack(give_back) => (Command::GiveBack(give_back), Reply::Nobody),
            Call::Look => {
                brought.entry(address.clone()).or_default().must_load = true;
                (Command::Tick, Reply::Nobody)
            }
        };
        let brought = brought.entry(address).or_default();
        brought.must_load |= matches!(reply, Reply::Inspect(_));
        brought.commands.push(command);
        brought.replies.push(reply);
    }

    fn enqueue(&mut self, address: Address, asking: Asking, brought: &mut HashMap<Address, Brought>) {
        let Asking { id, ask, asked, is_scout, reply } = asking;
        let limits = &self.node.limits;
        let in_room = self.rooms.get(&address).map_or(0, |room| room.queue.len());
        let is_waiting = !ask.wait.is_zero();
        if is_waiting && (in_room >= limits.waiters_per_key || self.waiters >= limits.waiters_per_shard) {
            let _ = reply.send(Delivery::new(Err(Failure::Overloaded("too many wait already"))));
            return;
        }
        // Without a clock the load below fails as well, and nobody is served by this arrival.
        let arrival = self.node.clock.arrival(asked).unwrap_or_default();
        let acquire = Acquire {
            lease_id: ask.lease_id,
            owner: ask.owner,
            mode: ask.mode,
            limit: ask.limit,
            ttl_ms: ask.ttl_ms,
            reentrant: ask.reentrant,
            barge: ask.barge,
            delay_ms: ask.delay_ms,
            max_hold_ms: ask.max_hold_ms,
            node: self.node.id.clone(),
            place: ask.place.unwrap_or(Place { priority: ask.priority, arrival, serial: id }),
            behind: false,
            hold_off: None,
            metadata: ask.metadata,
        };
        let deadline = is_waiting.then(|| asked + ask.wait);
        let is_returning = ask.place.is_some();
        let waiter = Waiter { id, ask: acquire, deadline, asked, is_returning, is_scout, reply };
        let rank = self.rooms.entry(address.clone()).or_default().queue.insert(waiter);
        self.waiters += 1;
        brought.entry(address).or_default().arrived.push(rank);
    }

    fn leave(&mut self, address: Address, id: WaiterId, brought: &mut HashMap<Address, Brought>) {
        let Some(room) = self.rooms.get_mut(&address) else { return };
        if let Some(was_waiter) = room.queue.remove_by_id(id) {
            self.waiters -= usize::from(was_waiter);
            brought.entry(address).or_default();
        }
    }

    fn end_waits(&mut self, brought: &mut HashMap<Address, Brought>) {
        for (address, room) in &mut self.rooms {
            let ended = room.queue.take_waiting();
            self.waiters -= ended.len();
            // Whoever comes back goes to another node: no turn of this one is to stand in its way, or in others'.
            let had_kept = room.queue.give_up_all_kept();
            if had_kept || !ended.is_empty() {
                brought.entry(address.clone()).or_default().overdue.extend(room.overdue(ended));
            }
        }
    }

    /// Keys whose time has come: somebody's patience, a lease's expiry, the refresh of a turn.
    fn look_after_due(&mut self, brought: &mut HashMap<Address, Brought>) {
        let now = Instant::now();
        while let Some((at, _)) = self.schedule.first() {
            if *at > now || brought.len() >= BATCH_MAX {
                break;
            }
            let Some((_, address)) = self.schedule.pop_first() else { break };
            let Some(room) = self.rooms.get_mut(&address) else { continue };
            room.next_look = None;
            let brought = brought.entry(address).or_default();
            let overdue = room.queue.take_overdue(now);
            self.waiters -= overdue.len();
            if overdue.is_empty() {
                // All of them are walked past for it: not for each whose patience runs out.
                self.waiters -= room.queue.drop_gone();
            }
            let has_given_up = room.queue.give_up_kept(now);
            // If it was not patience that ran out, it is the store that has news.
            brought.must_load |= overdue.is_empty() && !has_given_up;
            for (_, rank, waiter) in overdue.iter().filter(|(_, _, waiter)| waiter.is_returning) {
                if room.queue.kept_len() < self.node.limits.waiters_per_key {
                    room.queue.keep(*rank, waiter, now + self.node.limits.ticket_hold);
                }
            }
            brought.overdue.extend(room.overdue(overdue));
        }
    }

    /// Judges, commits and answers one batch.
    async fn serve(&mut self, brought: HashMap<Address, Brought>) {
        if brought.is_empty() {
            return;
        }
        let addresses: Vec<Address> = brought.keys().cloned().collect();
        let mut works = Vec::with_capacity(brought.len());
        let mut brought = brought;
        let is_up = self.node.health.is_up();
        let term = self.node.store.term().id;
        for (address, brought) in &mut brought {
            if !is_up {
                let arrived = std::mem::take(&mut brought.arrived);
                let failure = Failure::StoreUnavailable("the store does not answer".to_owned());
                self.cache.pop(address);
                self.answer_failure(address, brought, &batch::Failed { failure, settled: Vec::new(), arrived });
                continue;
            }
            if self.can_just_wait(address, brought, term) {
                continue;
            }
            let base = if brought.must_load { None } else { self.cached(address, term) };
            let uncertain = self.rooms.get(address).map(|room| room.uncertain.clone()).unwrap_or_default();
            works.push(Work {
                address: address.clone(),
                commands: std::mem::take(&mut brought.commands),
                arrived: std::mem::take(&mut brought.arrived),
                uncertain,
                base,
                term,
            });
        }
        if !works.is_empty() {
            let rooms = &self.rooms;
            let nobody = WaitQueue::default();
            let queue_of = |address: &Address| rooms.get(address).map_or(&nobody, |room| &room.queue);
            let judged = batch::run(&self.node, works, queue_of).await;
            for judged in judged {
                if let Some(brought) = brought.get_mut(&judged.address) {
                    self.answer(judged, brought);
                }
            }
        }
        for (address, brought) in brought {
            self.answer_overdue(&address, brought.overdue);
        }
        for address in addresses {
            self.tidy(address);
        }
    }

    /// Whether nothing has to be read or written for this key: everybody who came only joins a queue whose turn is in
    /// the store already, so that they will be served when it comes.
    fn can_just_wait(&mut self, address: &Address, brought: &Brought, term: TermId) -> bool {
        if brought.must_load || !brought.commands.is_empty() {
            return false;
        }
        let (Some(room), Some(cached)) = (self.rooms.get(address), self.cache.peek(address)) else { return false };
        let (Some(best), Some(now)) = (room.queue.best_waiting(|_| false, |_| false), self.node.clock.now()) else {
            return false;
        };
        let place = best.place;
        let state = &cached.stored.state;
        let is_waiting = |rank: &Rank| room.queue.get(*rank).is_none_or(|waiter| waiter.deadline.is_some());
        let is_known = |rank: &Rank| room.queue.get(*rank).is_some_and(|waiter| state.knows(&waiter.ask.lease_id));
        // From an older state nobody is told that it may not have what another node may have granted it since.
        if cached.at.elapsed() > JOIN_MAX_AGE && !brought.arrived.is_empty() {
            return false;
        }
        if cached.term != term {
            return false;
        }
        // Its owner may hold the lock already, it may go ahead of the queue, its limit may be wrong.
        let is_special = |ask: &Acquire| {
            let is_holder = |owner: &Owner| state.holders().iter().any(|lease| lease.owner == *owner);
            let may_hold = ask.reentrant && ask.owner.as_ref().is_some_and(is_holder);
            ask.barge || ask.mode.permits() > 0 || may_hold
        };
        let is_plain = |rank: &Rank| room.queue.get(*rank).is_none_or(|waiter| !is_special(&waiter.ask));
        brought.arrived.iter().all(|rank| is_waiting(rank) && !is_known(rank) && is_plain(rank))
            && state.admissible_turn(now).is_none()
            && state.holders().iter().all(|lease| !lease.has_expired(now))
            && stands(state, &self.node.id, place, now)
    }

    fn cached(&mut self, address: &Address, term: TermId) -> Option<Stored> {
        let cached = self.cache.get(address)?;
        // Where other nodes wait too, they have most likely written since.
        let is_shared = cached.stored.state.turns().iter().any(|turn| turn.node != self.node.id);
        let is_good = cached.at.elapsed() < CACHE_MAX_AGE && !is_shared && cached.term == term;
        is_good.then(|| cached.stored.clone())
    }

    fn answer(&mut self, judged: Judged, brought: &mut Brought) {
        let Judged { address, result } = judged;
        let decided = match result {
            Ok((stored, decided)) => {
                self.cache.put(address.clone(), Cached { stored, term: decided.term, at: Instant::now() });
                decided
            }
            Err(failed) => {
                self.cache.pop(&address);
                return self.answer_failure(&address, brought, &failed);
            }
        };
        let now = self.node.clock.latest().unwrap_or_default();
        let state = self.cache.peek(&address).map(|cached| &cached.stored.state);
        let Some(state) = state else { return };
        let waiting_here = self.rooms.get(&address).map_or(0, |room| room.queue.waiting());
        let waiters = state.waiting_elsewhere(&self.node.id) + waiting_here as u64;
        for (reply, outcome) in brought.replies.drain(..).zip(decided.outcomes) {
            match reply {
                Reply::Renew(reply) => drop(reply.send(renewed(outcome, now))),
                Reply::Release(reply) => drop(reply.send(released(outcome))),
                Reply::Inspect(reply) => {
                    let _ = reply.send(Ok(Inspected { state: state.clone(), waiters, now }));
                }
                Reply::Outcome(reply) => drop(reply.send(Ok((outcome, now)))),
                Reply::Nobody => {}
            }
        }
        let Some(room) = self.rooms.get_mut(&address) else { return };
        room.uncertain.clear();
        // Now, for a state does not remember a lease for long.
        room.queue.give_up_served(state);
        let answered = Instant::now();
        for (rank, outcome) in decided.settled {
            let Some(waiter) = room.queue.remove(rank) else { continue };
            self.waiters -= 1;
            let waited = waiter.waited(answered);
            let delivery = match acquired(outcome, waited, now) {
                (Acquired::Granted(granted), true) => Delivery::of_new_grant(granted, &address, self.home.clone()),
                (acquired, _) => Delivery::new(Ok(acquired)),
            };
            let _ = waiter.reply.send(delivery);
        }
        for rank in decided.called {
            let Some(waiter) = room.queue.remove(rank) else { continue };
            self.waiters -= 1;
            room.queue.keep(rank, &waiter, answered + SCOUT_HOLD);
            let _ = waiter.reply.send(Delivery::new(Ok(Acquired::Called)));
        }
        // Those who only asked are told who is in the way.
        for rank in decided.arrived {
            let only_asked = room.queue.get(rank).is_some_and(|waiter| waiter.deadline.is_none());
            if !only_asked {
                continue;
            }
            let before = room.queue.before(rank);
            let Some(waiter) = room.queue.remove(rank) else { continue };
            self.waiters -= 1;
            let refusal = decided.refusals.get(&rank).copied().unwrap_or(Refusal::Held);
            let refused = refused(state, refusal.into(), &waiter, before, waiters, &self.node.id, now);
            let _ = waiter.reply.send(Delivery::new(Ok(Acquired::Refused(refused))));
        }
    }

    /// Whoever has just come is told; those who wait go on waiting, for the store may come back in their time.
    fn answer_failure(&mut self, address: &Address, brought: &mut Brought, failed: &batch::Failed) {
        for reply in brought.replies.drain(..) {
            let failure = failed.failure.clone();
            match reply {
                Reply::Renew(reply) => drop(reply.send(Err(failure))),
                Reply::Release(reply) => drop(reply.send(Err(failure))),
                Reply::Inspect(reply) => drop(reply.send(Err(failure))),
                Reply::Outcome(reply) => drop(reply.send(Err(failure))),
                Reply::Nobody => {}
            }
        }
        let Some(room) = self.rooms.get_mut(address) else { return };
        for rank in &failed.arrived {
            if let Some(waiter) = room.queue.remove(*rank) {
                self.waiters -= 1;
                let _ = waiter.reply.send(Delivery::new(Err(failed.failure.clone())));
            }
        }
        if matches!(failed.failure, Failure::OutcomeUnknown(_)) {
            room.uncertain.extend(failed.settled.iter().filter(|rank| room.queue.get(**rank).is_some()));
            room.uncertain.sort_unstable();
            room.uncertain.dedup();
        }
    }

    fn answer_overdue(&self, address: &Address, overdue: Vec<Overdue>) {
        if overdue.is_empty() {
            return;
        }
        let now = self.node.clock.latest().unwrap_or_default();
        let nothing_known = LockState::default();
        let state = self.cache.peek(address).map_or(&nothing_known, |cached| &cached.stored.state);
        let waiting_here = self.rooms.get(address).map_or(0, |room| room.queue.waiting());
        let waiters = state.waiting_elsewhere(&self.node.id) + waiting_here as u64;
        for Overdue { waiter, before, is_uncertain } in overdue {
            if is_uncertain {
                let failure = Failure::OutcomeUnknown("the store did not come back in time".to_owned());
                let _ = waiter.reply.send(Delivery::new(Err(failure)));
                continue;
            }
            let Acquire { owner, mode, place, .. } = &waiter.ask;
            let event = Event::waited(owner.clone(), *mode, now.ms_since(place.arrival), now);
            self.node.history.wait_ended(address, event);
            let refused = refused(state, RefusedBecause::WaitTimeout, &waiter, before, waiters, &self.node.id, now);
            let _ = waiter.reply.send(Delivery::new(Ok(Acquired::Refused(refused))));
        }
    }

    /// Drops the room if nobody is in it, else sets when to look again.
    fn tidy(&mut self, address: Address) {
        let Some(room) = self.rooms.get_mut(&address) else { return };
        if let Some(at) = room.next_look.take() {
            self.schedule.remove(&(at, address.clone()));
        }
        if room.queue.is_empty() {
            self.rooms.remove(&address);
            return;
        }
        let now = Instant::now();
        let news = match (self.cache.peek(&address), room.queue.best_waiting(|_| false, |_| false)) {
            (Some(cached), Some(best)) => next_news(&self.node, &cached.stored.state, best.place, now),
            _ => now + DOWN_PAUSE,
        };
        let at = room.queue.next_deadline().map_or(news, |deadline| deadline.min(news));
        if let Some(room) = self.rooms.get_mut(&address) {
            room.next_look = Some(at);
        }
        self.schedule.insert((at, address));
    }
}

/// When the state, or this node's turn in it, next needs a look.
fn next_news(node: &Node, state: &LockState, place: Place, now: Instant) -> Instant {
    let own = state.turns().iter().find(|turn| turn.node == node.id);
    let refresh = own.map(|turn| Timestamp::from_ms(turn.until.as_ms().saturating_sub(REFRESH_BEFORE_MS)));
    let change = state.next_change(&node.id, place, node.clock.now().unwrap_or_default());
    let hold_off = node.clock.now().and_then(|now| node.store.term().hold_off(now));
    let next = refresh.into_iter().chain(change).chain(hold_off).min();
    let wait = next.map_or(DOWN_PAUSE, |next| node.clock.until(next.plus_ms(1), now));
    now + wait.max(Duration::from_millis(1))
}

fn far() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(3_600)
}
