//! Connections that statements run on: to the server itself, or through a proxy that gives every transaction whatever
//! connection is free (PgBouncer in transaction mode).
//!
//! Through such a proxy nothing outlasts a transaction: neither settings nor named statements. So there every loan is one
//! transaction that makes its own settings first, and statements are unnamed. That is three round trips more.

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Postgres};

use crate::store::connections::{Connections, Loan};

/// How a server is reached.
#[derive(Clone)]
pub(in crate::store) struct Route {
    options: PgConnectOptions,
    /// What every transaction begins with, where a proxy is in between.
    begin: Option<Arc<str>>,
}

impl Route {
    /// To the server itself.
    ///
    /// # Errors
    /// When it is no URL of Postgres.
    pub(in crate::store) fn direct(url: &str, statement_timeout: Duration) -> anyhow::Result<Self> {
        let settings = settings(statement_timeout);
        Ok(Self { options: parse_url(url)?.options(settings), begin: None })
    }

    /// Through a proxy, which refuses start-up parameters that it does not know.
    ///
    /// # Errors
    /// When it is no URL of Postgres.
    pub(in crate::store) fn through_proxy(url: &str, statement_timeout: Duration) -> anyhow::Result<Self> {
        let mut begin = "begin".to_owned();
        for (name, value) in settings(statement_timeout) {
            write!(begin, "; set local {name} = '{value}'")?;
        }
        Ok(Self { options: parse_url(url)?.extra_float_digits(None), begin: Some(begin.into()) })
    }

    pub(in crate::store) fn options(&self) -> &PgConnectOptions {
        &self.options
    }
}

pub(super) fn parse_url(url: &str) -> anyhow::Result<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url).map_err(|error| anyhow::anyhow!("not a postgres URL: {error}"))?;
    Ok(options.application_name("latchgate").disable_statement_logging())
}

fn settings(statement_timeout: Duration) -> [(&'static str, String); 10] {
    let limit = format!("{}ms", statement_timeout.as_millis());
    [
        ("statement_timeout", limit.clone()),
        ("lock_timeout", limit),
        ("idle_in_transaction_session_timeout", "2s".to_owned()),
        ("default_transaction_isolation", "read committed".to_owned()),
        // A statement is planned once and for all, as probes of the primary key. What the planner guesses of the table's
        // size, which changes by the second, must not turn a commit into a scan.
        ("plan_cache_mode", "force_generic_plan".to_owned()),
        ("enable_seqscan", "off".to_owned()),
        ("enable_bitmapscan", "off".to_owned()),
        ("enable_hashjoin", "off".to_owned()),
        ("enable_mergejoin", "off".to_owned()),
        ("jit", "off".to_owned()),
    ]
}

/// A stack of connections over one route.
pub(in crate::store) struct Sessions {
    connections: Connections<PgConnection>,
    begin: Option<Arc<str>>,
}

impl Sessions {
    pub(in crate::store) fn new(route: &Route, max: usize) -> Self {
        Self { connections: Connections::new(route.options.clone(), max), begin: route.begin.clone() }
    }

    /// Lends a connection, through a proxy with a transaction begun; waits while all are lent.
    ///
    /// # Errors
    /// When a connection cannot be opened, or has died.
    pub(in crate::store) async fn lend(&self) -> Result<Session, sqlx::Error> {
        let mut connection = self.connections.lend().await?;
        if let Some(begin) = &self.begin {
            // Made of the constants above and of a number.
            let begin = sqlx::AssertSqlSafe(begin.to_string());
            sqlx::raw_sql(begin).execute(&mut *connection).await?;
        }
        Ok(Session { connection, begin: self.begin.clone() })
    }

    /// Closes the idle connections: when one of them turns out to be dead, all may be.
    pub(in crate::store) fn forget_idle(&self) {
        self.connections.forget_idle();
    }
}

/// A connection for one use. Dropped without [`Session::done`], it is closed, and a transaction with it.
pub(in crate::store) struct Session {
    connection: Loan<PgConnection>,
    /// As in [`Route`].
    begin: Option<Arc<str>>,
}

impl Session {
    pub(in crate::store) fn is_new(&self) -> bool {
        self.connection.is_new()
    }

    /// A statement in the form in which this connection can take it.
    pub(in crate::store) fn query<'q>(&self, statement: &'static str) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement).persistent(!self.is_proxied())
    }

    /// Begins a transaction, for [`Session::commit`] or [`Session::roll_back`] to end.
    ///
    /// # Errors
    /// When the connection has died.
    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        if !self.is_proxied() {
            sqlx::raw_sql("begin").execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Undoes the transaction. The use goes on as it began.
    ///
    /// # Errors
    /// When the connection has died. Nothing was written.
    pub(super) async fn begin_again(&mut self) -> Result<(), sqlx::Error> {
        let undo = self.begin.as_deref().map_or_else(|| "rollback".to_owned(), |begin| format!("rollback; {begin}"));
        sqlx::raw_sql(sqlx::AssertSqlSafe(undo)).execute(&mut *self.connection).await?;
        Ok(())
    }

    /// Ends the transaction and the use.
    ///
    /// # Errors
    /// When it is not known whether it was written.
    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("commit").await
    }

    /// Undoes the transaction and ends the use.
    ///
    /// # Errors
    /// When the connection has died. Nothing was written.
    pub(super) async fn roll_back(self) -> Result<(), sqlx::Error> {
        self.end("rollback").await
    }

    /// Ends a use without a transaction of its own. Through a proxy nothing is written before.
    ///
    /// # Errors
    /// When it is not known whether it was written.
    pub(in crate::store) async fn done(self) -> Result<(), sqlx::Error> {
        if self.is_proxied() {
            return self.commit().await;
        }
        self.connection.done();
        Ok(())
    }

    fn is_proxied(&self) -> bool {
        self.begin.is_some()
    }

    async fn end(mut self, how: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(how).execute(&mut *self.connection).await?;
        self.connection.done();
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
    fn through_a_proxy_each_transaction_makes_the_settings_that_a_connection_has_otherwise() {
        let route = Route::through_proxy("postgres://u@h/d", Duration::from_millis(800)).unwrap();
        let begin = route.begin.unwrap();
        assert!(begin.starts_with("begin; set local statement_timeout = '800ms'; "), "{begin}");
        for (name, value) in settings(Duration::from_millis(800)) {
            assert!(begin.contains(&format!("; set local {name} = '{value}'")), "{begin}");
        }
    }
}
