//! The rules of locks in random histories: several nodes, each with its own clock, one store, and faults. Each
//! history is checked against all promises. `PROPTEST_CASES` sets how many histories there are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arbitrary;
mod calm;
#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../../testkit/src/commits.rs"]
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
mod search;
mod seen;
mod steps;
mod store;
mod witness;
mod world;

#[test]
fn every_history_keeps_every_promise() {
    let seen = search::search();
    // Promises about what never happens prove nothing.
    let never = seen.never();
    assert!(never.is_empty(), "no history contains {never:?}: {seen:?}");
}
