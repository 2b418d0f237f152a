//! The rules of operations over two nodes; all of them are tested in latchgate-core.

use std::sync::Arc;

use latchgate::failure::Failure;
use latchgate::gate::fresh_stamp;
use latchgate_core::Timestamp;
use latchgate_core::gate::{
    OnExpiry, Outcome, Post, Posted, Report, Resolution, Resolve, Retention, State, UnknownCause,
};

use crate::on_every_store;
use crate::world::{LEASE_MS, Operation, World, post};

on_every_store! {
    a_success_is_shown_to_every_later_pre_with_its_result,
    a_passed_lease_is_re_entered_once_and_the_first_attempt_is_superseded,
    a_passed_lease_that_blocks_lets_no_attempt_go_until_it_is_resolved,
    a_post_is_replayed_and_contradicting_it_is_a_conflict,
    a_permanent_success_needs_a_store_that_commits_to_disk,
    a_post_at_the_node_of_the_claim_meets_what_another_node_has_done_since,
    a_heartbeat_keeps_the_lease,
    what_counts_as_forgotten_is_not_shown,
    a_running_attempt_is_forgotten_only_by_force_and_cannot_post_afterwards,
    a_run_that_is_entered_twice_is_one_and_beside_a_success_it_is_counted_once,
}

fn posted(outcome: Outcome) -> Posted {
    let Outcome::Posted(posted) = outcome else { panic!("not posted: {outcome:?}") };
    posted
}

async fn a_success_is_shown_to_every_later_pre_with_its_result(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    assert!(!posted(world.post(1, &operation, go.stamp, Report::Success).await).late);
    for node in [0, 1] {
        let outcome = world.pre(node, &operation).await;
        let Outcome::Duplicate(duplicate) = outcome else { panic!("{outcome:?}") };
        assert_eq!(duplicate.result.as_deref(), Some(r#"{"receipt":7}"#));
    }
}

async fn a_run_that_is_entered_twice_is_one_and_beside_a_success_it_is_counted_once(world: World) {
    let (alone, beside) = (world.operation(), world.operation());
    let go = world.go(0, &beside).await;
    posted(world.post(0, &beside, go.stamp, Report::Success).await);
    let stamp = fresh_stamp();
    for (node, replayed) in [(0, false), (1, true), (0, true)] {
        let enter = async |operation: &Operation| {
            let (call, run) = (operation.call(), post(stamp, Report::Success));
            world.nodes[node].enter(&operation.app, &call, run, Timestamp::default()).await.unwrap().outcome
        };
        let entered = posted(enter(&alone).await);
        assert_eq!((entered.replayed, entered.double_runs), (replayed, 0));
        assert_eq!(enter(&beside).await, Outcome::Superseded { attempt: 1, double_runs: 1, counted: !replayed });
    }
}

async fn a_passed_lease_is_re_entered_once_and_the_first_attempt_is_superseded(world: World) {
    let operation = world.operation();
    let first = world.passed(&operation, OnExpiry::Retry).await;
    let second = world.go(0, &operation).await;
    assert_eq!((second.attempt, second.reentry), (2, true));
    assert!(matches!(world.pre(1, &operation).await, Outcome::InProgress { attempt: 2, .. }));
    let outcome = world.post(1, &operation, first, Report::Success).await;
    assert_eq!(outcome, Outcome::Superseded { attempt: 2, double_runs: 1, counted: true });
    let outcome = world.post(0, &operation, first, Report::Success).await;
    assert_eq!(outcome, Outcome::Superseded { attempt: 2, double_runs: 1, counted: false });
    assert_eq!(posted(world.post(0, &operation, second.stamp, Report::Success).await).double_runs, 1);
}

async fn a_passed_lease_that_blocks_lets_no_attempt_go_until_it_is_resolved(world: World) {
    let operation = world.operation();
    world.passed(&operation, OnExpiry::Block).await;
    for node in [0, 1] {
        let outcome = world.pre(node, &operation).await;
        assert!(matches!(outcome, Outcome::Unknown { cause: UnknownCause::LeasePassed { .. }, .. }), "{outcome:?}");
    }
    let resolution = Arc::new(Resolution { reason: "it is in the book".into(), by: None, api_key: None });
    let resolve = Resolve { has_succeeded: true, result: None, retention: None, resolution };
    let resolved = world.nodes[1].resolve(&operation.address(), resolve).await.unwrap().outcome;
    assert_eq!(posted(resolved).report, Report::Success);
    assert!(matches!(world.pre(0, &operation).await, Outcome::Duplicate(duplicate) if duplicate.resolved.is_some()));
}

async fn a_post_is_replayed_and_contradicting_it_is_a_conflict(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    assert!(!posted(world.post(0, &operation, go.stamp, Report::Success).await).replayed);
    assert!(posted(world.post(1, &operation, go.stamp, Report::Success).await).replayed);
    let outcome = world.post(1, &operation, go.stamp, Report::Failure).await;
    assert_eq!(outcome, Outcome::OutcomeConflict { recorded: Report::Success });
}

async fn a_permanent_success_needs_a_store_that_commits_to_disk(world: World) {
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

async fn a_post_at_the_node_of_the_claim_meets_what_another_node_has_done_since(world: World) {
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

async fn a_heartbeat_keeps_the_lease(world: World) {
    let operation = world.operation();
    let stamp = world.passed(&operation, OnExpiry::Retry).await;
    let beat =
        async |node: usize| world.nodes[node].heartbeat(&operation.address(), stamp, None).await.unwrap().outcome;
    let Outcome::Beating { remaining_ms: LEASE_MS, late: true, .. } = beat(0).await else { panic!("it is not late") };
    assert!(matches!(world.pre(1, &operation).await, Outcome::InProgress { attempt: 1, .. }));
    let outcome = beat(1).await;
    assert!(matches!(outcome, Outcome::Beating { late: false, .. }), "{outcome:?}");
}

async fn what_counts_as_forgotten_is_not_shown(world: World) {
    let operation = world.operation();
    let shown = async || {
        let shown = world.nodes[1].get(&operation.address()).await.unwrap();
        shown.map(|shown| shown.record.state())
    };
    assert_eq!(shown().await, None);
    let go = world.go(0, &operation).await;
    assert_eq!(shown().await, Some(State::Started));
    world.post(0, &operation, go.stamp, Report::Failure).await;
    assert_eq!(shown().await, None);
    let go = world.go(0, &operation).await;
    world.post(0, &operation, go.stamp, Report::Success).await;
    assert_eq!(shown().await, Some(State::Succeeded));
}

async fn a_running_attempt_is_forgotten_only_by_force_and_cannot_post_afterwards(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    let forget = async |force: bool| world.nodes[1].forget(&operation.address(), force).await.unwrap().outcome;
    assert!(matches!(forget(false).await, Outcome::StillStarted { attempt: 1, .. }));
    assert_eq!(forget(true).await, Outcome::Forgotten { was: State::Started });
    let outcome = world.post(0, &operation, go.stamp, Report::Success).await;
    assert!(matches!(outcome, Outcome::Superseded { double_runs: 1, counted: true, .. }), "{outcome:?}");
}
