//! Who blocks whom, as far as this node knows: it has the waiters of its own queues, and the holders of their keys. It knows how many
//! waiters other nodes have, but not their owners.

use std::collections::HashSet;

use latchgate_core::lock::{Blocked, LockState, Mode, Owner, cycle_of};
use latchgate_core::{Address, App, Key};
use tokio::sync::oneshot;

use super::answering::waiting;
use super::call::{Answer, Call, Envelope, Waiting};
use super::handle::Locks;
use super::shard::Shard;

/// Most keys with waiters that a shard shows.
const KEYS_MAX: usize = 1_000;
/// Most holders of a key that are looked at.
const HOLDERS_MAX: usize = 100;
/// Most pairs of a waiter and a holder that are looked at.
const PAIRS_MAX: usize = 20_000;

/// A key with waiters at this node.
#[derive(Clone, Debug)]
pub struct Queued {
    pub address: Address,
    /// The first of them, in the order of service.
    pub waiting: Vec<Waiting>,
    /// As the node has last seen them.
    holders: Vec<(Owner, Mode)>,
    limit: Option<u32>,
}

/// Keys with waiters at this node.
#[derive(Clone, Debug, Default)]
pub struct Queues(pub Vec<Queued>);

impl Queued {
    fn new(address: &Address, waiting: Vec<Waiting>, state: &LockState) -> Self {
        let holders = state.holders().iter().take(HOLDERS_MAX).map(|lease| (lease.owner.clone(), lease.mode));
        Self { address: address.clone(), waiting, holders: holders.collect(), limit: state.limit_in_force() }
    }

    fn blocked(&self) -> impl Iterator<Item = Blocked> {
        self.waiting.iter().flat_map(move |waiting| {
            let kept_out = move |(_, held): &&(Owner, Mode)| waiting.mode.is_kept_out_by(*held, self.limit);
            let holders = self.holders.iter().filter(kept_out).map(|(holder, _)| holder);
            let of = move |waiter: Owner| {
                holders.clone().map(move |holder| Blocked {
                    waiter: waiter.clone(),
                    key: self.address.key.clone(),
                    holder: holder.clone(),
                })
            };
            waiting.owner.clone().into_iter().flat_map(of)
        })
    }
}

impl Queues {
    /// Each pair of a waiter and a holder that keeps it out, once.
    fn blocked(&self, app: &App) -> Vec<Blocked> {
        let of_app = self.0.iter().filter(|queued| queued.address.app == *app);
        let mut seen = HashSet::new();
        let pairs = of_app.flat_map(Queued::blocked).take(PAIRS_MAX);
        pairs.filter(|one| seen.insert(one.clone())).collect()
    }

    fn apps(&self) -> HashSet<&App> {
        self.0.iter().map(|queued| &queued.address.app).collect()
    }
}

impl Shard {
    pub(super) fn queued(&self, app: Option<&App>) -> Vec<Queued> {
        let of_app = self.queues.iter().filter(|(address, _)| app.is_none_or(|app| address.app == *app));
        let none = LockState::default();
        let queued = of_app.map(|(address, queue)| {
            Queued::new(address, waiting(queue), self.cache.last_known(address).unwrap_or(&none))
        });
        queued.filter(|queued| !queued.waiting.is_empty()).take(KEYS_MAX).collect()
    }
}

impl Locks {
    /// The keys with waiters at this node, of one app or of all. A shard that is too busy to say is left out.
    pub async fn queues(&self, app: Option<&App>) -> Queues {
        let mut queues = Vec::new();
        for shard in self.shards() {
            let (reply, answer) = oneshot::channel();
            let address = Address { app: app.cloned().unwrap_or_default(), key: Key::of_no_lock() };
            let call = Call::Queues { app: app.cloned(), reply };
            if shard.try_send(Envelope::new(address, call)).is_ok() {
                queues.extend(answer.await.unwrap_or_default());
            }
        }
        Queues(queues)
    }

    /// The circle in which an owner waits, with the app of its keys, if these queues have one and it is there still.
    ///
    /// # Errors
    /// When a key of it cannot be read.
    pub async fn cycle_of(&self, owner: &Owner, queues: &Queues) -> Answer<Option<(App, Vec<Blocked>)>> {
        for app in queues.apps() {
            match cycle_of(owner, &queues.blocked(app)) {
                Some(cycle) if self.is_there(app, &cycle).await? => return Ok(Some((app.clone(), cycle))),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether each of these waiters waits still, and each of the holders holds: by states that are read now.
    async fn is_there(&self, app: &App, cycle: &[Blocked]) -> Answer<bool> {
        for one in cycle {
            let address = Address { app: app.clone(), key: one.key.clone() };
            let inspected = self.inspect(&address).await?;
            let queued = Queued::new(&address, inspected.waiting, &inspected.state);
            if !queued.blocked().any(|still| still == *one) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
