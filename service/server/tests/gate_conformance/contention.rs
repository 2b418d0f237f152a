//! Many callers of one operation at once, over two nodes.

use latchgate_core::gate::{Go, OnExpiry, Outcome, Report};
use tokio::task::JoinSet;

use crate::worlds::{Operation, World};

const CALLERS: usize = 64;
const ROUNDS: usize = 100;

/// The same pre from 64 callers at once, every other one on the other node.
fn all_at_once(world: &World, operation: &Operation) -> JoinSet<Outcome> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (world, operation) = (world.clone(), operation.clone());
        callers.spawn(async move { world.pre(caller % 2, &operation).await });
    }
    callers
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
            let (mut going, mut in_progress) = (Vec::new(), 0);
            for outcome in all_at_once(world, &operation).join_all().await {
                match outcome {
                    Outcome::Go(go) => going.push((go.attempt, go.reentry)),
                    Outcome::InProgress { .. } => in_progress += 1,
                    other => panic!("{before}: {other:?}"),
                }
            }
            assert_eq!((going, in_progress), (vec![expected], CALLERS - 1), "{before}");
        }
    }
}

pub async fn callers_that_vanish_in_mid_call_leave_a_store_that_works(world: &World) {
    for round in 0..20 {
        let operation = world.operation();
        let mut callers = all_at_once(world, &operation);
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
