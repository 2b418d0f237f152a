//! A small stack of idle connections.
//!
//! sqlx's pool pings the server each time a connection comes back, which doubles the round trips of a commit, and a
//! future that is dropped half-way returns its connection there with the work still under way. Here a connection goes
//! back only when its user says that it is done; in every other case it is closed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

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
    pub(super) fn new(options: Options<C>, max: usize) -> Self {
        Self { options, idle: Mutex::new(Vec::with_capacity(max)), permits: Arc::new(Semaphore::new(max)) }
    }

    /// Lends an idle connection, or opens one; waits while all are lent.
    ///
    /// # Errors
    /// When a connection cannot be opened.
    pub(super) async fn lend(&self) -> Result<Loan<'_, C>, sqlx::Error> {
        let permit = self.permits.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        Ok(Loan { connection: Some(connection), home: self, _permit: permit })
    }

    /// Opens a connection that is not of the stack and stands for one of it: as long as the place is kept, one fewer is
    /// lent.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) async fn open_instead(&self) -> Result<(C, OwnedSemaphorePermit), sqlx::Error> {
        let place = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok((self.options.connect().await?, place))
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
pub(super) struct Loan<'a, C: Connection>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    connection: Option<C>,
    home: &'a Connections<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C: Connection> Loan<'_, C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    /// Gives the connection back: nothing is under way on it any more.
    pub(super) fn done(mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.idle().push(connection);
        }
    }
}

/// A connection that was not given back failed or was abandoned, and those that lie idle may be as dead.
impl<C: Connection> Drop for Loan<'_, C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.home.forget_idle();
        }
    }
}

impl<C: Connection> Deref for Loan<'_, C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("a loan has its connection until it is done")
    }
}

impl<C: Connection> DerefMut for Loan<'_, C>
where
    Options<C>: ConnectOptions<Connection = C>,
{
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("a loan has its connection until it is done")
    }
}
