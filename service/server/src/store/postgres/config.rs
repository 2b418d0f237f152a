//! Settings of a Postgres store.

use std::time::Duration;

use super::sessions::Route;
use super::{LOCKING_CONNECTIONS, READ_CONNECTIONS, SPARE_CONNECTIONS, UPKEEP_CONNECTIONS};

/// Longest time for a statement that locks a whole table.
const PATIENT: Duration = Duration::from_secs(8);

/// Settings of a Postgres store.
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    pub url: String,
    /// The server's own URL if `url` is that of a transaction-pooling proxy, which supports neither LISTEN nor migrations.
    /// `None` if there is no proxy.
    pub direct_url: Option<String>,
    pub shards: usize,
    /// Longest time that a statement may run.
    pub statement_timeout: Duration,
    /// Accept a server that can lose acknowledged commits in a crash.
    pub allow_volatile: bool,
    /// The operator guarantees that a promoted standby has every acknowledged commit.
    pub trust_promotion: bool,
}

impl PostgresConfig {
    /// The route for all statements.
    pub(in crate::store) fn route(&self) -> anyhow::Result<Route> {
        self.route_with(self.statement_timeout)
    }

    /// The same for statements that lock a whole table: autovacuum gives way only after a second.
    pub(super) fn patient_route(&self) -> anyhow::Result<Route> {
        self.route_with(PATIENT)
    }

    fn route_with(&self, timeout: Duration) -> anyhow::Result<Route> {
        match self.direct_url {
            None => Route::direct(&self.url, timeout),
            Some(_) => Route::through_proxy(&self.url, timeout),
        }
    }

    /// The route for LISTEN and migrations, which does not go through a proxy.
    pub(in crate::store) fn direct_route(&self) -> anyhow::Result<Route> {
        Route::direct(self.direct_url.as_deref().unwrap_or(&self.url), self.statement_timeout)
    }

    /// The most connections that one node opens for locks: for shards, reads of clients, upkeep, locked states, and LISTEN.
    pub(super) const fn connections_max(&self) -> usize {
        let shards = 2 * self.shards + SPARE_CONNECTIONS + LOCKING_CONNECTIONS;
        shards + READ_CONNECTIONS + UPKEEP_CONNECTIONS + 1
    }
}
