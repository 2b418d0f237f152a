//! Settings of a Postgres store.

use std::time::Duration;

use super::sessions::{Route, SessionTerms};
use super::{
    APART_AT_ONCE, BATCHES_AT_ONCE, LOCKING_CONNECTIONS, READ_CONNECTIONS, SPARE_CONNECTIONS, UPKEEP_CONNECTIONS,
};

/// Longest time for a statement that locks a whole table.
const PATIENT: Duration = Duration::from_secs(8);

/// Settings of a Postgres store.
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    pub url: String,
    /// The server's own URL if `url` is that of a transaction-pooling proxy, which supports neither LISTEN nor migrations.
    /// `None` if there is no proxy.
    pub direct_url: Option<String>,
    /// Longest time that a statement may run.
    pub statement_timeout: Duration,
    /// Longest time that a statement waits for a row that another session has locked. Then the key is served apart from the
    /// other keys.
    pub row_wait: Duration,
    /// Accept a server that can lose acknowledged commits in a crash.
    pub allow_volatile: bool,
    /// Its storage keeps what it was given, whatever `fsync` and `full_page_writes` say.
    pub durable_elsewhere: bool,
    /// The operator guarantees that a promoted standby has every acknowledged commit.
    pub trust_promotion: bool,
}

impl PostgresConfig {
    /// The route for all statements that lock no rows, or set the longest wait themselves.
    pub(in crate::store) fn route(&self) -> anyhow::Result<Route> {
        self.route_with(self.terms(self.statement_timeout, self.statement_timeout))
    }

    /// The route for transactions and statements that lock rows.
    pub(in crate::store) fn locking_route(&self) -> anyhow::Result<Route> {
        self.route_with(self.terms(self.statement_timeout, self.row_wait))
    }

    /// The route for statements that lock a whole table: autovacuum gives way only after a second.
    pub(super) fn patient_route(&self) -> anyhow::Result<Route> {
        self.route_with(self.terms(PATIENT, PATIENT))
    }

    fn route_with(&self, terms: SessionTerms) -> anyhow::Result<Route> {
        match self.direct_url {
            None => Route::direct(&self.url, terms),
            Some(_) => Route::through_proxy(&self.url, terms),
        }
    }

    /// The route for LISTEN and migrations, which does not go through a proxy.
    pub(in crate::store) fn direct_route(&self) -> anyhow::Result<Route> {
        let terms = self.terms(self.statement_timeout, self.statement_timeout);
        Route::direct(self.direct_url.as_deref().unwrap_or(&self.url), terms)
    }

    fn terms(&self, statement_timeout: Duration, lock_timeout: Duration) -> SessionTerms {
        let Self { allow_volatile, durable_elsewhere, .. } = *self;
        SessionTerms { statement_timeout, lock_timeout, allow_volatile, durable_elsewhere }
    }

    /// The most connections that one node opens: for two committers and what they serve apart, two LISTENs, reads of clients, upkeep, locked
    /// states, and emptying the table before a switch.
    pub(super) const CONNECTIONS_MAX: usize = 2 * (BATCHES_AT_ONCE + APART_AT_ONCE + 1)
        + SPARE_CONNECTIONS
        + LOCKING_CONNECTIONS
        + READ_CONNECTIONS
        + UPKEEP_CONNECTIONS
        + 1;
}
