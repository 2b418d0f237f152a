//! The limit of connections, and who gets one when there are few.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use serde_json::{Value, json};

use crate::access::world::{ADMIN, Caller, guarded};
use crate::client::{BIN, acquire, begun, get, granted, leases, many, pre, release, renew, until_waiting, waiting};
use crate::raw::{Raw, getting, posting};

/// A node with room for 10 connections, of which 8 may wait.
async fn small() -> Node {
    Node::start(BIN, &["--connections-max", "10"]).await
}

#[tokio::test]
async fn waits_leave_connections_for_holders_probes_and_operators() {
    let node = small().await;
    let lease_id = granted(&node, "k", json!({})).await.text("lease_id");
    begun(&node, json!({ "operation": "o", "contents": 1 })).await;
    let waits: Vec<_> = (0..8).map(|_| waiting(&node, "k", json!({ "wait_ms": 50_000 }))).collect();
    until_waiting(&node, "k", 8).await;

    // Further waits are refused at once, whatever they wait for. What does not wait is served.
    let refusals = [
        acquire(&node, "k", json!({ "wait_ms": 50_000 })).await,
        acquire(&node, "free", json!({ "wait_ms": 1 })).await,
        many(&node, "acquire", json!({ "locks": [{ "key": "k" }], "wait_ms": 50_000 })).await,
        pre(&node, json!({ "operation": "o", "contents": 1, "wait_ms": 50_000 })).await,
        get(&node, "/v1/events").await,
        get(&node, "/v1/locks/k/events").await,
    ];
    for refused in refusals {
        refused.assert_problem(503, "overloaded");
        assert!(refused.headers.contains_key("retry-after"));
    }
    acquire(&node, "k", json!({})).await.assert_problem(423, "lock-held");
    assert_eq!(renew(&node, "k", &lease_id).await.status, 200);
    for path in ["/healthz", "/readyz", "/v1/admin/engines"] {
        assert_eq!(get(&node, path).await.status, 200, "{path}");
    }
    assert_eq!(release(&node, "k", &lease_id).await.status, 200);
    until_waiting(&node, "k", 7).await;
    drop(waits);
}

#[tokio::test]
async fn a_wait_that_has_ended_makes_room_for_the_next() {
    let node = small().await;
    granted(&node, "k", json!({})).await;
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = Raw::connect(&node).await;
        assert_eq!(stream.status_of("/v1/events").await, 200);
        open.push(stream);
    }
    acquire(&node, "k", json!({ "wait_ms": 1 })).await.assert_problem(503, "overloaded");
    drop(open);
    until("the streams have ended", || async {
        acquire(&node, "k", json!({ "wait_ms": 1 })).await.code() == "wait-timeout"
    })
    .await;
    // Waits end with their answers, though their connections stay open.
    let mut client = Raw::connect(&node).await;
    for _ in 0..9 {
        client.send(posting("/v1/locks/k/acquire", &json!({ "wait_ms": 1 }))).await;
        assert_eq!(client.answer().await.unwrap().body["code"], "wait-timeout");
    }
    until("the wait has ended", || async { Raw::connect(&node).await.status_of("/v1/events").await == 200 }).await;
}

#[tokio::test]
async fn a_connection_whose_event_stream_has_ended_makes_room() {
    let node = guarded(&["--connections-max", "2", "--read-timeout", "10m"]).await;
    let reader = Caller::with(&node, json!({ "scopes": ["read"] })).await;
    let mut stream = Raw::connect(&node).await;
    let head = format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n", reader.key);
    stream.send(head).await;
    assert_eq!(stream.answer().await.unwrap().status, 200);
    Caller::operator(&node).revoke(reader.id()).await;
    stream.read_until("\r\n0\r\n\r\n").await;
    // It has been idle for longer than each of these.
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut other = Raw::connect(&node).await;
        other.is_served().await;
        others.push(other);
    }
    assert!(stream.answer().await.is_none());
}

/// A request whose body does not arrive.
const UNFINISHED: &str = "POST /v1/locks/k/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n{";

