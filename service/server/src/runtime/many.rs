//! Multilocks: many keys in one commit, all or none.
//!
//! While it waits a multilock holds nothing. It stands in the queue of the first key that refuses it, as a scout with its
//! first arrival; when its turn comes there, it tries all keys again, and moves on to the next that refuses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_core::lock::{
    Acquire, Command, GiveBack, Lease, LeaseId, LockState, Lost, Metadata, Mode, NodeId, Outcome, Owner, Place,
    Refusal, Release, Renew, step,
};
use latchgate_core::{Address, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Locks;
use super::answers::{acquired, run_out};
use super::call::{Acquired, Answer, Ask, Call, Delivery, Failure, Refused, RefusedBecause, WaiterId};
use super::node::Node;
use super::together::Decision;

/// Keys that one multilock has at most.
pub const MANY_MAX: usize = 64;

/// Before the next try, when something is in the way that passes.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often a give-back is tried.
const GIVE_BACK_TRIES: u32 = 5;

/// One key of a multilock.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub address: Address,
    pub mode: Mode,
    /// Of the permits; `None`: whatever the key's limit is.
    pub limit: Option<u32>,
}

/// An acquire of many keys, as a caller puts it.
#[derive(Clone, Debug)]
pub struct ManyAsk {
    /// At most [`MANY_MAX`], none twice.
    pub locks: Vec<Wanted>,
    pub lease_id: LeaseId,
    pub owner: Option<Owner>,
    pub ttl_ms: u64,
    pub reentrant: bool,
    pub delay_ms: u64,
    pub max_hold_ms: Option<u64>,
    pub priority: u8,
    pub metadata: Option<Metadata>,
    pub wait: Duration,
    /// The place of an earlier wait, to go on from.
    pub place: Option<Place>,
}

/// What came of it. The index is that of the key in the order asked.
#[derive(Clone, Debug)]
pub enum AcquiredMany {
    /// One lease for each key, with the limit of its permits.
    Granted {
        leases: Vec<(Lease, Option<u32>)>,
        waited: Duration,
        now: Timestamp,
    },
    Refused {
        index: usize,
        refused: Refused,
    },
    /// Refused for good: a lease id that is in use, a limit, a lease that is lost.
    Ended {
        index: usize,
        acquired: Acquired,
    },
}

/// What came of a renewal of many keys.
#[derive(Clone, Debug)]
pub enum RenewedMany {
    Renewed {
        leases: Vec<Lease>,
        now: Timestamp,
    },
    /// Nothing was renewed: these keys' leases are lost.
    Lost(Vec<(usize, Lost)>),
}

/// What came of a release of many keys: nothing is held any more.
#[derive(Clone, Debug)]
pub enum ReleasedMany {
    Released {
        /// Leases that the owner still has, key by key.
        still_held: Vec<u32>,
        /// All had been released before.
        already: bool,
    },
    /// These keys' leases had been lost before; the others are released.
    Lost(Vec<(usize, Lost)>),
}

enum Attempt {
    Granted { leases: Vec<(Lease, Option<u32>)>, is_new: bool },
    Refused { index: usize, refusal: Refusal, state: Box<LockState>, now: Timestamp },
    Ended { index: usize, outcome: Outcome },
}

impl Locks {
    /// # Errors
    /// When there is no answer; then see [`Failure`] for whether something was done.
    pub async fn acquire_many(&self, ask: ManyAsk) -> Answer<AcquiredMany> {
        let lease_id = ask.lease_id.clone();
        let (reply, answer) = oneshot::channel();
        // In a task of its own: whatever it is at when the client goes away, it is brought to an end.
        tokio::spawn(seek(self.clone(), ask, reply));
        let Ok((answer, heard)) = answer.await else { return Err(super::unanswered(&lease_id)) };
        let _ = heard.send(());
        answer
    }

