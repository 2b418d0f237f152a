//! The open connections of a node: as many as are allowed. When all are taken, one without a request that could be answered makes room
//! for a client that connects. One that is idle for too long is closed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::client::{Client, Idle, Idleness};

/// While no connection is idle: pause before the next look.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often to look for connections that are idle for too long: so many times within the time that is allowed, and so often at most
/// and at least.
const IDLE_LOOKS: u32 = 8;
const IDLE_LOOK_MIN: Duration = Duration::from_millis(10);
const IDLE_LOOK_MAX: Duration = Duration::from_secs(1);

pub struct Connections {
    permits: Arc<Semaphore>,
    open: Mutex<Open>,
    /// TLS handshakes under way.
    handshakes: AtomicUsize,
}

#[derive(Default)]
struct Open {
    clients: HashMap<u64, (IpAddr, Arc<Client>)>,
    next: u64,
}

/// One of the open connections, until it is dropped.
pub struct Connection {
    pub client: Arc<Client>,
    number: u64,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

/// A TLS handshake, until it is dropped.
pub struct Handshake(Arc<Connections>);

impl Connections {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(max)),
            open: Mutex::default(),
            handshakes: AtomicUsize::new(0),
        })
    }

    /// Returns when there is room for another connection.
    pub async fn room(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return permit;
            }
            self.make_room();
            if let Ok(Ok(permit)) = timeout(LOOK_EVERY, Arc::clone(&self.permits).acquire_owned()).await {
                return permit;
            }
        }
    }

    /// Another handshake begins. If too many are under way, the one that has lasted longest ends.
    pub fn begin_handshake(self: &Arc<Self>, handshakes_max: usize) -> Handshake {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) >= handshakes_max {
            let open = self.open.lock();
            let in_handshake = open.clients.values().filter(|(_, client)| client.is_in_handshake());
            let since = in_handshake.filter_map(|(_, client)| Some((client.idle()?.since, client)));
            if let Some((_, client)) = since.min_by_key(|(since, _)| *since) {
                client.close_if_idle();
            }
        }
        Handshake(Arc::clone(self))
    }

    /// `address` is the peer's.
    pub fn add(self: &Arc<Self>, permit: OwnedSemaphorePermit, address: IpAddr) -> Connection {
        let client = Client::new();
        let mut open = self.open.lock();
        let number = open.next;
        open.next += 1;
        open.clients.insert(number, (address, Arc::clone(&client)));
        drop(open);
        Connection { client, number, connections: Arc::clone(self), _permit: permit }
    }

    /// Closes connections that have been idle for `time_max`. One look at all of them costs less than a timer for each request.
    pub async fn close_idle(self: Arc<Self>, time_max: Duration) {
        let mut looks = interval((time_max / IDLE_LOOKS).clamp(IDLE_LOOK_MIN, IDLE_LOOK_MAX));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            for (_, client) in self.open.lock().clients.values() {
                // A request that has only begun has a time limit of its own.
                let is_over = |idle: Idle| idle.what != Idleness::HasBegun && idle.since.elapsed() >= time_max;
                if client.idle().is_some_and(is_over) {
                    client.close_if_idle();
                }
            }
        }
    }

    /// Closes a connection without a request that could be answered: before all others one whose client does not read its answer, then one
    /// whose client has sent only a part of its request, then one of the address that has most connections, then the one that has been idle longest. So a client that opens many
    /// connections closes its own.
    fn make_room(&self) {
        let open = self.open.lock();
        let mut of_address = HashMap::<IpAddr, usize>::new();
        open.clients.values().for_each(|(address, _)| *of_address.entry(*address).or_default() += 1);
        let idle = open.clients.values().filter_map(|(address, client)| Some((client.idle()?, address, client)));
        let order = |(idle, address, _): &(Idle, &IpAddr, _)| {
            (Reverse(idle.what), Reverse(of_address.get(*address).copied()), idle.since)
        };
        if let Some((_, _, client)) = idle.min_by_key(order) {
            client.close_if_idle();
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.open.lock().clients.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn handshakes_that_begin_at_once_end_as_many_of_the_others() {
        let connections = Connections::new(10);
        let mut begun = Vec::new();
        for _ in 0..10 {
            let connection = connections.add(connections.room().await, IpAddr::from([127, 0, 0, 1]));
            begun.push((connections.begin_handshake(3), connection));
        }
        // Their tasks have not run yet.
        assert_eq!(begun.iter().filter(|(_, connection)| connection.client.is_in_handshake()).count(), 3);
    }
}
