//! The open connections of a node: as many as are allowed. When all are taken, an idle one makes room for a client that
//! connects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::client::{Client, ClientStream};

/// While no connection is idle: pause before the next look.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub struct Connections {
    permits: Arc<Semaphore>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    clients: HashMap<u64, Arc<Client>>,
    next: u64,
}

/// One of the open connections, until it is dropped.
pub struct Connection {
    pub client: Arc<Client>,
    number: u64,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { permits: Arc::new(Semaphore::new(max)), open: Mutex::default() })
    }

    /// Returns when there is room for another connection.
    pub async fn room(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return permit;
            }
            self.close_longest_idle();
            if let Ok(Ok(permit)) = timeout(LOOK_EVERY, Arc::clone(&self.permits).acquire_owned()).await {
                return permit;
            }
        }
    }

    pub fn add(self: &Arc<Self>, stream: TcpStream, permit: OwnedSemaphorePermit) -> (Connection, ClientStream) {
        let (client, stream) = Client::new(stream);
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.clients.insert(number, Arc::clone(&client));
        drop(open);
        (Connection { client, number, connections: Arc::clone(self), _permit: permit }, stream)
    }

    fn close_longest_idle(&self) {
        let open = self.open();
        let idle = open.clients.values().filter_map(|client| Some((client.idle_since()?, client)));
        if let Some((_, client)) = idle.min_by_key(|(since, _)| *since) {
            client.close_if_idle();
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.open().clients.remove(&self.number);
    }
}