    /// # Errors
    /// See [`Locks::acquire_many`].
    pub async fn renew_many(
        &self,
        addresses: Vec<Address>,
        lease_id: LeaseId,
        ttl_ms: Option<u64>,
    ) -> Answer<RenewedMany> {
        let decide = move |states: Vec<LockState>, now: Timestamp, _: Option<Timestamp>| {
            let (mut leases, mut lost) = (Vec::new(), Vec::new());
            let (mut renewals, mut ends) = (Vec::new(), Vec::new());
            for (index, mut state) in states.into_iter().enumerate() {
                let done = step(&mut state, &Command::Renew(Renew { lease_id: lease_id.clone(), ttl_ms }), now);
                let write = (index, state, done.events);
                match done.outcome {
                    Outcome::Renewed(lease) => {
                        leases.push(lease);
                        if done.changed {
                            renewals.push(write);
                        }
                    }
                    Outcome::LeaseLost(why) => {
                        lost.push((index, why));
                        if done.changed {
                            ends.push(write);
                        }
                    }
                    _ => {}
                }
            }
            if lost.is_empty() {
                Decision { result: RenewedMany::Renewed { leases, now }, writes: renewals }
            } else {
                // What time has ended is written before anybody is told of it.
                Decision { result: RenewedMany::Lost(lost), writes: ends }
            }
        };
        let renewed = self.together(addresses, decide).await?;
        let now = self.node.clock.latest().unwrap_or_default();
        Ok(match renewed {
            RenewedMany::Renewed { leases, .. } => {
                // As with one key: whoever is told of it too late must not go on.
                let has_run_out =
                    |(index, lease): (usize, &Lease)| (lease.expires_at <= now).then(|| (index, run_out(lease)));
                let lost: Vec<(usize, Lost)> = leases.iter().enumerate().filter_map(has_run_out).collect();
                if lost.is_empty() { RenewedMany::Renewed { leases, now } } else { RenewedMany::Lost(lost) }
            }
            lost @ RenewedMany::Lost(_) => lost,
        })
    }

    /// # Errors
    /// See [`Locks::acquire_many`].
    pub async fn release_many(&self, addresses: Vec<Address>, lease_id: LeaseId) -> Answer<ReleasedMany> {
        let decide = move |states: Vec<LockState>, now: Timestamp, _: Option<Timestamp>| {
            let (mut held, mut lost, mut writes) = (Vec::new(), Vec::new(), Vec::new());
            let mut all_already = true;
            for (index, mut state) in states.into_iter().enumerate() {
                let done = step(&mut state, &Command::Release(Release { lease_id: lease_id.clone() }), now);
                match done.outcome {
                    Outcome::Released { still_held, already } => {
                        held.push(still_held);
                        all_already &= already;
                    }
                    Outcome::LeaseLost(why) => lost.push((index, why)),
                    _ => {}
                }
                if done.changed {
                    writes.push((index, state, done.events));
                }
            }
            let result = if lost.is_empty() {
                ReleasedMany::Released { still_held: held, already: all_already }
            } else {
                ReleasedMany::Lost(lost)
            };
            Decision { result, writes }
        };
        self.together(addresses, decide).await
    }
}

/// An answer on its way to its handler, who confirms it: one that never gets there, because the client has gone, is
/// dropped with its confirmation.
type Reply = oneshot::Sender<(Answer<AcquiredMany>, oneshot::Sender<()>)>;

fn tell(reply: Reply, answer: Answer<AcquiredMany>) -> oneshot::Receiver<()> {
    let (heard, confirmation) = oneshot::channel();
    let _ = reply.send((answer, heard));
    confirmation
}

