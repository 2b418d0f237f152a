//! Functions in Postgres read states and records, and apply nothing of the rules but what is compared here with core: each state of the
//! random histories of core, and random records.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
#![allow(dead_code, unused_imports, reason = "core's histories have more than is needed here")]

// The histories of core's own tests.
#[path = "../../../core/tests/lock_histories/arbitrary.rs"]
mod arbitrary;
#[path = "../../../core/tests/lock_histories/calm.rs"]
mod calm;
#[path = "../../../core/tests/lock_histories/grants.rs"]
mod grants;
#[path = "../../../core/tests/lock_histories/groups.rs"]
mod groups;
#[path = "../../../core/tests/lock_histories/history.rs"]
mod history;
#[path = "../../../core/tests/lock_histories/interventions.rs"]
mod interventions;
#[path = "../../../core/tests/lock_histories/ledger.rs"]
mod ledger;
#[path = "../../../core/tests/lock_histories/node.rs"]
mod node;
#[path = "../../../core/tests/lock_histories/order.rs"]
mod order;
#[path = "../../../core/tests/lock_histories/promise.rs"]
mod promise;
#[path = "../../../core/tests/lock_histories/repetition.rs"]
mod repetition;
#[path = "../../../core/tests/lock_histories/seen.rs"]
mod seen;
#[path = "../../../core/tests/lock_histories/steps.rs"]
mod steps;
#[path = "../../../core/tests/lock_histories/store.rs"]
mod store;
#[path = "../../../core/tests/lock_histories/witness.rs"]
mod witness;
#[path = "../../../core/tests/lock_histories/world.rs"]
mod world;

mod records;
mod states;

use std::time::Duration;

use latchgate::store::postgres::PostgresConfig;
use latchgate_testkit::commits;
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
