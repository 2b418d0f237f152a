//! Calls that go on when their caller no longer waits for them.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;

const CALLS_MAX: usize = 1_000;

/// The calls that go on in the background. Each of them has a receiver. The value is whether one was given up: a grant may stay.
#[derive(Clone, Debug)]
pub(crate) struct Background(Arc<watch::Sender<bool>>);

impl Background {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        runtime: &Handle,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let running = self.0.subscribe();
        runtime.spawn(async move {
            let _running = running;
            call.await
        })
    }

    /// Leaves the call out if a thousand go on, so that a long outage does not fill the memory. `then` says what that may mean. Returns whether
    /// the call is made.
    pub(crate) fn spawn_if_few(
        &self,
        runtime: &Handle,
        call: impl Future<Output = ()> + Send + 'static,
        then: &str,
    ) -> bool {
        let are_few = self.0.receiver_count() < CALLS_MAX;
        if are_few {
            self.spawn(runtime, call);
        } else {
            self.give_up();
            tracing::error!("too many calls go on in the background: {then}");
        }
        are_few
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
        self.0.send_replace(true);
    }

    /// Whether none was given up.
    pub(crate) async fn ended(&self) -> bool {
        self.0.closed().await;
        !*self.0.borrow()
    }
}
