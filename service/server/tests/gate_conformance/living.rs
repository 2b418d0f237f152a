//! Going on with an operation where it lives, without ever claiming it there anew.

use futures::future::join_all;
use latchgate_core::gate::{Command, OnExpiry, Outcome, Report, Shelf, State};

use crate::on_every_store;
use crate::world::{Operation, World, post};

on_every_store! {
    what_does_not_live_here_is_not_claimed,
    what_lives_here_is_told_and_moved_as_ever,
    a_passed_lease_is_re_entered_by_exactly_one,
    of_those_who_go_on_when_it_fails_nobody_may_go,
    a_record_of_the_fallback_is_settled_once,
}

impl World {
    async fn go_on(&self, node: usize, operation: &Operation) -> Option<Outcome> {
        let pre = Command::Pre(operation.claim());
        let told = self.gates[node].apply_if_living(&operation.address, &pre).await.unwrap();
        told.map(|told| told.outcome)
    }
}

async fn what_does_not_live_here_is_not_claimed(world: World) {
    let operation = world.operation();
    assert_eq!(world.go_on(0, &operation).await, None);
    assert_eq!(world.gates[0].remembered(&operation.address).await.unwrap(), None);
    let go = world.go(0, &operation).await;
    world.post(0, &operation, go.stamp, Report::Failure).await;
    let before = world.gates[1].remembered(&operation.address).await.unwrap();
    assert_eq!(world.go_on(1, &operation).await, None);
    assert_eq!(world.gates[1].find(&operation.address).await.unwrap(), None);
    assert_eq!(world.gates[1].remembered(&operation.address).await.unwrap(), before);
}

async fn what_lives_here_is_told_and_moved_as_ever(world: World) {
    let operation = world.operation();
    let go = world.go(0, &operation).await;
    assert!(matches!(world.go_on(1, &operation).await, Some(Outcome::InProgress { .. })));
    let success = Command::Post(post(go.stamp, Report::Success));
    let told = world.gates[1].apply_if_living(&operation.address, &success).await.unwrap().unwrap();
    assert!(matches!(told.outcome, Outcome::Posted(_)), "{told:?}");
    assert!(matches!(world.go_on(0, &operation).await, Some(Outcome::Duplicate(_))));
    assert_eq!(world.gates[0].find(&operation.address).await.unwrap().unwrap().record.state(), State::Succeeded);
}

async fn a_passed_lease_is_re_entered_by_exactly_one(world: World) {
    for _ in 0..20 {
        let operation = world.operation();
        world.passed(&operation, OnExpiry::Retry).await;
        let told = join_all((0..16).map(|caller| world.go_on(caller % 2, &operation))).await;
        let goes = told.iter().filter(|told| matches!(told, Some(Outcome::Go(go)) if go.reentry)).count();
        assert_eq!(goes, 1, "{told:?}");
    }
}

async fn of_those_who_go_on_when_it_fails_nobody_may_go(world: World) {
    for _ in 0..50 {
        let operation = world.operation();
        let go = world.go(0, &operation).await;
        let going_on = join_all((0..16).map(|caller| world.go_on(caller % 2, &operation)));
        let (told, _) = tokio::join!(going_on, world.post(0, &operation, go.stamp, Report::Failure));
        let is_refused = |told: &Option<Outcome>| matches!(told, None | Some(Outcome::InProgress { .. }));
        assert!(told.iter().all(is_refused), "{told:?}");
    }
}

async fn a_record_of_the_fallback_is_settled_once(world: World) {
    let operation = world.operation();
    let claim = operation.claim_with(|claim| claim.shelf = Shelf::Fallback);
    world.tell(0, &operation, &claim).await;
    let stored = world.gates[0].find(&operation.address).await.unwrap().unwrap();
    assert!(world.gates[0].settle(&operation.address, &stored).await.unwrap());
    assert!(!world.gates[1].settle(&operation.address, &stored).await.unwrap(), "it has changed since");
    let settled = world.gates[1].find(&operation.address).await.unwrap().unwrap();
    assert_eq!(settled.record.claimed_in, Shelf::Primary);
    assert_eq!(settled.record.phase, stored.record.phase);
    assert!(world.store().fallbacks(10).await.unwrap().iter().all(|(address, _)| *address != operation.address));
}
