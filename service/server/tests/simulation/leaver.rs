//! Clients that hang up for good, at any moment of an acquire. The leases that they ask for are much longer than a run, so a
//! lease that such a client leaves behind is still there at the end.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{LeaseId, Outcome};
use latchgate_node::locks::{Acquired, LockRequest};
use tokio::time::{Instant, sleep, timeout};

use crate::random::Random;
use crate::world::World;

const KEYS: usize = 3;
const TTL_MS: u64 = 600_000;

pub struct Leaver {
    world: Arc<World>,
    number: usize,
    random: Random,
}

impl Leaver {
    pub fn new(world: &Arc<World>, number: usize) -> Self {
        Self { world: Arc::clone(world), number, random: world.random.stream() }
    }

    pub async fn run(self, end: Instant) {
        let mut requests = 0;
        while Instant::now() < end {
            sleep(Duration::from_millis(self.random.between(0..=300))).await;
            requests += 1;
            self.acquire_and_leave(LeaseId::parse(&format!("leaver{}-{requests}", self.number)).unwrap()).await;
        }
    }

    async fn acquire_and_leave(&self, lease_id: LeaseId) {
        let key = key(self.random.below(KEYS));
        let address = World::address(&key);
        let node = self.world.node(self.random.below(self.world.plan.nodes));
        let wait = Duration::from_millis(*self.random.one_of(&[0, 200, 2_000]));
        let request = LockRequest { wait, ..LockRequest::new(lease_id.clone(), TTL_MS) };
        let patience = Duration::from_millis(*self.random.one_of(&[0, 1, 3, 20, 200, 1_500]));
        match timeout(patience, node.locks.acquire(&address, request)).await {
            Err(_) if self.random.percent(40) => self.come_back(&key, lease_id).await,
            Err(_) => {
                self.world.log.saw("client gone for good");
                self.world.log.line(|| format!("{}: {} leaves {key} for good", node.name, lease_id.as_str()));
                self.world.checker.facts().left.insert(lease_id);
            }
            // This client has its answer, so it releases its lease.
            Ok(Ok(Acquired::Outcome(Outcome::Granted(_), _))) => {
                let give_up = Instant::now() + Duration::from_secs(60);
                while node.locks.release(&address, lease_id.clone()).await.is_err() && Instant::now() < give_up {
                    sleep(Duration::from_millis(100)).await;
                }
            }
            Ok(_) => {}
        }
    }
}

impl Leaver {
    /// The client has gone and comes back for the same lease, perhaps when its grant has been given back. What is given back again then is
    /// not the grant that the client has received.
    async fn come_back(&self, key: &str, lease_id: LeaseId) {
        let (world, address) = (&self.world, World::address(key));
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            sleep(Duration::from_millis(self.random.between(0..=150))).await;
            let node = world.node(self.random.below(world.plan.nodes));
            let wait = Duration::from_secs(2);
            let request = LockRequest { wait, ..LockRequest::new(lease_id.clone(), TTL_MS) };
            match node.locks.acquire(&address, request).await {
                Ok(Acquired::Outcome(Outcome::Granted(granted), _)) => {
                    world.log.saw("came back");
                    world.checker.holds(key, world.claim(&node, key, &granted.lease), world.now().await);
                    sleep(Duration::from_millis(self.random.between(100..=600))).await;
                    world.checker.ends(key, &lease_id);
                    while node.locks.release(&address, lease_id.clone()).await.is_err() && Instant::now() < end {
                        sleep(Duration::from_millis(100)).await;
                    }
                    return;
                }
                Ok(Acquired::Refused(_)) => {
                    world.checker.facts().left.insert(lease_id);
                    return;
                }
                _ => {}
            }
        }
    }
}

fn key(index: usize) -> String {
    format!("left-{index}")
}

/// In calm, no lease is left that a client asked for that has hung up.
pub async fn nothing_is_left(world: &Arc<World>) {
    // A node that has died gives no lease back.
    if world.plan.deaths {
        return;
    }
    for index in 0..KEYS {
        let state = world.databases[0].state(&World::address(&key(index)));
        for lease in state.holders() {
            if world.checker.facts().left.contains(&lease.lease_id) {
                world.checker.broken(format!("{} is held for a client that is gone: {lease:?}", key(index)));
            }
        }
    }
}
