//! Histories, and what must hold of them. The server's tests include this directory, and have Postgres read the states.

pub mod arbitrary;
mod calm;
#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../../../testkit/src/commits.rs"]
mod commits;
mod grants;
mod groups;
mod history;
mod interventions;
mod ledger;
mod node;
mod order;
mod promise;
mod repetition;
pub mod search;
mod seen;
mod steps;
mod store;
mod witness;
pub mod world;
