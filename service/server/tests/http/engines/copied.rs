//! Switches from an engine that answers.

use latchgate_testkit::eventually;
use serde_json::json;

use super::world::{LONG, World, check, load, status, switch, switched, token, until_granting, until_serving};
use crate::client::{acquire, granted, inspect, release, renew, until_waiting, waiting};

const BOTH: [&str; 2] = ["pg", "one"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_waiters_tickets_and_ended_leases_survive_a_switch() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &BOTH, &["--ttl-max", "60s"]).await;
    let (here, there) = (&nodes[0], &nodes[1]);
    let held = granted(&here.node, "k", json!({ "ttl_ms": 60_000, "delay_ms": 5 })).await;
    let over = granted(&here.node, "over", json!({})).await;
    assert_eq!(release(&here.node, "over", &over.text("lease_id")).await.status, 200);
    let next = waiting(&there.node, "k", json!({ "wait_ms": 40_000, "owner": "next" }));
    until_waiting(&there.node, "k", 1).await;
    let request = json!({ "lease_id": "third", "wait_ms": 100 });
    let ticket = acquire(&here.node, "k", request.clone()).await;
    ticket.assert_problem(423, "wait-timeout");
    let before = granted(&here.node, "idle", json!({ "ttl_ms": 1_000 })).await.token();

    switched(there, "one").await;
    until_serving(here, "one").await;

    let renewed = renew(&there.node, "k", &held.text("lease_id")).await;
    assert_eq!((renewed.status.as_u16(), renewed.token()), (200, held.token()), "{}", renewed.body);
    assert_eq!(renewed.body["durability"], "volatile", "it lives in Redis now");
    assert_eq!(release(&there.node, "over", &over.text("lease_id")).await.body["already"], true);
    until_waiting(&there.node, "k", 1).await;
    assert_eq!(release(&here.node, "k", &held.text("lease_id")).await.status, 200);
    let next = next.await.unwrap();
    assert_eq!(next.status, 200, "{}", next.body);
    assert!(next.token() > held.token());
    let mut again = request;
    again["ticket"] = ticket.body["ticket"].clone();
    again["wait_ms"] = json!(10_000);
    let third = waiting(&here.node, "k", again);
    until_waiting(&here.node, "k", 1).await;
    assert_eq!(release(&here.node, "k", &next.text("lease_id")).await.status, 200);
    assert_eq!(third.await.unwrap().status, 200);
    let frees = || async { inspect(&here.node, "idle").await["held"] == false };
    assert!(eventually(LONG, frees).await);
    assert!(token(here, "idle").await > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_states_of_an_engine_do_not_return_when_it_is_used_again() {
    let world = World::start(1).await;
    let nodes = world.nodes(1, &BOTH, &["--ttl-max", "10m"]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": 300_000 })).await;
    switched(&nodes[0], "one").await;
    assert_eq!(release(&nodes[0].node, "k", &held.text("lease_id")).await.status, 200);
    // The new engine removes the key, as its collection would do much later.
    for key in world.redis[0].ask(&["KEYS", "*:l:*"]).lines() {
        world.redis[0].ask(&["DEL", key]);
    }
    switched(&nodes[0], "pg").await;
    renew(&nodes[0].node, "k", &held.text("lease_id")).await.assert_problem(410, "lease-lost");
    assert!(token(&nodes[0], "k").await > held.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cut_off_from_an_engine_grants_no_lock_that_another_node_grants() {
    let world = World::start(1).await;
    let nodes = world.nodes(3, &BOTH, &[]).await;
    let load = load(&nodes);
    until_granting(&nodes[0]).await;
    // The node is cut off from the active engine. The other nodes continue.
    nodes[0].cut("pg");
    until_granting(&nodes[1]).await;
    // The node is cut off from the target of the switch, so it cannot follow.
    nodes[2].cut("one");
    switched(&nodes[1], "one").await;
    until_serving(&nodes[0], "one").await;
    until_granting(&nodes[0]).await;
    acquire(&nodes[2].node, "k", json!({})).await.assert_problem(503, "store-unavailable");
    assert!(status(&nodes[2]).await["active"].is_null());
    check(load).await;
}

/// So many states that a copy takes a while in a debug build.
const MANY: u64 = 30_000;

/// Writes states of idle keys into the active Postgres, as if they had been used.
async fn fill(world: &World) {
    let insert = format!(
        "insert into latchgate.locks (app, key, version, replaces, keep_until, notice_at, state)
         select 'default', 'idle-' || n, n, 0, 9000000000000, null, '{{\"token\":1}}' from generate_series(1, {MANY}) n"
    );
    world.postgres.query(world.database_name(), &insert).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_whose_node_dies_half_way_is_completed_by_another() {
    let world = World::start(1).await;
    let mut nodes = world.nodes(2, &BOTH, &[]).await;
    fill(&world).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": 4_000 })).await;
    let begun = switch(&nodes[0], json!({ "engine": "one" }));
    let is_copying = || async { status(&nodes[1]).await["engines"][1]["copied"].as_u64() > Some(0) };
    tokio::select! {
        answer = begun => panic!("it was too fast: {}", answer.body),
        copying = eventually(LONG, is_copying) => assert!(copying),
    }
    nodes[0].node.kill9();
    until_serving(&nodes[1], "one").await;
    let copied: u64 = world.redis[0].ask(&["ZCARD", "latchgate:index"]).trim().parse().unwrap();
    assert!(copied >= MANY, "{copied}");
    // Right after a switch, calls are refused until the node has looked at the store.
    until_granting(&nodes[1]).await;
    assert!(granted(&nodes[1].node, "k", json!({ "wait_ms": 20_000 })).await.token() > held.token());
}
