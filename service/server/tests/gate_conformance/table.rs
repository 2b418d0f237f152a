//! The gate's table through the driver, over two nodes; all its rows are tested in latchgate-core.

use latchgate::gate::apply::fresh_stamp;
use latchgate::store::gate::{Change, Write, Written};
use latchgate_core::Timestamp;
use latchgate_core::gate::{Command, OnExpiry, Outcome, Post, Posted, Report, Retention, State, step};

use crate::on_every_store;
use crate::world::{FENCE, LEASE_MS, Operation, World, post};

on_every_store! {
    a_success_is_told_to_every_later_pre_with_its_result,
    a_passed_lease_is_re_entered_once_and_the_first_attempt_is_told,
    a_post_is_replayed_and_contradicting_it_is_a_conflict,
    a_post_at_the_node_of_the_claim_meets_what_another_node_has_done_since,
    a_heartbeat_keeps_the_lease,
    what_counts_as_forgotten_is_not_shown,
    a_claim_that_arrives_after_it_was_given_back_does_nothing,
    a_run_that_is_entered_twice_is_one_and_beside_a_success_it_is_counted_once,
}

fn posted(outcome: Outcome) -> Posted {
    let Outcome::Posted(posted) = outcome else { panic!("not posted: {outcome:?}") };
    posted
}

async fn a_success_is_told_to_every_later_pre_with_its_result(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    assert!(!posted(world.post(1, &operation, go.stamp, Report::Success).await).late);
    for node in [0, 1] {
        let told = world.pre(node, &operation).await;
        let Outcome::Duplicate(duplicate) = told else { panic!("{told:?}") };
        assert_eq!(duplicate.result.as_deref(), Some(r#"{"receipt":7}"#));
    }
}

async fn a_run_that_is_entered_twice_is_one_and_beside_a_success_it_is_counted_once(world: World) {
    let (alone, beside) = (world.operation(), world.operation());
    let go = world.go(0, &beside).await;
    posted(world.post(0, &beside, go.stamp, Report::Success).await);
    let stamp = fresh_stamp();
    for (node, replayed) in [(0, false), (1, true), (0, true)] {
        let entry = |operation: &Operation| Command::Enter {
            claim: Box::new(operation.claim()),
            run: post(stamp, Report::Success),
            ran_at: Timestamp::default(),
        };
        let told = posted(world.tell(node, &alone, &entry(&alone)).await);
        assert_eq!((told.replayed, told.double_runs), (replayed, 0));
        let told = world.tell(node, &beside, &entry(&beside)).await;
        assert_eq!(told, Outcome::Superseded { attempt: 1, double_runs: 1, counted: !replayed });
    }
}

async fn a_passed_lease_is_re_entered_once_and_the_first_attempt_is_told(world: World) {
    let operation = world.operation();
    let first = world.passed(&operation, OnExpiry::Retry).await;
    let second = world.go(0, &operation).await;
    assert_eq!((second.attempt, second.reentry), (2, true));
    assert!(matches!(world.pre(1, &operation).await, Outcome::InProgress { attempt: 2, .. }));
    let told = world.post(1, &operation, first, Report::Success).await;
    assert_eq!(told, Outcome::Superseded { attempt: 2, double_runs: 1, counted: true });
    let told = world.post(0, &operation, first, Report::Success).await;
    assert_eq!(told, Outcome::Superseded { attempt: 2, double_runs: 1, counted: false });
    assert_eq!(posted(world.post(0, &operation, second.stamp, Report::Success).await).double_runs, 1);
}

async fn a_post_is_replayed_and_contradicting_it_is_a_conflict(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    let permanent = Command::Post(Post { retention: Some(Retention::Forever), ..post(go.stamp, Report::Success) });
    assert_eq!(posted(world.tell(0, &operation, &permanent).await).keep_until, None);
    assert!(posted(world.post(1, &operation, go.stamp, Report::Success).await).replayed);
    let told = world.post(1, &operation, go.stamp, Report::Failure).await;
    assert_eq!(told, Outcome::OutcomeConflict { recorded: Report::Success });
}

async fn a_post_at_the_node_of_the_claim_meets_what_another_node_has_done_since(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    posted(world.post(1, &operation, go.stamp, Report::Success).await);
    let told = world.post(0, &operation, go.stamp, Report::Failure).await;
    assert_eq!(told, Outcome::OutcomeConflict { recorded: Report::Success });
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    let beat = Command::Heartbeat { stamp: go.stamp, lease_ms: Some(2 * LEASE_MS) };
    assert!(matches!(world.tell(1, &operation, &beat).await, Outcome::Beating { .. }));
    posted(world.post(0, &operation, go.stamp, Report::Failure).await);
    assert!(matches!(world.pre(1, &operation).await, Outcome::Go(_)));
}

async fn a_heartbeat_keeps_the_lease(world: World) {
    let operation = world.operation();
    let stamp = world.passed(&operation, OnExpiry::Retry).await;
    let beat = Command::Heartbeat { stamp, lease_ms: None };
    let told = world.tell(0, &operation, &beat).await;
    let Outcome::Beating { remaining_ms: LEASE_MS, late: true, .. } = told else { panic!("{told:?}") };
    assert!(matches!(world.pre(1, &operation).await, Outcome::InProgress { attempt: 1, .. }));
    let told = world.tell(1, &operation, &beat).await;
    assert!(matches!(told, Outcome::Beating { late: false, .. }), "{told:?}");
}

async fn what_counts_as_forgotten_is_not_shown(world: World) {
    let operation = world.operation();
    let shown =
        async || world.gates[1].get(FENCE, &operation.address).await.unwrap().answer.map(|record| record.state());
    assert_eq!(shown().await, None);
    let go = world.go(0, &operation).await;
    assert_eq!(shown().await, Some(State::Started));
    world.post(0, &operation, go.stamp, Report::Failure).await;
    assert_eq!(shown().await, None);
    let go = world.go(0, &operation).await;
    world.post(0, &operation, go.stamp, Report::Success).await;
    assert_eq!(shown().await, Some(State::Succeeded));
}

/// The node does not know whether its claim was made, and gives it back before the store has received it.
async fn a_claim_that_arrives_after_it_was_given_back_does_nothing(world: World) {
    let (fresh, passed) = (world.operation(), world.operation());
    world.passed(&passed, OnExpiry::Retry).await;
    for operation in [&fresh, &passed] {
        let seen = world.store().load(FENCE, &operation.address).await.unwrap().answer;
        let claim = operation.claim();
        let (now, before) = (world.now().await, seen.as_ref().map(|stored| stored.record.clone()));
        let late = step(before, Command::Pre(claim.clone()), now).record.unwrap();
        let given_back = world.tell(1, operation, &Command::GiveBack(Box::new(claim))).await;
        assert_eq!(given_back, Outcome::GivenBack);
        let is_written = match &seen {
            None => {
                let claimed = world
                    .store()
                    .write(Write {
                        fence: FENCE,
                        now: world.now().await,
                        address: &operation.address,
                        change: Change::claim(&late),
                    })
                    .await
                    .unwrap();
                matches!(claimed.answer, Written::Done(_))
            }
            Some(stored) => {
                let change = Change { expected: Some(stored.version), record: Some(&late), wakes: false };
                let now = world.now().await;
                let replaced = world
                    .store()
                    .write(Write { fence: FENCE, now, address: &operation.address, change })
                    .await
                    .unwrap();
                matches!(replaced.answer, Written::Done(_))
            }
        };
        assert!(!is_written);
        assert!(matches!(world.pre(0, operation).await, Outcome::Go(_)));
    }
}
