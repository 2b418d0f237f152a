//! The connections of clients. When there is no room for a new one, the oldest on which no call runs makes room: it may be silent, or
//! its client may never send the rest of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{Problem, overloaded};

pub struct Connections {
    room: Arc<Semaphore>,
    /// Those without a call, by when they became so, each with what ends it.
    idle: Mutex<BTreeMap<u64, CancellationToken>>,
    turned_idle: Notify,
}

/// One connection. It takes room until it has ended, and each call that came over it.
pub struct Connection {
    all: Arc<Connections>,
    number: u64,
    end: CancellationToken,
    _room: OwnedSemaphorePermit,
}

/// A call runs: the connection is not ended for another one.
pub struct Busy(Arc<Connection>);

impl Connections {
    pub fn new(max: usize) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { room, idle: Mutex::default(), turned_idle: Notify::new() })
    }

    /// The connection with this number. Waits for room.
    pub async fn open(self: &Arc<Self>, number: u64) -> Arc<Connection> {
        let room = loop {
            if self.room.available_permits() == 0 {
                let oldest = self.idle.lock().pop_first();
                oldest.into_iter().for_each(|(_, end)| end.cancel());
            }
            tokio::select! {
                Ok(room) = Arc::clone(&self.room).acquire_owned() => break room,
                () = self.turned_idle.notified() => {}
            }
        };
        let connection = Connection { all: Arc::clone(self), number, end: CancellationToken::new(), _room: room };
        connection.turn_idle();
        Arc::new(connection)
    }
}

impl Connection {
    pub async fn serve(&self, serving: impl Future) {
        self.end.run_until_cancelled(serving).await;
        self.all.idle.lock().remove(&self.number);
    }

    /// # Errors
    /// `overloaded`: the connection has to end for another one.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Busy, Problem> {
        let was_idle = self.all.idle.lock().remove(&self.number);
        was_idle.map(|_| Busy(Arc::clone(self))).ok_or_else(overloaded)
    }

    fn turn_idle(&self) {
        self.all.idle.lock().insert(self.number, self.end.clone());
        self.all.turned_idle.notify_one();
    }
}

impl Busy {
    /// The call has ended when this answer was sent.
    pub fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| Body::new(body.map_frame(move |frame| (&self, frame).1)))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.turn_idle();
    }
}
