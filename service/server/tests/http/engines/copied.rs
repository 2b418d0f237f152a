//! Switches from an engine that answers.

use latchgate_testkit::until;
use serde_json::json;

use super::world::{World, status, switch, switched, token, until_granting, until_serving};
use crate::client::{acquire, granted, inspect, release, renew, until_waiting, waiting};

const BOTH: [&str; 2] = ["pg", "one"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_waiters_tickets_and_ended_leases_survive_a_switch() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &BOTH, &["--ttl-max", "60s"]).await;
    let (here, there) = (&nodes[0], &nodes[1]);
    let held = granted(here, "k", json!({ "ttl_ms": 60_000, "delay_ms": 5 })).await;
    let over = granted(here, "over", json!({})).await.text("lease_id");
    assert_eq!(release(here, "over", &over).await.status, 200);
    let next = waiting(there, "k", json!({ "wait_ms": 40_000, "owner": "next" }));
    until_waiting(there, "k", 1).await;
    let ticket = acquire(here, "k", json!({ "lease_id": "third", "wait_ms": 100 })).await;
    ticket.assert_problem(423, "wait-timeout");
    let before = granted(here, "idle", json!({ "ttl_ms": 1_000 })).await.token();

    switched(there, "one").await;
    until_serving(here, "one").await;

    let renewed = renew(there, "k", &held.text("lease_id")).await;
    assert_eq!((renewed.status.as_u16(), renewed.token()), (200, held.token()), "{}", renewed.body);
    assert_eq!(renewed.body["durability"], "volatile", "it lives in Redis now");
    assert_eq!(release(there, "over", &over).await.body["already"], true);
    until_waiting(there, "k", 1).await;
    assert_eq!(release(here, "k", &held.text("lease_id")).await.status, 200);
    let next = next.await.unwrap();
    assert!(next.token() > held.token());
    let again = json!({ "lease_id": "third", "wait_ms": 10_000, "ticket": ticket.text("ticket") });
    let third = waiting(here, "k", again);
    until_waiting(here, "k", 1).await;
    assert_eq!(release(here, "k", &next.text("lease_id")).await.status, 200);
    assert_eq!(third.await.unwrap().status, 200);
    until("the lease ends", || async { inspect(here, "idle").await["held"] == false }).await;
    assert!(token(here, "idle").await > before);
}

/// So many states that a copy takes a while in a debug build.
const MANY: u64 = 150_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_whose_node_dies_half_way_is_completed_by_another() {
    let world = World::start(1).await;
    let mut nodes = world.nodes(2, &BOTH, &[]).await;
    // States of idle keys, as if they had been used.
    let fill = format!(
        "insert into latchgate.locks (app, key, version, replaces, keep_until, notice_at, state)
         select 'default', 'idle-' || n, n, 0, 9000000000000, null, '{{\"token\":1}}' from generate_series(1, {MANY}) n"
    );
    world.postgres.query(world.database_name(), &fill).await;
    let held = granted(&nodes[0], "k", json!({ "ttl_ms": 4_000 })).await;
    tokio::select! {
        answer = switch(&nodes[0], json!({ "engine": "one" })) => panic!("it was too fast: {}", answer.body),
        () = until("the copy has begun", async || status(&nodes[0]).await["engines"][1]["copied"].as_u64() > Some(0)) => {}
    }
    nodes[0].node.kill9();
    until_serving(&nodes[1], "one").await;
    let copied: u64 = world.redis[0].ask(&["ZCARD", "latchgate:index"]).trim().parse().unwrap();
    assert!(copied >= MANY, "{copied}");
    // Right after a switch, calls are refused until the node has looked at the store.
    until_granting(&nodes[1]).await;
    assert!(granted(&nodes[1], "k", json!({ "wait_ms": 20_000 })).await.token() > held.token());
}
