//! A small stack of idle connections.
//!
//! sqlx's pool pings the server whenever a connection is returned, which doubles the round trips of a commit. And a future
//! that is dropped half-way returns its connection to that pool with the work still under way. Here a connection is returned
//! only when its user says that it is done; otherwise it is closed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A connection that can be opened.
pub(super) trait Open: Sized {
    /// Where to, and how.
    type Target;

    fn open(target: &Self::Target) -> impl Future<Output = Result<Self, sqlx::Error>> + Send;
}

/// How a pool of connections is used at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub name: &'static str,
    pub used: usize,
    pub idle: usize,
    pub max: usize,
}

pub(super) struct Connections<C: Open> {
    target: C::Target,
    idle: Idle<C>,
    permits: Arc<Semaphore>,
    max: usize,
}

type Idle<C> = Arc<Mutex<Vec<C>>>;

impl<C: Open> Connections<C> {
    pub(super) fn new(target: C::Target, max: usize) -> Self {
        let idle = Arc::new(Mutex::new(Vec::with_capacity(max)));
        Self { target, idle, permits: Arc::new(Semaphore::new(max)), max }
    }

    /// Checks out an idle connection, or opens one; waits while all are checked out.
    ///
    /// # Errors
    /// When a connection cannot be opened.
    pub(super) async fn check_out(&self) -> Result<PooledConnection<C>, sqlx::Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = stack(&self.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => C::open(&self.target).await?,
        };
        Ok(PooledConnection { connection: Some(connection), home: Arc::clone(&self.idle), _permit: permit })
    }

    /// Its use, under a name.
    pub(super) fn usage(&self, name: &'static str) -> PoolUse {
        let used = self.max.saturating_sub(self.permits.available_permits());
        PoolUse { name, used, idle: stack(&self.idle).len(), max: self.max }
    }

    /// Closes the idle connections, because if one of them is dead, all may be.
    pub(super) fn forget_idle(&self) {
        stack(&self.idle).clear();
    }
}

fn stack<C>(idle: &Idle<C>) -> MutexGuard<'_, Vec<C>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection for one use. If it is dropped without [`PooledConnection::put_back`], it is closed; the idle ones stay, because the
/// user may only have run out of time.
pub(super) struct PooledConnection<C> {
    connection: Option<C>,
    home: Idle<C>,
    _permit: OwnedSemaphorePermit,
}

impl<C> PooledConnection<C> {
    /// Returns the connection. No work may be under way on it.
    pub(super) fn put_back(mut self) {
        if let Some(connection) = self.connection.take() {
            stack(&self.home).push(connection);
        }
    }
}

impl<C> Deref for PooledConnection<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a pooled connection is there until it is returned")
    }
}

impl<C> DerefMut for PooledConnection<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a pooled connection is there until it is returned")
    }
}
