//! Which server, how it is reached, and what is accepted of it.

use std::time::Duration;

use super::sessions::Route;
use super::{LOCKING_CONNECTIONS, READ_CONNECTIONS, SPARE_CONNECTIONS, UPKEEP_CONNECTIONS};

/// What a Postgres store needs to know.
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    pub url: String,
    /// For LISTEN and migrations, which a transaction-pooling proxy would break. If `None`, there is no proxy, and it is the
    /// same as `url`.
    pub direct_url: Option<String>,
    pub shards: usize,
    /// Longest time that a statement may run, in ms.
    pub statement_timeout: Duration,
    /// Start on a server whose acknowledged commits can be lost in a crash.
    pub allow_volatile: bool,
    /// A standby that is promoted is a synchronous one: it has everything that was acknowledged.
    pub trust_promotion: bool,
}

impl PostgresConfig {
    /// The way of all statements.
    pub(in crate::store) fn route(&self) -> anyhow::Result<Route> {
        match self.direct_url {
            None => Route::direct(&self.url, self.statement_timeout),
            Some(_) => Route::through_proxy(&self.url, self.statement_timeout),
        }
    }

    /// The way of what a transaction-pooling proxy would break.
    pub(in crate::store) fn direct_route(&self) -> anyhow::Result<Route> {
        Route::direct(self.direct_url.as_deref().unwrap_or(&self.url), self.statement_timeout)
    }

    /// Connections that the locks of one node open at most: for the shards, what clients read, upkeep, locked states, and
    /// one to listen on.
    pub(super) const fn connections_max(&self) -> usize {
        let shards = 2 * self.shards + SPARE_CONNECTIONS + LOCKING_CONNECTIONS;
        shards + READ_CONNECTIONS + UPKEEP_CONNECTIONS + 1
    }
}