/// Tries, waits for its turn, and tries again, until there is an answer.
async fn seek(locks: Locks, ask: ManyAsk, mut reply: Reply) {
    let asked = Instant::now();
    let ask = Arc::new(ask);
    let arrival = locks.node.clock.arrival(asked).unwrap_or_default();
    let place = ask.place.unwrap_or(Place { priority: ask.priority, arrival, serial: locks.next_waiter() });
    let deadline = asked + ask.wait;
    // Where it stands; leaving when dropped.
    let mut standing: Option<Standing> = None;
    loop {
        let (index, refused) = match attempt(&locks, &ask, place).await {
            // Who waits goes on waiting, as with one key: its lease id makes another try safe.
            Err(failure) if standing.is_some() && asked.elapsed() + RETRY_PAUSE < ask.wait && is_passing(&failure) => {
                tokio::select! {
                    () = reply.closed() => return,
                    () = tokio::time::sleep(RETRY_PAUSE) => continue,
                }
            }
            Err(failure) => return drop(tell(reply, Err(failure))),
            Ok(Attempt::Ended { index, outcome }) => {
                let (acquired, _) = acquired(outcome, asked.elapsed(), arrival);
                return drop(tell(reply, Ok(AcquiredMany::Ended { index, acquired })));
            }
            Ok(Attempt::Granted { leases, is_new }) => {
                return conclude(&locks, &ask, leases, is_new, asked, reply).await;
            }
            Ok(Attempt::Refused { index, refusal, state, now }) => {
                (index, refused(&locks.node, &state, refusal, place, asked, now))
            }
        };
        let now = Instant::now();
        if ask.wait.is_zero() {
            return drop(tell(reply, Ok(AcquiredMany::Refused { index, refused })));
        }
        if now >= deadline || locks.node.closing.is_cancelled() {
            let refused = Refused { why: RefusedBecause::WaitTimeout, ..refused };
            return drop(tell(reply, Ok(AcquiredMany::Refused { index, refused })));
        }
        let next = match Standing::at(&locks, &ask, index, place, deadline - now) {
            Ok(next) => next,
            Err(failure) => return drop(tell(reply, Err(failure))),
        };
        // Only now does it leave the queue in which it stood.
        let next = standing.insert(next);
        let delivery = tokio::select! {
            () = reply.closed() => return,
            delivery = &mut next.call => delivery,
        };
        match delivery.map_err(|_| Failure::ShuttingDown).and_then(Delivery::accept) {
            Ok(Acquired::Refused(mut refused)) => {
                refused.waited = asked.elapsed();
                return drop(tell(reply, Ok(AcquiredMany::Refused { index, refused })));
            }
            // Its turn; or something that only a try of all keys tells.
            Ok(_) => {}
            Err(failure) => return drop(tell(reply, Err(failure))),
        }
    }
}

/// Whether the next try may fare better.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure, Failure::Overloaded(_) | Failure::StoreUnavailable(_) | Failure::OutcomeUnknown(_))
}

async fn attempt(locks: &Locks, ask: &Arc<ManyAsk>, place: Place) -> Answer<Attempt> {
    let addresses = ask.locks.iter().map(|wanted| wanted.address.clone()).collect();
    // Not this node's name: its own waiters' turn counts like any other. That of the scout has the same place.
    let node = NodeId::new(&format!("{}+", locks.node.id.as_str()));
    let ask = Arc::clone(ask);
    let decide = move |states: Vec<LockState>, now: Timestamp, hold_off: Option<Timestamp>| {
        let (mut leases, mut writes, mut is_new) = (Vec::new(), Vec::new(), false);
        for (index, (wanted, mut state)) in ask.locks.iter().zip(states).enumerate() {
            let done =
                step(&mut state, &Command::Acquire(Acquire { hold_off, ..acquire(&ask, wanted, &node, place) }), now);
            let result = match done.outcome {
                Outcome::Granted(grant) => {
                    is_new |= !grant.repeated;
                    leases.push((grant.lease, grant.limit));
                    if done.changed {
                        writes.push((index, state, done.events));
                    }
                    continue;
                }
                Outcome::Refused(refusal) => Attempt::Refused { index, refusal, state: Box::new(state.clone()), now },
                outcome => Attempt::Ended { index, outcome },
            };
            // Nothing is granted; but a lease that is told lost because its time is over is written so.
            let ends = matches!(&result, Attempt::Ended { outcome: Outcome::LeaseLost(_), .. }) && done.changed;
            let writes = if ends { vec![(index, state, done.events)] } else { Vec::new() };
            return Decision { result, writes };
        }
        Decision { result: Attempt::Granted { leases, is_new }, writes }
    };
    let places = Arc::clone(&locks.acquire_many);
    let Ok(Ok(_place)) = timeout(locks.node.limits.store_timeout, places.acquire_owned()).await else {
        return Err(Failure::Overloaded("too many multilocks at once"));
    };
    locks.together(addresses, decide).await
}

