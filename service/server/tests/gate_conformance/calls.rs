//! Calls that wait, that claim several operations at once, or whose callers go.

use std::sync::Mutex;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Outcome, Post, Posted, Report, Retention};
use latchgate_core::lock::NodeId;
use latchgate_node::failure::Failure;
use latchgate_node::store::WakeUp;
use latchgate_testkit::eventually;

use crate::worlds::{Operation, PATIENCE, World, post, row_of};

/// Some caller waits for the end of the attempt.
async fn until_awaited(world: &World, operation: &Operation) {
    let is_awaited = || async {
        let shown = world.nodes[0].get(&operation.address()).await.unwrap();
        shown.unwrap().record.awaited_until.is_some()
    };
    assert!(eventually(PATIENCE, is_awaited).await);
}

/// After a success no more of them go.
pub async fn those_that_wait_go_one_at_a_time_in_the_order_of_their_arrival(world: &World) {
    let (operation, order) = (world.operation(), Mutex::new(Vec::new()));
    let go = world.go(0, &operation).await;
    let waiter = async |name: &'static str, report: Option<Report>| {
        let outcome = world.pre_with(1, &operation, |call| call.wait = PATIENCE).await;
        order.lock().unwrap().push(name);
        match (outcome, report) {
            (Outcome::Go(go), Some(report)) => drop(world.post(1, &operation, go.stamp, report).await),
            (Outcome::Duplicate(_), None) => {}
            (outcome, _) => panic!("{name}: {outcome:?}"),
        }
    };
    let end = async {
        until_awaited(world, &operation).await;
        world.post(0, &operation, go.stamp, Report::Failure).await
    };
    let (second, third) = (waiter("second", Some(Report::Success)), waiter("third", None));
    tokio::join!(waiter("first", Some(Report::Failure)), second, third, end);
    assert_eq!(order.into_inner().unwrap(), ["first", "second", "third"]);
}

pub async fn a_caller_that_waits_for_the_outcome_claims_nothing(world: &World) {
    let operation = world.operation();
    let outcome =
        async |patience: Duration| world.nodes[1].outcome(&operation.address(), patience).await.unwrap().outcome;
    assert_eq!(outcome(PATIENCE).await, Outcome::NotFound);
    let go = world.go(0, &operation).await;
    assert!(matches!(outcome(Duration::ZERO).await, Outcome::InProgress { attempt: 1, .. }));
    let post = async {
        until_awaited(world, &operation).await;
        world.post(0, &operation, go.stamp, Report::Success).await
    };
    let (outcome, _) = tokio::join!(outcome(PATIENCE), post);
    assert!(matches!(outcome, Outcome::Duplicate(_)), "{outcome:?}");
}

pub async fn nodes_are_notified_of_an_end_that_is_waited_for_and_of_no_other(world: &World) {
    if world.store.is_of_one_node() {
        // There is no other node to notify.
        return;
    }
    let all_nodes = NodeId::new("operations");
    let mut notified =
        [world.store.wake_ups(&all_nodes).await.unwrap(), world.store.wake_ups(&all_nodes).await.unwrap()];
    let (unawaited, awaited) = (world.operation(), world.operation());
    let go = world.go(0, &unawaited).await;
    world.post(0, &unawaited, go.stamp, Report::Success).await;
    let go = world.go(0, &awaited).await;
    let post = async {
        until_awaited(world, &awaited).await;
        world.post(0, &awaited, go.stamp, Report::Failure).await
    };
    tokio::join!(world.pre_with(1, &awaited, |call| call.wait = PATIENCE), post);
    for receiver in &mut notified {
        let first = tokio::time::timeout(PATIENCE, receiver.recv()).await.unwrap();
        assert_eq!(first, Some(WakeUp::Key(row_of(&awaited))), "and of nothing before it");
    }
}

pub async fn of_a_batch_all_or_nothing_no_claim_stays_unless_all_may_go(world: &World) {
    let [running, fresh, other] = [world.operation(), world.operation(), world.operation()];
    let go = world.go(0, &running).await;
    let calls = [fresh.call(), running.call(), other.call()];
    let batch = async |node: usize, all_or_nothing: bool| {
        let reply = world.nodes[node].pre_all(&App::default(), &calls, all_or_nothing).await;
        let goes = |outcome: Outcome| matches!(outcome, Outcome::Go(_));
        (reply.all_may_go, reply.items.into_iter().map(|item| goes(item.unwrap().outcome)).collect::<Vec<_>>())
    };
    // What was given back by the first one may go in the second one.
    for node in [1, 0] {
        assert_eq!(batch(node, true).await, (false, vec![true, false, true]));
    }
    assert_eq!(batch(1, false).await, (false, vec![true, false, true]));
    assert_eq!(batch(0, true).await, (false, vec![false; 3]));
    world.post(1, &running, go.stamp, Report::Failure).await;
    assert_eq!(batch(0, true).await, (false, vec![false, true, false]));
    world.go(1, &running).await;
}

pub async fn a_claim_whose_caller_has_gone_is_given_back(world: &World) {
    let operation = loop {
        let operation = world.operation();
        let mut pre = Box::pin(world.nodes[0].pre(&operation.app, operation.call()));
        // A store may have answered by now.
        let is_pending = futures::poll!(&mut pre).is_pending();
        drop(pre);
        if is_pending {
            break operation;
        }
    };
    let goes = || async { matches!(world.pre(1, &operation).await, Outcome::Go(go) if go.attempt == 1) };
    assert!(eventually(PATIENCE, goes).await);
}

pub async fn a_permanent_success_needs_a_store_that_commits_to_disk(world: &World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    let permanent = Post { retention: Some(Retention::Forever), ..post(go.stamp, Report::Success) };
    let answer = world.nodes[1].post(&operation.address(), permanent).await.map(|reply| reply.outcome);
    let is_as_due = match &answer {
        Err(Failure::PermanentNeedsDurable) => world.store.is_volatile(),
        Ok(Outcome::Posted(Posted { keep_until: None, .. })) => !world.store.is_volatile(),
        _ => false,
    };
    assert!(is_as_due, "{answer:?}");
}
