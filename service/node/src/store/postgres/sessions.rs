//! Connections to the server itself, or through a proxy that may run each transaction on another connection (PgBouncer in
//! transaction mode).
//!
//! Through such a proxy, settings and named statements do not outlive a transaction. So each use of a connection is one
//! transaction that begins with its settings, and statements are unnamed. That costs three more round trips.

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::Query;
use sqlx::{Connection, Postgres, Row};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::faults::{self, cannot_connect};
use super::hosts::Hosts;
use super::marks::{self, Marks};
use crate::store::engine_record::Reading;
use crate::store::{PoolUse, StoreError};

/// A connection that was idle for so long is asked before it is used: a server or a firewall may have closed it meanwhile.
const RESTED: Duration = Duration::from_millis(50);
/// How long it may take to answer.
const ANSWER_MAX: Duration = Duration::from_millis(250);
/// How often a server that has no connection left is asked for another one, while calls take turns on those that it gave.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How every session of a route works.
#[derive(Clone, Copy)]
pub(in crate::store) struct SessionTerms {
    /// Longest time that a statement may run.
    pub statement_timeout: Duration,
    /// Longest time that it may wait for one lock of another session.
    pub lock_timeout: Duration,
    /// The operator accepts a server that may lose acknowledged commits in a crash.
    pub allow_volatile: bool,
    /// The operator says that its storage keeps what it was given without `fsync`.
    pub durable_elsewhere: bool,
}

/// How a server is reached.
#[derive(Clone)]
pub(in crate::store) struct Route {
    hosts: Hosts,
    /// Through a proxy: the statements with which every transaction begins.
    begin: Option<Arc<str>>,
}

impl Route {
    /// The route to the server itself.
    ///
    /// # Errors
    /// When the URL is not one of Postgres.
    pub(in crate::store) fn direct(url: &str, terms: SessionTerms) -> anyhow::Result<Self> {
        let settings = settings(terms);
        let hosts = Hosts::parse(url)?.map(|options| options.options(settings.clone()));
        Ok(Self { hosts, begin: None })
    }

    /// The route through a proxy. A proxy refuses start-up parameters that it does not know, so there are none.
    ///
    /// # Errors
    /// When the URL is not one of Postgres.
    pub(in crate::store) fn through_proxy(url: &str, terms: SessionTerms) -> anyhow::Result<Self> {
        let mut begin = "begin".to_owned();
        for (name, value) in settings(terms) {
            write!(begin, "; set local {name} = '{value}'")?;
        }
        let hosts = Hosts::parse(url)?.map(|options| options.extra_float_digits(None));
        Ok(Self { hosts, begin: Some(begin.into()) })
    }

    pub(in crate::store) fn hosts(&self) -> &Hosts {
        &self.hosts
    }
}

/// The schema of all tables and functions of Latchgate.
pub(in crate::store) const SCHEMA: &str = "latchgate";

fn settings(terms: SessionTerms) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("statement_timeout", in_ms(terms.statement_timeout)),
        ("lock_timeout", in_ms(terms.lock_timeout)),
        ("idle_in_transaction_session_timeout", "2s".to_owned()),
        ("default_transaction_isolation", "read committed".to_owned()),
        // Each statement is planned once, as probes of the primary key. The planner's estimate of the table's size, which
        // changes by the second, must not turn a commit into a scan.
        ("plan_cache_mode", "force_generic_plan".to_owned()),
        ("enable_seqscan", "off".to_owned()),
        ("enable_bitmapscan", "off".to_owned()),
        ("enable_hashjoin", "off".to_owned()),
        ("enable_mergejoin", "off".to_owned()),
        ("jit", "off".to_owned()),
        ("search_path", SCHEMA.to_owned()),
        // The server's own value may change while nodes run. `remote_apply` would add only waiting: no node reads from a standby.
        match terms.allow_volatile {
            true => ("latchgate.allow_volatile", "on".to_owned()),
            false => ("synchronous_commit", "on".to_owned()),
        },
    ];
    if terms.durable_elsewhere {
        settings.push(("latchgate.durable_elsewhere", "on".to_owned()));
    }
    settings
}

/// A duration as a value of a setting. Zero would mean no limit.
pub(super) fn in_ms(duration: Duration) -> String {
    format!("{}ms", duration.as_millis().max(1))
}

/// A pool of connections over one route: a small stack of idle ones.
///
/// sqlx's pool pings the server whenever a connection is returned, which doubles the round trips of a commit. And a future that is
/// dropped half-way returns its connection to that pool with the work still under way. Here a connection is returned only when its user
/// says that it is done; otherwise it is closed, and the idle ones stay, because the user may only have run out of time.
#[derive(Clone)]
pub(in crate::store) struct Sessions {
    pool: Arc<Pool>,
    marks: Marks,
}

