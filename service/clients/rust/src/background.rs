//! Calls that go on when their caller no longer waits for them.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::error::Error;

const CALLS_MAX: usize = 1_000;

/// The calls that go on in the background.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    /// Each call has a receiver. The value is whether one was given up: a grant may stay.
    running: Arc<watch::Sender<bool>>,
    /// Of calls that may go on for as long as an outage, so that a long one does not fill the memory.
    places: Arc<Semaphore>,
}

/// Of a call that may go on for as long as an outage.
pub(crate) type Place = OwnedSemaphorePermit;

impl Background {
    pub(crate) fn new() -> Self {
        Self { running: Arc::new(watch::Sender::new(false)), places: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    /// A place for a call that may go on for as long as an outage; none if a thousand do.
    pub(crate) fn place(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok()
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        runtime: &Handle,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let running = self.running.subscribe();
        runtime.spawn(async move {
            let _running = running;
            call.await
        })
    }

    pub(crate) fn spawn_in(&self, place: Place, runtime: &Handle, call: impl Future<Output = ()> + Send + 'static) {
        self.spawn(runtime, async move {
            let _place = place;
            call.await;
        });
    }

    /// Waits for a call that goes on if the caller stops waiting.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        runtime: &Handle,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let ended = self.spawn(runtime, call).await;
        ended.unwrap_or_else(|_| Err(Error::Unreachable("the runtime has ended".to_owned())))
    }

    /// No node says whether a grant was given back.
    pub(crate) fn give_up(&self) {
        self.running.send_replace(true);
    }

    /// Whether none was given up.
    pub(crate) async fn ended(&self) -> bool {
        self.running.closed().await;
        !*self.running.borrow()
    }
}
