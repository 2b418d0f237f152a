//! The queue of a lock.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Answer, acquire, embedded, granted, inspect, pre, release};

const LONG: Duration = Duration::from_secs(20);

/// Sends a waiting acquire and returns once it is in the queue.
async fn queued(node: &Node, key: &'static str, request: Value) -> tokio::task::JoinHandle<Answer> {
    let before = inspect(node, key).await["waiters"].as_u64().unwrap();
    let url = format!("{}/v1/locks/{key}/acquire", node.base_url());
    let waiting = tokio::spawn(async move { crate::client::post(url, request.to_string()).await });
    assert!(eventually(LONG, || async { inspect(node, key).await["waiters"].as_u64().unwrap() > before }).await);
    waiting
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_it_is_released() {
    let node = embedded().await;
    let first = granted(&node, "k", json!({})).await;
    let waiting = queued(&node, "k", json!({ "owner": "b", "wait_ms": 20_000 })).await;
    release(&node, "k", &first.text("lease_id")).await;
    let second = waiting.await.unwrap();
    assert_eq!((second.status.as_u16(), &second.body["owner"]), (200, &json!("b")));
    assert!(second.token() > first.token());
    assert!(second.body["waited_ms"].is_u64());
}

#[tokio::test]
async fn waiters_are_served_by_priority_then_in_order() {
    let node = embedded().await;
    let mut lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let mut waiting = Vec::new();
    for (owner, priority) in [("first", 1), ("second", 1), ("urgent", 5)] {
        let request = json!({ "owner": owner, "priority": priority, "wait_ms": 20_000 });
        waiting.push((owner, queued(&node, "k", request).await));
    }
    let mut served = Vec::new();
    while !waiting.is_empty() {
        release(&node, "k", &lease_id).await;
        assert!(eventually(LONG, || async { waiting.iter().any(|(_, task)| task.is_finished()) }).await);
        let index = waiting.iter().position(|(_, task)| task.is_finished()).unwrap();
        let (owner, task) = waiting.remove(index);
        lease_id = task.await.unwrap().text("lease_id");
        served.push(owner);
    }
    assert_eq!(served, ["urgent", "first", "second"]);
}

#[tokio::test]
async fn a_wait_times_out() {
    let node = embedded().await;
    granted(&node, "k", json!({ "owner": "a" })).await;
    let answer = acquire(&node, "k", json!({ "wait_ms": 150 })).await;
    answer.assert_problem(423, "wait-timeout");
    assert!(answer.body["waited_ms"].as_u64().unwrap() >= 150);
    assert_eq!((&answer.body["holders"][0]["owner"], &answer.body["position"]), (&json!("a"), &json!(1)));
    assert_eq!(inspect(&node, "k").await["waiters"], 0);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_the_queue_and_is_never_granted() {
    let node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let mut gone = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    let body = json!({ "owner": "gone", "wait_ms": 50_000 }).to_string();
    let head = format!("POST /v1/locks/k/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    gone.write_all(head.as_bytes()).await.unwrap();
    crate::client::until_waiting(&node, "k", 1).await;
    let behind = queued(&node, "k", json!({ "owner": "behind", "wait_ms": 20_000 })).await;
    drop(gone);
    crate::client::until_waiting(&node, "k", 1).await;
    release(&node, "k", &lease_id).await;
    assert_eq!(behind.await.unwrap().body["owner"], "behind");
}

#[tokio::test]
async fn a_request_without_a_wait_does_not_overtake_the_queue() {
    let node = embedded().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    let waiting = queued(&node, "k", json!({ "wait_ms": 20_000 })).await;
    acquire(&node, "k", json!({})).await.assert_problem(423, "lock-held");
    release(&node, "k", &lease_id).await;
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test]
async fn too_many_waiters_are_refused_at_once() {
    let node = Node::start(crate::client::BIN, &["--waiters-per-key", "1"]).await;
    granted(&node, "k", json!({})).await;
    let _waiting = queued(&node, "k", json!({ "wait_ms": 50_000 })).await;
    let refused = acquire(&node, "k", json!({ "wait_ms": 50_000 })).await;
    refused.assert_problem(503, "overloaded");
    assert!(refused.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_shutdown_ends_waits_without_the_lock_and_then_the_node() {
    let mut node = embedded().await;
    granted(&node, "k", json!({})).await;
    let waiting = queued(&node, "k", json!({ "wait_ms": 50_000 })).await;
    node.terminate();
    waiting.await.unwrap().assert_problem(423, "wait-timeout");
    assert!(node.wait_exit(LONG).await.is_some_and(|status| status.success()));
}

#[tokio::test]
async fn a_wait_that_is_longer_than_allowed_is_shortened_and_the_answer_says_so() {
    let node = Node::start(crate::client::BIN, &["--wait-max", "50ms"]).await;
    granted(&node, "k", json!({})).await;
    let begun = pre(&node, json!({ "operation": "o", "contents": 1 })).await;
    assert_eq!(begun.status, 201);
    for wait_ms in [51, 20_000, u64::MAX >> 12] {
        let body = json!({ "wait_ms": wait_ms });
        let refused = acquire(&node, "k", body.clone()).await;
        refused.assert_problem(423, "wait-timeout");
        assert!(refused.body["ticket"].is_string());
        let many =
            crate::client::many(&node, "acquire", json!({ "locks": [{ "key": "k" }], "wait_ms": wait_ms })).await;
        let pre = pre(&node, json!({ "operation": "o", "contents": 1, "wait_ms": wait_ms })).await;
        pre.assert_problem(409, "operation-in-progress");
        for answer in [&refused, &many, &pre] {
            assert_eq!(answer.body["wait_ms_max"], 50, "{}", answer.body);
        }
    }
    let short = acquire(&node, "k", json!({ "wait_ms": 1 })).await;
    assert!(short.code() == "wait-timeout" && short.body.get("wait_ms_max").is_none(), "{}", short.body);
    assert_eq!(acquire(&node, "free", json!({ "wait_ms": 20_000 })).await.status, 200);
}