struct Pool {
    route: Route,
    idle: Mutex<Vec<Idle>>,
    permits: Arc<Semaphore>,
    max: usize,
    knows_timeline: bool,
    /// How many connections have been lost: if one of them is dead, all idle ones may be, and are closed.
    losses: Arc<AtomicU64>,
    /// How many connections are checked out.
    lent: AtomicUsize,
    /// One of them was returned or closed.
    returned: Notify,
    /// When a server that had no connection left was last asked for one.
    asked_at: Mutex<Option<Instant>>,
}

struct Idle {
    connection: PgConnection,
    since: Instant,
    compared_by: Vec<i64>,
    /// How many connections had been lost when it was returned.
    losses: u64,
}

impl Sessions {
    /// `knows_timeline`: the server tells its timeline, so that a fail-over shows in it.
    pub(in crate::store) fn new(route: &Route, max: usize, knows_timeline: bool) -> Self {
        Self::sharing(Arc::default(), Marks::default(), route, max, knows_timeline)
    }

    /// Another pool of connections to the same server.
    pub(super) fn beside(&self, route: &Route, max: usize) -> Self {
        let Pool { losses, knows_timeline, .. } = &*self.pool;
        Self::sharing(Arc::clone(losses), self.marks.clone(), route, max, *knows_timeline)
    }

    fn sharing(losses: Arc<AtomicU64>, marks: Marks, route: &Route, max: usize, knows_timeline: bool) -> Self {
        let (route, permits) = (route.clone(), Arc::new(Semaphore::new(max)));
        let (idle, lent, returned, asked_at) = <(_, _, Notify, _)>::default();
        let pool = Pool { route, idle, permits, max, knows_timeline, losses, lent, returned, asked_at };
        Self { pool: Arc::new(pool), marks }
    }