fn acquire(ask: &ManyAsk, wanted: &Wanted, node: &NodeId, place: Place) -> Acquire {
    Acquire {
        lease_id: ask.lease_id.clone(),
        owner: ask.owner.clone(),
        mode: wanted.mode,
        limit: wanted.limit,
        ttl_ms: ask.ttl_ms,
        reentrant: ask.reentrant,
        barge: false,
        delay_ms: ask.delay_ms,
        max_hold_ms: ask.max_hold_ms,
        node: node.clone(),
        place,
        behind: false,
        hold_off: None,
        metadata: ask.metadata.clone(),
    }
}

/// Answers with the leases; gives them back if the client has gone.
async fn conclude(
    locks: &Locks,
    ask: &ManyAsk,
    leases: Vec<(Lease, Option<u32>)>,
    is_new: bool,
    asked: Instant,
    reply: Reply,
) {
    let now = locks.node.clock.latest().unwrap_or_default();
    let tokens: Vec<u64> = leases.iter().map(|(lease, _)| lease.token).collect();
    if let Some(index) = leases.iter().position(|(lease, _)| lease.expires_at <= now) {
        // One of them has run out meanwhile: all or none.
        let acquired = Acquired::LeaseLost(run_out(&leases[index].0));
        drop(tell(reply, Ok(AcquiredMany::Ended { index, acquired })));
    } else {
        let told = tell(reply, Ok(AcquiredMany::Granted { leases, waited: asked.elapsed(), now }));
        if !is_new || told.await.is_ok() {
            return;
        }
    }
    let addresses: Vec<Address> = ask.locks.iter().map(|wanted| wanted.address.clone()).collect();
    let lease_id = ask.lease_id.clone();
    let decide = move |states: Vec<LockState>, now: Timestamp, _: Option<Timestamp>| {
        let mut writes = Vec::new();
        for (index, (mut state, token)) in states.into_iter().zip(&tokens).enumerate() {
            let give_back = Command::GiveBack(GiveBack { lease_id: lease_id.clone(), token: *token });
            let done = step(&mut state, &give_back, now);
            if done.changed {
                writes.push((index, state, done.events));
            }
        }
        Decision { result: (), writes }
    };
    // If it goes on failing, the leases end by their expiry.
    for _ in 0..GIVE_BACK_TRIES {
        if locks.together(addresses.clone(), decide.clone()).await.is_ok() {
            return;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn refused(node: &Node, state: &LockState, refusal: Refusal, place: Place, asked: Instant, now: Timestamp) -> Refused {
    Refused {
        why: refusal.into(),
        holders: state.holders().to_vec(),
        waiters: state.turns().iter().map(|turn| u64::from(turn.waiting)).sum(),
        position: state.waiting_before(&node.id, place) + 1,
        waited: asked.elapsed(),
        place,
        now,
    }
}

/// A scout in the queue of one key. It leaves when dropped.
struct Standing {
    locks: Locks,
    address: Address,
    id: WaiterId,
    call: oneshot::Receiver<Delivery>,
}

impl Standing {
    fn at(locks: &Locks, ask: &ManyAsk, index: usize, place: Place, wait: Duration) -> Answer<Self> {
        let wanted = &ask.locks[index];
        let id = locks.next_waiter();
        let (reply, call) = oneshot::channel();
        let scout = Ask {
            lease_id: ask.lease_id.clone(),
            owner: ask.owner.clone(),
            mode: wanted.mode,
            limit: wanted.limit,
            ttl_ms: ask.ttl_ms,
            reentrant: ask.reentrant,
            barge: false,
            delay_ms: ask.delay_ms,
            max_hold_ms: ask.max_hold_ms,
            priority: ask.priority,
            metadata: None,
            wait,
            place: Some(place),
        };
        let call_acquire = Call::Acquire { id, ask: scout, asked: Instant::now(), is_scout: true, reply };
        locks.send(&wanted.address, call_acquire)?;
        Ok(Self { locks: locks.clone(), address: wanted.address.clone(), id, call })
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // Should the shard be full, the place lapses.
        let _ = self.locks.send(&self.address, Call::Leave(self.id));
    }
}
