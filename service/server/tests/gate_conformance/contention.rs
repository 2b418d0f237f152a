//! Many callers of one operation at once, over two nodes.

use latchgate_core::gate::{AttemptId, Go, OnExpiry, Outcome, Report, Stamp};
use latchgate_node::gate::PreCall;
use tokio::task::JoinSet;

use crate::worlds::{Operation, World};

const CALLERS: usize = 64;
const ROUNDS: usize = 100;

/// The same pre from 64 callers at once, every other one on the other node.
async fn all_at_once(world: &World, operation: &Operation, change: fn(&mut PreCall)) -> Vec<Outcome> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (world, operation) = (world.clone(), operation.clone());
        callers.spawn(async move { world.pre_with(caller % 2, &operation, change).await });
    }
    callers.join_all().await
}

fn goes(outcomes: &[Outcome]) -> Vec<Go> {
    let go = |outcome: &Outcome| if let Outcome::Go(go) = outcome { Some(*go) } else { None };
    outcomes.iter().filter_map(go).collect()
}

/// Whether the operation is new, its lease has passed, or its attempt has failed.
pub async fn of_64_concurrent_pres_exactly_one_goes(world: &World) {
    for (rounds, before, expected) in
        [(ROUNDS, "nothing", (1, false)), (5, "passed", (2, true)), (5, "failed", (1, false))]
    {
        for _ in 0..rounds {
            let operation = world.operation();
            if before == "passed" {
                world.passed(&operation, OnExpiry::Retry).await;
            } else if before == "failed" {
                let first = world.go(0, &operation).await;
                world.post(0, &operation, first.stamp, Report::Failure).await;
            }
            let outcomes = all_at_once(world, &operation, |_| {}).await;
            let going = goes(&outcomes);
            let in_progress = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::InProgress { .. })).count();
            assert_eq!((going.len(), in_progress), (1, CALLERS - 1), "{before}: {outcomes:?}");
            assert_eq!((going[0].attempt, going[0].reentry), expected, "{before}");
        }
    }
}

pub async fn of_many_repeated_posts_one_is_the_first(world: &World) {
    for _ in 0..5 {
        let operation = world.operation();
        let stamp = world.go(0, &operation).await.stamp;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (world, operation) = (world.clone(), operation.clone());
            callers.spawn(async move { world.post(caller % 2, &operation, stamp, Report::Success).await });
        }
        let outcomes = callers.join_all().await;
        let first = |outcome: &&Outcome| matches!(outcome, Outcome::Posted(posted) if !posted.replayed);
        let replayed = |outcome: &&Outcome| matches!(outcome, Outcome::Posted(posted) if posted.replayed);
        let counts = (outcomes.iter().filter(first).count(), outcomes.iter().filter(replayed).count());
        assert_eq!(counts, (1, CALLERS - 1));
    }
}

/// The caller has died before its post, and comes back many times.
pub async fn a_named_attempt_gets_its_stamp_again_however_many_ask(world: &World) {
    let operation = world.operation();
    let named = |call: &mut PreCall| call.attempt_id = Some(AttemptId::parse("job-1").unwrap());
    let Outcome::Go(go) = world.pre_with(0, &operation, named).await else { panic!("no go") };
    let outcomes = all_at_once(world, &operation, named).await;
    let stamps: Vec<Stamp> = goes(&outcomes).iter().map(|go| go.stamp).collect();
    assert_eq!(stamps, vec![go.stamp; CALLERS]);
}

pub async fn callers_that_vanish_in_mid_call_leave_a_store_that_works(world: &World) {
    for round in 0..20 {
        let operation = world.operation();
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (world, operation) = (world.clone(), operation.clone());
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
