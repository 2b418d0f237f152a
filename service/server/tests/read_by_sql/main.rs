//! Functions in Postgres read states and records, and apply nothing of the rules but what is compared here with core: each state of the
//! random histories of core, and random records.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
#![allow(dead_code, unused_imports, reason = "core's histories have more than is needed here")]

#[path = "../../../core/tests/lock_histories/histories/mod.rs"]
mod histories;
mod records;
mod states;

use std::time::Duration;

use latchgate::store::postgres::PostgresConfig;
use latchgate_testkit::postgres::shared_database;

/// Settings for a database without a schema.
async fn config() -> PostgresConfig {
    PostgresConfig {
        url: shared_database().await,
        direct_url: None,
        statement_timeout: Duration::from_secs(30),
        row_wait: Duration::from_secs(30),
        allow_volatile: false,
        durable_elsewhere: false,
        trust_promotion: false,
    }
}
