//! A small stack of idle connections.
//!
//! sqlx's pool pings the server each time a connection comes back, which doubles the round trips of a commit, and a
//! future that is dropped half-way returns its connection there with the work still under way. Here a connection goes
//! back only when its user says that it is done; in every other case it is closed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type Options<C> = <C as Connection>::Options;

pub(super) struct Connections<C: Connection> {
    options: Options<C>,
    idle: Idle<C>,
    permits: Arc<Semaphore>,
}

type Idle<C> = Arc<Mutex<Vec<C>>>;

impl<C: Connection> Connections<C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    pub(super) fn new(options: Options<C>, max: usize) -> Self {
        let idle = Arc::new(Mutex::new(Vec::with_capacity(max)));
        Self { options, idle, permits: Arc::new(Semaphore::new(max)) }
    }

    /// Lends an idle connection, or opens one; waits while all are lent.
    ///
    /// # Errors
    /// When a connection cannot be opened.
    pub(super) async fn lend(&self) -> Result<Loan<C>, sqlx::Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = stack(&self.idle).pop();
        let is_new = idle.is_none();
        let connection = match idle {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        Ok(Loan { connection: Some(connection), is_new, home: Arc::clone(&self.idle), _permit: permit })
    }

    /// Closes the idle connections: when one of them turns out to be dead, all may be.
    pub(super) fn forget_idle(&self) {
        stack(&self.idle).clear();
    }
}

fn stack<C>(idle: &Idle<C>) -> MutexGuard<'_, Vec<C>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection for one use. Dropped without [`Loan::done`], it is closed.
pub(super) struct Loan<C> {
    connection: Option<C>,
    is_new: bool,
    home: Idle<C>,
    _permit: OwnedSemaphorePermit,
}

impl<C> Loan<C> {
    /// Whether it has been opened for this loan: nobody has used it before.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Gives the connection back: nothing is under way on it any more.
    pub(super) fn done(mut self) {
        if let Some(connection) = self.connection.take() {
            stack(&self.home).push(connection);
        }
    }
}

/// A connection that was not given back failed or was abandoned, and those that lie idle may be as dead.
impl<C> Drop for Loan<C> {
    fn drop(&mut self) {
        if self.connection.is_some() {
            stack(&self.home).clear();
        }
    }
}

impl<C> Deref for Loan<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a loan has its connection until it is done")
    }
}

impl<C> DerefMut for Loan<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a loan has its connection until it is done")
    }
}
