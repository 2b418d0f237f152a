//! Switches while the old engine answers.

use latchgate_testkit::eventually;
use serde_json::json;

use super::world::{LONG, Load, World, status, switch, switched, token, until_granting, until_serving};
use crate::client::{acquire, granted, look, release, renew, until_waiting, waiting};

const BOTH: [&str; 2] = ["pg", "one"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_there_and_back_under_load_shows_no_two_holders() {
    let world = World::start(1).await;
    let nodes = world.nodes(3, &BOTH, &[]).await;
    let load = Load::start(&nodes, 14);
    until_granting(&nodes[0]).await;
    switched(&nodes[1], "one").await;
    for wired in &nodes {
        until_serving(wired, "one").await;
        until_granting(wired).await;
    }
    switched(&nodes[2], "pg").await;
    for wired in &nodes {
        until_granting(wired).await;
    }
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_waiters_tickets_and_what_is_over_live_through_a_switch() {
    let world = World::start(1).await;
    let nodes = world.nodes(2, &BOTH, &["--ttl-ms-max", "60000"]).await;
    let (here, there) = (&nodes[0], &nodes[1]);
    let held = granted(&here.node, "k", json!({ "ttl_ms": 60_000, "delay_ms": 5 })).await;
    let over = granted(&here.node, "over", json!({})).await;
    assert_eq!(release(&here.node, "over", &over.text("lease_id")).await.status, 200);
    let next = waiting(&there.node, "k", json!({ "wait_ms": 40_000, "owner": "next" }));
    until_waiting(&there.node, "k", 1).await;
    let ask = json!({ "lease_id": "third", "wait_ms": 100 });
    let ticket = acquire(&here.node, "k", ask.clone()).await;
    ticket.assert_problem(423, "wait-timeout");
    let before = granted(&here.node, "idle", json!({ "ttl_ms": 100 })).await.token();

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
    let mut again = ask;
    again["ticket"] = ticket.body["ticket"].clone();
    again["wait_ms"] = json!(10_000);
    let third = waiting(&here.node, "k", again);
    until_waiting(&here.node, "k", 1).await;
    assert_eq!(release(&here.node, "k", &next.text("lease_id")).await.status, 200);
    assert_eq!(third.await.unwrap().status, 200);
    let frees = || async { look(&here.node, "idle").await["held"] == false };
    assert!(eventually(LONG, frees).await);
    assert!(token(here, "idle").await > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_had_when_it_was_left_does_not_come_back_with_it() {
    let world = World::start(1).await;
    let nodes = world.nodes(1, &BOTH, &["--ttl-ms-max", "600000"]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": 600_000 })).await;
    switched(&nodes[0], "one").await;
    assert_eq!(release(&nodes[0].node, "k", &held.text("lease_id")).await.status, 200);
    // The new engine forgets the key: as its collection would, long after.
    for key in world.redis[0].ask(&["KEYS", "*:l:*"]).lines() {
        world.redis[0].ask(&["DEL", key]);
    }
    switched(&nodes[0], "pg").await;
    renew(&nodes[0].node, "k", &held.text("lease_id")).await.assert_problem(410, "lease-lost");
    assert!(token(&nodes[0], "k").await > held.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_from_an_engine_grants_nothing_that_others_grant() {
    let world = World::start(1).await;
    let nodes = world.nodes(3, &BOTH, &[]).await;
    let load = Load::start(&nodes, 16);
    until_granting(&nodes[0]).await;
    // From the one that is active: others go on.
    nodes[0].cut("pg");
    until_granting(&nodes[1]).await;
    // From the one that is switched to: it cannot follow.
    nodes[2].cut("one");
    switched(&nodes[1], "one").await;
    until_serving(&nodes[0], "one").await;
    until_granting(&nodes[0]).await;
    acquire(&nodes[2].node, "k", json!({})).await.assert_problem(503, "store-unavailable");
    assert_ne!(status(&nodes[2]).await["phase"], "serving");
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_during_a_switch_says_nothing_untrue_afterwards() {
    let world = World::start(1).await;
    let mut nodes = world.nodes(2, &BOTH, &[]).await;
    let load = Load::start(&nodes, 12);
    until_granting(&nodes[1]).await;
    nodes[1].node.pause();
    switched(&nodes[0], "one").await;
    until_granting(&nodes[0]).await;
    nodes[1].node.resume();
    until_serving(&nodes[1], "one").await;
    until_granting(&nodes[1]).await;
    load.judged().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_whose_node_dies_half_way_is_brought_to_its_end_by_another() {
    let world = World::start(1).await;
    let mut nodes = world.nodes(2, &BOTH, &[]).await;
    let held = granted(&nodes[0].node, "k", json!({ "ttl_ms": 4_000 })).await;
    let begun = switch(&nodes[0], json!({ "engine": "one" }));
    let is_moving = || async { status(&nodes[1]).await["phase"] == "moving" };
    tokio::select! {
        answer = begun => panic!("it was too fast: {}", answer.body),
        moving = eventually(LONG, is_moving) => assert!(moving),
    }
    nodes[0].node.kill9();
    until_serving(&nodes[1], "one").await;
    assert!(granted(&nodes[1].node, "k", json!({ "wait_ms": 20_000 })).await.token() > held.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_goes_on_with_the_events_of_the_new_engine() {
    let world = World::start(1).await;
    let nodes = world.nodes(1, &BOTH, &[]).await;
    token(&nodes[0], "k").await;
    let history = async || crate::client::get(&nodes[0].node, "/v1/locks/k/history").await.body["events"].clone();
    let last = history().await[0]["id"].as_str().unwrap().to_owned();
    switched(&nodes[0], "one").await;
    let token = token(&nodes[0], "k").await;
    let url = format!("{}/v1/locks/k/events", nodes[0].node.base_url());
    let request = reqwest::Client::new().get(url).header("Last-Event-ID", last);
    let mut stream = request.send().await.unwrap();
    let mut text = String::new();
    while !text.contains("released") {
        let chunk = tokio::time::timeout(LONG, stream.chunk()).await.expect("events").unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("granted") && text.contains(&token.to_string()), "{text}");
}
