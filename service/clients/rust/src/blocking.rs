//! The client for programs without tokio. A thread of its own renews leases and sends heartbeats.
//!
//! ```no_run
//! use std::time::Duration;
//! use latchgate_client::blocking::Client;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(["http://127.0.0.1:7070"])?;
//! let lease = client.acquire(|client| client.lock("orders/42").wait(Duration::from_secs(60)))?;
//! // … check `lease.remaining()` before each step …
//! lease.release()?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, mpsc};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::attempt::Failed;
use crate::error::{Error, Loss};
use crate::lease::RELEASE_MAX;
use crate::operation::{Begun, Done, OnceError, Operation};
use crate::{Lease as AsyncLease, LockRequest, Method, Revoke, Revoking};

/// As [`crate::Client`]. It must not be used inside of tokio.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Background>,
}

/// The runtime. When its last owner is dropped, calls that go on in it have some time to end.
#[derive(Debug)]
struct Background {
    client: crate::Client,
    runtime: Runtime,
}

impl Background {
    fn block_on<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(call)
    }

    /// Waits for a call for a while. It may be called inside of tokio, because values may be dropped there.
    fn finish(&self, call: impl Future + Send + 'static) {
        let (ended, end) = mpsc::channel::<()>();
        self.runtime.spawn(async move {
            let _ended = ended;
            call.await;
        });
        let _ = end.recv_timeout(RELEASE_MAX);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let client = self.client.clone();
        self.finish(async move {
            client.settled().await;
        });
    }
}

impl Client {
    /// # Errors
    /// As [`crate::Client::new`].
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::of(crate::Client::new(urls)?)
    }

    /// The blocking twin of a client that was configured before.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn of(client: crate::Client) -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("latchgate").enable_all().build();
        let runtime = runtime.map_err(|error| Error::Invalid(format!("no thread can be started: {error}")))?;
        let runtime = Arc::new(Background { client: client.clone(), runtime });
        Ok(Self { client, runtime })
    }

    /// Acquires what `request` asks for.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn acquire(&self, request: impl FnOnce(&crate::Client) -> LockRequest) -> Result<Lease, Error> {
        let lease = self.runtime.block_on(request(&self.client).acquire())?;
        Ok(Lease { lease: Some(lease), runtime: self.runtime.clone() })
    }

    /// Operations of this name, for [`once`](Self::once).
    #[must_use]
    pub fn operation(&self, name: &str) -> Operation {
        self.client.operation(name)
    }

    /// As [`Operation::once`]; but work that is running is not stopped when another attempt may take over. The error says so then.
    ///
    /// # Errors
    /// As [`Operation::once`].
    pub fn once<T, E>(
        &self,
        operation: &Operation,
        contents: &(impl Serialize + ?Sized),
        work: impl FnOnce() -> Result<T, Failed<E>>,
    ) -> Result<Done<T>, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
    {
        let attempt = match self.runtime.block_on(operation.begin(contents)).map_err(OnceError::Gate)? {
            Begun::Go(attempt) => attempt,
            Begun::Duplicate(duplicate) => return duplicate.into_done().map_err(OnceError::Gate),
        };
        match work() {
            Ok(result) => {
                self.runtime.block_on(attempt.succeed_with(&result)).map_err(OnceError::Gate)?;
                Ok(Done::Now(result))
            }
            Err(failed) => {
                // The error of the work says more than that of a report.
                let _ = self.runtime.block_on(attempt.end(&failed));
                Err(OnceError::Work(failed.error))
            }
        }
    }

    /// As [`crate::Client::fence`].
    ///
    /// # Errors
    /// As there.
    pub fn fence(&self, key: &str, token: u64) -> Result<(), Error> {
        self.runtime.block_on(self.client.fence(key, token))
    }

    /// As [`crate::Client::revoke`].
    ///
    /// # Errors
    /// As there.
    pub fn revoke(&self, key: &str, revoke: &Revoke) -> Result<Revoking, Error> {
        self.runtime.block_on(self.client.revoke(key, revoke))
    }

    /// As [`crate::Client::call`].
    ///
    /// # Errors
    /// Each answer but 2xx is an error.
    pub fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        self.runtime.block_on(self.client.call(method, path, body))
    }
}

/// As [`crate::Lease`], with its methods that return at once. To drop it waits for the release, for 10 s at most.
#[derive(Debug)]
#[must_use = "the lock is released when the lease is dropped"]
pub struct Lease {
    /// Until it is released.
    lease: Option<AsyncLease>,
    runtime: Arc<Background>,
}

impl Lease {
    /// Returns when the lease is lost.
    pub fn wait_for_loss(&self) -> Loss {
        self.runtime.block_on(self.lost())
    }

    /// # Errors
    /// As [`crate::Lease::release`].
    pub fn release(mut self) -> Result<(), Error> {
        self.lease.take().map_or(Ok(()), |lease| self.runtime.block_on(lease.release()))
    }
}

impl Deref for Lease {
    type Target = AsyncLease;

    fn deref(&self) -> &AsyncLease {
        self.lease.as_ref().expect("it is there until it is released")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take().filter(|lease| lease.check().is_ok()) {
            self.runtime.finish(lease.release());
        }
    }
}
