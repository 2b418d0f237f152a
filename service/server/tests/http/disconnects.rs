//! Clients that close their connections, or one side of them.

use serde_json::json;

use latchgate_testkit::until;

use crate::client::{embedded, granted, inspect, release, until_waiting, waiting};
use crate::raw::{Raw, getting, posting};

/// More than a node reads ahead.
const FLOOD_BYTES: usize = 4 << 20;

#[tokio::test]
async fn a_client_that_disconnects_leaves_the_queue_whatever_else_it_sent() {
    let node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let flood = getting("/healthz").repeat(FLOOD_BYTES / getting("/healthz").len());
    for behind in ["\r\n", &getting("/healthz"), "GET", &flood] {
        let mut gone = Raw::connect(&node).await;
        gone.send(posting("/v1/locks/k/acquire", &json!({ "owner": "gone", "wait_ms": 50_000 }))).await;
        until_waiting(&node, "k", 1).await;
        gone.send_at_once(behind.as_bytes());
        drop(gone);
        until_waiting(&node, "k", 0).await;
    }
    for behind in [String::new(), getting("/healthz")] {
        let mut client = Raw::connect(&node).await;
        client.send(posting("/v1/locks/k/acquire", &json!({ "wait_ms": 50_000 }))).await;
        until_waiting(&node, "k", 1).await;
        client.send(behind).await;
        client.half_close().await;
        until_waiting(&node, "k", 0).await;
        assert!(client.answer().await.is_none());
    }
    // The end of a body in chunks is seen late.
    let mut gone = Raw::connect(&node).await;
    let head = "POST /v1/locks/k/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    gone.send(format!("{head}11\r\n{{\"wait_ms\":50000}}\r\n0\r\n\r\n")).await;
    until_waiting(&node, "k", 1).await;
    drop(gone);
    until_waiting(&node, "k", 0).await;
    let next = waiting(&node, "k", json!({ "owner": "next", "wait_ms": 20_000 }));
    until_waiting(&node, "k", 1).await;
    release(&node, "k", &lease_id).await;
    assert_eq!(next.await.unwrap().body["owner"], "next");
}

#[tokio::test]
async fn requests_pipelined_behind_a_wait_are_answered_in_their_order() {
    let node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let mut client = Raw::connect(&node).await;
    client.send(posting("/v1/locks/k/acquire", &json!({ "owner": "first", "wait_ms": 50_000 }))).await;
    for number in 0..200 {
        client.send(posting(&format!("/v1/locks/k{number}/acquire"), &json!({ "owner": "then" }))).await;
    }
    client.send(getting("/v1/locks/k")).await;
    until_waiting(&node, "k", 1).await;
    release(&node, "k", &lease_id).await;
    assert_eq!(client.answer().await.unwrap().body["owner"], "first");
    for number in 0..200 {
        assert_eq!(client.answer().await.unwrap().body["key"], format!("k{number}"));
    }
    assert_eq!(client.answer().await.unwrap().body["holders"][0]["owner"], "first");
}

#[tokio::test]
async fn a_client_that_half_closes_gets_its_answers_or_holds_no_lock() {
    let node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    // What changes nothing for this client alone is answered, and so is what it has sent behind it.
    let mut client = Raw::connect(&node).await;
    client.send(posting("/v1/locks/k/renew", &json!({ "lease_id": lease_id }))).await;
    client.send(posting("/v1/locks/k/release", &json!({ "lease_id": lease_id }))).await;
    client.send(getting("/v1/locks/k")).await;
    client.send(getting("/healthz")).await;
    client.half_close().await;
    for _ in 0..4 {
        assert_eq!(client.answer().await.expect("an answer").status, 200);
    }
    assert!(client.answer().await.is_none());

    for number in 0..20 {
        let key = format!("k{number}");
        let mut client = Raw::connect(&node).await;
        client.send(posting(&format!("/v1/locks/{key}/acquire"), &json!({ "wait_ms": 1_000 * (number % 2) }))).await;
        client.half_close().await;
        match client.answer().await {
            Some(answer) => assert_eq!(answer.status, 200),
            None => {
                until(format!("{key} is given back"), || async { inspect(&node, &key).await["held"] == false }).await
            }
        }
    }
}

#[tokio::test]
async fn a_client_whose_machine_has_vanished_is_noticed_by_probes() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    let mut client = Raw::connect(&node).await;
    client.send(posting("/v1/locks/k/acquire", &json!({ "wait_ms": 50_000 }))).await;
    until_waiting(&node, "k", 1).await;
    // The timer of the node's socket: 02 is that of TCP's keep-alive probes.
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = format!("0100007F:{:04X} 0100007F:{:04X}", node.port(), client.port());
    let socket = sockets.lines().find(|line| line.contains(&ends)).expect("the node's socket");
    let timer = socket.split_whitespace().nth(5).unwrap();
    let (kind, left) = timer.split_once(':').unwrap();
    let left_ms = u64::from_str_radix(left, 16).unwrap() * 10;
    assert!(kind == "02" && left_ms <= 5_000, "{socket}");
}