    /// # Errors
    /// When a connection cannot be opened.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        let session = self.open().await.map_err(|error| cannot_connect(&error))?;
        Ok(session.put_back().await?)
    }

    /// Checks out an idle connection, or opens one; waits while all are checked out. Through a proxy, a transaction has begun on it.
    ///
    /// # Errors
    /// When a connection cannot be opened, or has died. `EpochOver` if the server has lost commits: the engine record is to be read
    /// and changed first. Nothing was sent yet.
    pub(in crate::store) async fn check_out(&self) -> Result<Session, StoreError> {
        let session = self.check_out_for_record().await?;
        if session.is_behind { Err(StoreError::EpochOver) } else { Ok(session) }
    }

    /// As [`Sessions::check_out`], to read or change the engine record, whatever the server has lost.
    pub(in crate::store) async fn check_out_for_record(&self) -> Result<Session, StoreError> {
        self.open().await.map_err(|error| self.lost(&error, faults::of_read))
    }

    async fn open(&self) -> Result<Session, sqlx::Error> {
        let permit = Arc::clone(&self.pool.permits).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let pool = &self.pool;
        let (mut connection, mut compared_by, lent) = pool.connection().await?;
        let (node, mut is_behind) = (self.marks.node(), false);
        // A connection through a proxy may be one to another server now.
        if pool.route.begin.is_some() || !compared_by.contains(&node) {
            let before = self.marks.counter();
            // Its text consists of constants and a number.
            let ask = marks::ask(node);
            let ask = pool.route.begin.as_ref().map_or_else(|| ask.clone(), |begin| format!("{begin}; {ask}"));
            let found = sqlx::raw_sql(sqlx::AssertSqlSafe(ask)).fetch_one(&mut connection).await?;
            is_behind = marks::is_behind(before, found.try_get(0)?);
            if !compared_by.contains(&node) {
                compared_by.push(node);
            }
        }
        Ok(Session { connection, compared_by, is_behind, sessions: self.clone(), _lent: lent, _permit: permit })
    }

    /// Counts in the row of this node, now that the engine record was read. Nothing waits for that: if it fails, the number that was committed
    /// before is still remembered.
    pub(in crate::store) fn count(&self, reading: &Reading) {
        let Some((before, losses)) = self.marks.begin_count(reading) else { return };
        let sessions = self.clone();
        tokio::spawn(async move {
            let Ok(mut session) = sessions.check_out().await else { return };
            let node = sessions.marks.node();
            let count = match before {
                Some(before) => session.query(marks::COUNT).bind(node).bind(before),
                None => session.query(marks::BEGIN).bind(node),
            };
            let counted = count.fetch_optional(&mut *session).await;
            let counted = counted.and_then(|row| row.map(|row| row.try_get::<i64, _>(0)).transpose());
            let Ok(counted) = session.written(counted).await else { return };
            sessions.marks.counted(losses, counted);
        });
    }

    /// Its use, under a name.
    pub(in crate::store) fn usage(&self, name: &'static str) -> PoolUse {
        let Pool { max, permits, idle, .. } = &*self.pool;
        let used = max.saturating_sub(permits.available_permits());
        PoolUse { name, used, idle: idle.lock().len(), max: *max }
    }

    /// The error of a connection that was closed. A server that has no connection left has not lost those that it gave.
    pub(in crate::store) fn lost(&self, error: &sqlx::Error, kind: fn(&sqlx::Error) -> StoreError) -> StoreError {
        if !faults::is_full(error) {
            self.forget_idle();
        }
        kind(error)
    }

    pub(in crate::store) fn forget_idle(&self) {
        self.pool.losses.fetch_add(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// An idle connection that answers, or a fresh one. While the server has no connection left, waits for one that is in use. Nothing was
    /// sent on a connection that does not answer, so another one can be used at once.
    async fn connection(self: &Arc<Self>) -> Result<(PgConnection, Vec<i64>, Lent), sqlx::Error> {
        loop {
            let returned = self.returned.notified();
            if let Some((mut idle, lent)) = self.take_idle() {
                if idle.since.elapsed() < RESTED
                    || matches!(timeout(ANSWER_MAX, idle.connection.ping()).await, Ok(Ok(())))
                {
                    return Ok((idle.connection, idle.compared_by, lent));
                }
                // The others have most likely been closed, too.
                self.losses.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if self.has_one() && !self.may_ask() {
                returned.await;
                continue;
            }
            match self.route.hosts.open().await {
                Ok(connection) => {
                    *self.asked_at.lock() = None;
                    return Ok((connection, Vec::new(), Lent::new(self)));
                }
                Err(error) if faults::is_full(&error) => {
                    self.asked_at.lock().get_or_insert_with(Instant::now);
                    // Meanwhile one may have been returned.
                    if !self.has_one() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the server may be asked for a connection. One caller at a time asks a server that had none left.
    fn may_ask(&self) -> bool {
        let mut asked_at = self.asked_at.lock();
        let may_ask = asked_at.is_none_or(|at| at.elapsed() >= ASK_EVERY);
        if may_ask && asked_at.is_some() {
            *asked_at = Some(Instant::now());
        }
        may_ask
    }

    /// Whether there is a connection, idle or in use. Under the lock, none is on its way from one to the other.
    fn has_one(&self) -> bool {
        let idle = self.idle.lock();
        !idle.is_empty() || self.lent.load(Ordering::Relaxed) > 0
    }

    fn take_idle(self: &Arc<Self>) -> Option<(Idle, Lent)> {
        let losses = self.losses.load(Ordering::Relaxed);
        let mut idle = self.idle.lock();
        idle.retain(|idle| idle.losses == losses);
        // It counts before another caller finds that none is left.
        idle.pop().map(|idle| (idle, Lent::new(self)))
    }
}

/// The count of a connection that is checked out.
struct Lent(Arc<Pool>);

impl Lent {
    fn new(pool: &Arc<Pool>) -> Self {
        pool.lent.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(pool))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.lent.fetch_sub(1, Ordering::Relaxed);
        self.0.returned.notify_one();
    }
}

/// A connection for one use. If it is dropped without [`Session::put_back`], it is closed, which ends its transaction.
pub(in crate::store) struct Session {
    connection: PgConnection,
    /// The marks that were compared on it: see [`Marks::node`]. Records that share the connections have one each.
    compared_by: Vec<i64>,
    /// The server has lost what this node had seen there.
    is_behind: bool,
    sessions: Sessions,
    _lent: Lent,
    _permit: OwnedSemaphorePermit,
}

impl Session {
    /// A query for this connection: a named statement, unless it goes through a proxy.
    pub(in crate::store) fn query<'q>(&self, statement: &'static str) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement).persistent(!self.is_proxied())
    }

    /// See [`Sessions::new`].
    pub(in crate::store) fn knows_timeline(&self) -> bool {
        self.sessions.pool.knows_timeline
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.sessions.marks
    }

    /// Begins a transaction, for [`Session::commit`] or [`Session::roll_back`] to end.
    ///
    /// # Errors
    /// When the connection has died.
    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        if !self.is_proxied() {
            sqlx::raw_sql("begin").execute(&mut self.connection).await?;
        }
        Ok(())
    }

    /// The answer to statements that only read, or whose changes need not be durable. Returns the connection if it is alive.
    pub(in crate::store) async fn read<T>(self, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        self.end_with(answer, faults::of_read).await
    }

    /// The same for statements that write.
    pub(in crate::store) async fn written<T>(self, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        self.end_with(answer, faults::of_write).await
    }

    async fn end_with<T>(
        mut self,
        answer: Result<T, sqlx::Error>,
        kind: fn(&sqlx::Error) -> StoreError,
    ) -> Result<T, StoreError> {
        let sessions = self.sessions.clone();
        match answer {
            Ok(answer) => self.put_back().await.map(|()| answer).map_err(|error| sessions.lost(&error, kind)),
            // An error of one statement says nothing about other connections.
            Err(error) => {
                let is_alive =
                    faults::is_alive(&error) && self.recover().await.is_ok() && self.put_back().await.is_ok();
                Err(if is_alive { kind(&error) } else { sessions.lost(&error, kind) })
            }
        }
    }

    /// Makes the connection usable after an error of the server. No transaction is open then, except through a proxy, where a
    /// new one has begun.
    ///
    /// # Errors
    /// When the connection has died.
    pub(super) async fn recover(&mut self) -> Result<(), sqlx::Error> {
        if self.is_proxied() { self.begin_again().await } else { Ok(()) }
    }

    /// Rolls the transaction back and begins another.
    ///
    /// # Errors
    /// When the connection has died. Nothing was written.
    pub(super) async fn begin_again(&mut self) -> Result<(), sqlx::Error> {
        let undo = self
            .sessions
            .pool
            .route
            .begin
            .as_deref()
            .map_or_else(|| "rollback".to_owned(), |begin| format!("rollback; {begin}"));
        sqlx::raw_sql(sqlx::AssertSqlSafe(undo)).execute(&mut self.connection).await?;
        Ok(())
    }

    /// Commits the transaction and returns the connection.
    ///
    /// # Errors
    /// The outcome is unknown.
    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("commit").await
    }

    /// Commits what [`Session::begin`] began and keeps the connection, whose return commits it through a proxy.
    ///
    /// # Errors
    /// The outcome is unknown.
    pub(super) async fn commit_here(&mut self) -> Result<(), sqlx::Error> {
        if !self.is_proxied() {
            sqlx::raw_sql("commit").execute(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Rolls the transaction back and returns the connection.
    ///
    /// # Errors
    /// When the connection has died. Nothing was written.
    pub(super) async fn roll_back(self) -> Result<(), sqlx::Error> {
        self.end("rollback").await
    }

    /// Returns a connection on which the caller has begun no transaction. Through a proxy, this commits the statements.
    ///
    /// # Errors
    /// The outcome is unknown.
    pub(in crate::store) async fn put_back(self) -> Result<(), sqlx::Error> {
        if self.is_proxied() {
            return self.commit().await;
        }
        self.keep();
        Ok(())
    }

    /// One that is behind is closed: once the engine record is changed, it is another one.
    fn keep(self) {
        let Self { connection, compared_by, is_behind, sessions, .. } = self;
        if !is_behind {
            let losses = sessions.pool.losses.load(Ordering::Relaxed);
            sessions.pool.idle.lock().push(Idle { connection, since: Instant::now(), compared_by, losses });
        }
    }

    fn is_proxied(&self) -> bool {
        self.sessions.pool.route.begin.is_some()
    }

    async fn end(mut self, how: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(how).execute(&mut self.connection).await?;
        self.keep();
        Ok(())
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn through_a_proxy_transactions_have_the_settings_of_a_direct_connection() {
        let terms = |allow_volatile, durable_elsewhere| SessionTerms {
            statement_timeout: Duration::from_millis(800),
            lock_timeout: Duration::from_millis(50),
            allow_volatile,
            durable_elsewhere,
        };
        for (allow_volatile, durable_elsewhere) in [(false, false), (true, false), (false, true)] {
            let terms = terms(allow_volatile, durable_elsewhere);
            let begin = Route::through_proxy("postgres://u@h/d", terms).unwrap().begin.unwrap();
            assert!(
                begin.starts_with("begin; set local statement_timeout = '800ms'; set local lock_timeout = '50ms'; ")
            );
            for (name, value) in settings(terms) {
                assert!(begin.contains(&format!("; set local {name} = '{value}'")), "{begin}");
            }
            assert_eq!(begin.contains("synchronous_commit = 'on'"), !allow_volatile);
            assert_eq!(begin.contains("latchgate.durable_elsewhere = 'on'"), durable_elsewhere);
        }
    }
}
