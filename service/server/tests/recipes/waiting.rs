//! long-wait.

use std::time::Duration;

use latchgate_testkit::eventually;

use crate::world::{Running, World};

async fn until_it_has_used_tickets(machine: &Running, times: usize) {
    let has = || std::future::ready(machine.errors().matches("still waiting").count() >= times);
    assert!(eventually(Duration::from_secs(60), has).await, "{}", machine.errors());
}

#[tokio::test]
async fn waiters_with_tickets_are_served_in_the_order_of_their_first_arrival() {
    // Positions stay reserved for long, so that a slow machine does not lose its own between two calls.
    let world = World::with(&["--ticket-hold-ms", "10000"]).await;
    world.hold("k", "holder", 0).await;
    let mut machines = Vec::new();
    for name in ["a", "b", "c"] {
        let args = ["k", "sh", "-c", "echo served $MACHINE >>log"];
        let machine = world.run_with(name, "long-wait", &args, &[("WAIT_MS", "500")]);
        until_it_has_used_tickets(&machine, 2).await;
        machines.push(machine);
    }
    world.release("k", "holder").await;
    for machine in &mut machines {
        machine.succeeds().await;
    }
    assert_eq!(world.logged("served"), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_wait_goes_on_through_a_restart_of_the_node() {
    let mut world = World::new().await;
    world.hold("k", "holder", 0).await;
    let mut machine = world.run_with("a", "long-wait", &["k", "touch", "served"], &[("WAIT_MS", "500")]);
    until_it_has_used_tickets(&machine, 1).await;
    world.node.kill9();
    world.node.start_again().await;
    world.release("k", "holder").await;
    machine.succeeds().await;
    assert!(world.path("served").exists());
}
