//! Many callers of one operation at once, over two nodes.

use std::sync::Arc;

use latchgate::gate::PreCall;
use latchgate_core::gate::{AttemptId, Go, OnExpiry, Outcome, Report, Stamp};
use tokio::task::JoinSet;

use crate::on_every_store;
use crate::world::{Operation, World};

on_every_store! {
    of_64_concurrent_pres_exactly_one_goes,
    a_passed_lease_is_re_entered_by_exactly_one_of_many,
    after_a_failure_exactly_one_of_many_goes,
    of_many_repeated_posts_one_is_the_first,
    a_caller_that_dies_before_its_post_is_found_again_by_its_attempt_id,
    callers_that_vanish_in_mid_call_leave_a_store_that_works,
}

const CALLERS: usize = 64;
const ROUNDS: usize = 100;

/// The same pre from 64 callers at once, every other one on the other node.
async fn all_at_once(world: &Arc<World>, operation: &Operation, change: fn(&mut PreCall)) -> Vec<Outcome> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (world, operation) = (Arc::clone(world), operation.clone());
        callers.spawn(async move { world.pre_with(caller % 2, &operation, change).await });
    }
    callers.join_all().await
}

fn goes(outcomes: &[Outcome]) -> Vec<Go> {
    let go = |outcome: &Outcome| if let Outcome::Go(go) = outcome { Some(*go) } else { None };
    outcomes.iter().filter_map(go).collect()
}

async fn exactly_one_goes(world: &Arc<World>, operation: &Operation) -> Go {
    let outcomes = all_at_once(world, operation, |_| {}).await;
    let going = goes(&outcomes);
    let in_progress = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::InProgress { .. })).count();
    assert_eq!((going.len(), in_progress), (1, CALLERS - 1), "{outcomes:?}");
    going[0]
}

async fn of_64_concurrent_pres_exactly_one_goes(world: World) {
    let world = Arc::new(world);
    for _ in 0..ROUNDS {
        exactly_one_goes(&world, &world.operation()).await;
    }
}

async fn a_passed_lease_is_re_entered_by_exactly_one_of_many(world: World) {
    let world = Arc::new(world);
    for _ in 0..5 {
        let operation = world.operation();
        world.passed(&operation, OnExpiry::Retry).await;
        let go = exactly_one_goes(&world, &operation).await;
        assert_eq!((go.attempt, go.reentry), (2, true));
    }
}

async fn after_a_failure_exactly_one_of_many_goes(world: World) {
    let world = Arc::new(world);
    for _ in 0..5 {
        let operation = world.operation();
        let first = world.go(0, &operation).await;
        world.post(0, &operation, first.stamp, Report::Failure).await;
        let go = exactly_one_goes(&world, &operation).await;
        assert_eq!((go.attempt, go.reentry), (1, false));
    }
}

async fn of_many_repeated_posts_one_is_the_first(world: World) {
    let world = Arc::new(world);
    for _ in 0..5 {
        let operation = world.operation();
        let stamp = world.go(0, &operation).await.stamp;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (world, operation) = (Arc::clone(&world), operation.clone());
            callers.spawn(async move { world.post(caller % 2, &operation, stamp, Report::Success).await });
        }
        let outcomes = callers.join_all().await;
        let first = |outcome: &&Outcome| matches!(outcome, Outcome::Posted(posted) if !posted.replayed);
        let replayed = |outcome: &&Outcome| matches!(outcome, Outcome::Posted(posted) if posted.replayed);
        let counts = (outcomes.iter().filter(first).count(), outcomes.iter().filter(replayed).count());
        assert_eq!(counts, (1, CALLERS - 1));
    }
}

async fn a_caller_that_dies_before_its_post_is_found_again_by_its_attempt_id(world: World) {
    let world = Arc::new(world);
    let operation = world.operation();
    let named = |call: &mut PreCall| call.attempt_id = Some(AttemptId::parse("job-1").unwrap());
    let (sender, told) = tokio::sync::oneshot::channel::<Stamp>();
    let caller = {
        let (world, operation) = (Arc::clone(&world), operation.clone());
        tokio::spawn(async move {
            let Outcome::Go(go) = world.pre_with(0, &operation, named).await else { panic!("no go") };
            sender.send(go.stamp).unwrap();
            std::future::pending::<()>().await;
        })
    };
    let stamp = told.await.unwrap();
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    let outcomes = all_at_once(&world, &operation, named).await;
    let stamps: Vec<Stamp> = goes(&outcomes).iter().map(|go| go.stamp).collect();
    assert_eq!(stamps, vec![stamp; CALLERS]);
}

async fn callers_that_vanish_in_mid_call_leave_a_store_that_works(world: World) {
    let world = Arc::new(world);
    for round in 0..20 {
        let operation = world.operation();
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (world, operation) = (Arc::clone(&world), operation.clone());
            callers.spawn(async move { world.pre(caller % 2, &operation).await });
        }
        // Some have their answers, some are on their way, some have not begun.
        for _ in 0..round {
            callers.join_next().await;
        }
        callers.abort_all();
        while callers.join_next().await.is_some() {}
        // A caller that comes now gets an answer that fits: at most one go was given before.
        let outcome = world.pre(1, &operation).await;
        assert!(
            matches!(outcome, Outcome::InProgress { attempt: 1, .. } | Outcome::Go(Go { attempt: 1, .. })),
            "{outcome:?}"
        );
    }
}
