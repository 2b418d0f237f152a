//! Functions in Postgres read states and records, and apply nothing of the rules but what is compared here with core: each state of the
//! random histories of core, and random records.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
#![allow(dead_code, unused_imports, reason = "core's histories have more than is needed here")]

#[path = "../../../core/tests/lock_histories/histories/mod.rs"]
mod histories;
mod records;
mod states;

use latchgate_node::store::postgres::PostgresConfig;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::stores::{migrated, postgres_config};

/// Settings for a database with a schema.
async fn config() -> PostgresConfig {
    migrated(postgres_config(shared_database().await)).await
}
