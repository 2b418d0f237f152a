//! The rules of locks in random histories: several nodes, each with its own clock, one store, and faults. Each
//! history is checked against all promises. `PROPTEST_CASES` sets how many histories there are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod histories;

use crate::histories::search::search;

#[test]
fn every_history_keeps_every_promise() {
    let seen = search();
    // Promises about what never happens prove nothing.
    let never = seen.never();
    assert!(never.is_empty(), "no history contains {never:?}: {seen:?}");
}
