//! A small stack of idle connections.
//!
//! sqlx's pool pings the server each time a connection comes back, which doubles the round trips of a commit, and a
//! future that is dropped half-way returns its connection there with the work still under way. Here a connection goes
//! back only when its user says that it is done; in every other case it is closed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type Options<C> = <C as Connection>::Options;

pub(super) struct Connections<C: Connection> {
    options: Options<C>,
    idle: Mutex<Vec<C>>,
    permits: Arc<Semaphore>,
}

impl<C: Connection> Connections<C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    pub(super) fn new(options: Options<C>, max: usize) -> Arc<Self> {
        let idle = Mutex::new(Vec::with_capacity(max));
        Arc::new(Self { options, idle, permits: Arc::new(Semaphore::new(max)) })
    }

    /// Lends an idle connection, or opens one; waits while all are lent.
    ///
    /// # Errors
    /// When a connection cannot be opened.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Loan<C>, sqlx::Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.idle().pop();
        let is_new = idle.is_none();
        let connection = match idle {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        Ok(Loan { connection: Some(connection), is_new, home: Arc::clone(self), _permit: permit })
    }

    /// Opens a connection that is not of the stack.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) async fn open(&self) -> Result<C, sqlx::Error> {
        self.options.connect().await
    }

    /// Closes the idle connections: when one of them turns out to be dead, all may be.
    pub(super) fn forget_idle(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<C>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection for one use. Dropped without [`Loan::done`], it is closed.
pub(super) struct Loan<C: Connection>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    connection: Option<C>,
    is_new: bool,
    home: Arc<Connections<C>>,
    _permit: OwnedSemaphorePermit,
}

impl<C: Connection> Loan<C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    /// Whether it has been opened for this loan: nobody has used it before.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Gives the connection back: nothing is under way on it any more.
    pub(super) fn done(mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.idle().push(connection);
        }
    }
}

/// A connection that was not given back failed or was abandoned, and those that lie idle may be as dead.
impl<C: Connection> Drop for Loan<C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.home.forget_idle();
        }
    }
}

impl<C: Connection> Deref for Loan<C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a loan has its connection until it is done")
    }
}

impl<C: Connection> DerefMut for Loan<C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a loan has its connection until it is done")
    }
}