/// Also to a client that asks whether it may send the body.
#[tokio::test]
async fn a_refusal_before_the_body_is_sent_at_once_and_ends_the_connection() {
    let node = guarded(&["--read-timeout", "10m"]).await;
    let read_alone = Caller::with(&node, json!({ "scopes": ["read"] })).await.key;
    let with = |key: &str| format!("host: x\r\nauthorization: Bearer {key}\r\n");
    for (headers, length, status) in [
        ("host: x\r\n", "60000", 401),
        (&with(&read_alone), "60000", 403),
        ("host: evil.example\r\n", "60000", 403),
        (&with(ADMIN), "60000000", 413),
    ] {
        for expect in ["", "expect: 100-continue\r\n"] {
            let head = format!("{headers}{expect}");
            let mut client = Raw::connect(&node).await;
            client.send(UNFINISHED.replace("host: x\r\n", &head).replace("60000", length)).await;
            assert_eq!(client.answer().await.expect("an answer").status, status, "{expect}");
            assert!(client.answer().await.is_none(), "{status}: the node waits for the body");
        }
    }
}

/// Connections of one address, which are idle, or whose requests do not arrive.
#[tokio::test]
async fn many_connections_that_are_not_used_keep_no_other_client_out() {
    for request in ["", "GET /healthz HTTP/1.1\r\nhost:", UNFINISHED] {
        let node = Node::start(BIN, &["--connections-max", "20", "--read-timeout", "10m"]).await;
        let lease_id = granted(&node, "held", json!({})).await.text("lease_id");
        let wait = waiting(&node, "held", json!({ "wait_ms": 50_000 }));
        until_waiting(&node, "held", 1).await;
        let mut honest = Raw::connect(&node).await;
        honest.is_served().await;
        let mut many = Vec::new();
        for number in 0..100 {
            let mut client = Raw::connect_from([127, 0, 0, 2], &node).await;
            client.is_served().await;
            client.send(request).await;
            many.push(client);
            if number % 10 == 9 {
                assert_eq!(renew(&node, "held", &lease_id).await.status, 200);
            }
        }
        // It was idle all the time, and no wait was ended.
        honest.is_served().await;
        until_waiting(&node, "held", 1).await;
        wait.abort();
    }
}

#[tokio::test]
async fn clients_that_do_not_read_their_answers_keep_no_holder_out() {
    let keys: Vec<String> = (0..10).map(|key: u8| key.to_string().repeat(500)).collect();
    let locks: Value = keys.iter().map(|key| json!({ "key": key })).collect();
    let history = format!("/v1/locks/{}/history", keys[0]);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for path in ["/docs/swagger-ui-bundle.js", "/openapi.json", "/metrics", "/v1/locks", &history, "/v1/events"] {
        let node = Node::start(BIN, &["--connections-max", "10", "--read-timeout", "10m"]).await;
        let mut unread = Vec::new();
        for round in 1..=5 {
            let lease_id = round.to_string();
            let answer = many(&node, "acquire", json!({ "locks": locks, "lease_id": lease_id })).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            // The streams get the events of the rounds that follow. At the end, no more streams are let in.
            let path = if round == 5 && path == "/v1/events" { "/openapi.json" } else { path };
            let clients = if round == 1 || round == 5 { 7 } else { 0 };
            for _ in 0..clients {
                let mut client = Raw::connect_from([127, 0, 0, 2], &node).await;
                client.send(getting(path).repeat(400)).await;
                unread.push(client);
            }
            for verb in ["renew", "release"] {
                let answer = many(&node, verb, leases(&lease_id, &keys)).await;
                assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            }
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_used_is_not_closed_as_idle() {
    let node = Node::start(BIN, &["--read-timeout", "2s"]).await;
    let mut used = Raw::connect(&node).await;
    let began = std::time::Instant::now();
    // The looks for idle connections are a second apart. A busy machine answers each request in less than the time-out.
    while began.elapsed() < std::time::Duration::from_secs(4) {
        used.is_served().await;
    }
}

#[tokio::test]
async fn the_limits_fit_the_limit_of_open_files_and_are_logged_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let limited = Node::start(script(dir.path(), "ulimit -n 264", "\"$@\""), &[]).await;
    let given = Node::start(BIN, &["--connections-max", "50"]).await;
    for (node, connections, waits) in
        [(limited, "connections_max=64", "waits_max=51"), (given, "connections_max=50", "waits_max=40")]
    {
        let log = node.log();
        assert!(log.contains(connections) && log.contains(waits), "{log}");
    }
}

/// A program that runs the binary with `more` arguments, on all addresses of the machine.
pub fn on_all_addresses(dir: &Path, more: &str) -> PathBuf {
    script(dir, "", &format!("\"${{@/#127.0.0.1:/0.0.0.0:}}\" {more}"))
}

/// A program that runs the binary with `args`, after `first`.
fn script(dir: &Path, first: &str, args: &str) -> PathBuf {
    let path = dir.join("latchgate.sh");
    std::fs::write(&path, format!("#!/usr/bin/env bash\n{first}\nexec {BIN} {args}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
