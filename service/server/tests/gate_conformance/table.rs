//! What two nodes of the gate show each other; the rules are tested in latchgate-core.

use latchgate_core::gate::{Outcome, Post, Posted, Report, Retention};
use latchgate_node::failure::Failure;

use crate::worlds::{LEASE_MS, World, post};

fn posted(outcome: Outcome) -> Posted {
    let Outcome::Posted(posted) = outcome else { panic!("not posted: {outcome:?}") };
    posted
}

pub async fn a_permanent_success_needs_a_store_that_commits_to_disk(world: &World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    let permanent = Post { retention: Some(Retention::Forever), ..post(go.stamp, Report::Success) };
    let answer = world.nodes[1].post(&operation.address(), permanent).await;
    if world.store.is_volatile() {
        assert!(matches!(answer, Err(Failure::PermanentNeedsDurable)), "{answer:?}");
    } else {
        assert_eq!(posted(answer.unwrap().outcome).keep_until, None);
    }
}

pub async fn a_post_at_the_node_of_the_claim_meets_what_another_node_has_done_since(world: &World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    posted(world.post(1, &operation, go.stamp, Report::Success).await);
    let outcome = world.post(0, &operation, go.stamp, Report::Failure).await;
    assert_eq!(outcome, Outcome::OutcomeConflict { recorded: Report::Success });
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    let beat = world.nodes[1].heartbeat(&operation.address(), go.stamp, Some(2 * LEASE_MS)).await.unwrap().outcome;
    assert!(matches!(beat, Outcome::Beating { .. }), "{beat:?}");
    posted(world.post(0, &operation, go.stamp, Report::Failure).await);
    assert!(matches!(world.pre(1, &operation).await, Outcome::Go(_)));
}
