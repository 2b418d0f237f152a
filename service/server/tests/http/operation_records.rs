//! What a person reads of an operation, and waiting for its outcome without claiming it.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::world::{Caller, operated};
use crate::client::{BIN, begun, embedded, get, inspect_operation, pre, report, request};

fn described(contents: &str) -> Value {
    json!({
        "operation": "charge", "contents": { "z": contents, "a": 1 }, "on_expiry": "block", "keep_contents": true,
        "label": "billing-7: invoice 42", "metadata": { "ticket": ["OPS-1", null] },
    })
}

fn assert_described(shown: &Value) {
    let said = described("x");
    assert_eq!((&shown["label"], &shown["metadata"]), (&said["label"], &said["metadata"]), "{shown}");
}

#[tokio::test]
async fn operations_and_refusals_show_how_the_attempt_described_itself() {
    let node = embedded().await;
    let go = begun(&node, described("x")).await;
    let busy = pre(&node, described("x")).await;
    busy.assert_problem(409, "operation-in-progress");
    assert_described(&busy.body);
    assert!(busy.body.get("contents").is_none(), "{}", busy.body);
    report(&node, &go, json!({ "outcome": "unknown" })).await;
    let unknown = pre(&node, json!({ "operation": "charge", "contents": { "a": 1.0, "z": "x" } })).await;
    unknown.assert_problem(409, "operation-unknown");
    assert_eq!((&unknown.body["why"], &unknown.body["attempt"]), (&json!("reported"), &json!(1)));
    assert_described(&unknown.body);
    report(&node, &go, json!({ "outcome": "success" })).await;
    let duplicate = pre(&node, described("x")).await;
    duplicate.assert_problem(409, "operation-duplicate");
    assert_described(&duplicate.body);

    let shown = inspect_operation(&node, &go.text("id")).await.body;
    assert_eq!(shown["contents"], described("x")["contents"]);
    assert_described(&shown);
    let listed = get(&node, "/v1/operations").await.body["operations"][0].clone();
    assert_described(&listed);
    assert!(listed.get("contents").is_none() && listed.get("result").is_none(), "{listed}");
}

#[tokio::test]
async fn without_an_outcome_a_wait_is_answered_as_a_pre_that_may_not_proceed() {
    let node = embedded().await;
    let go = begun(&node, json!({ "operation": "charge", "contents": 1, "label": "worker" })).await;
    for wait_ms in [0, 100] {
        let busy = inspect_operation(&node, &format!("{}?wait_ms={wait_ms}", go.text("id"))).await;
        busy.assert_problem(409, "operation-in-progress");
        assert!(busy.body["retry_after_ms"].is_u64() && busy.body["label"] == "worker", "{}", busy.body);
        assert!(busy.body["waited_ms"].as_u64().unwrap() >= wait_ms, "{}", busy.body);
    }
    // No attempt runs any more, so there is nothing to wait for.
    let short = begun(&node, json!({ "operation": "charge", "contents": 2, "ttl_ms": 1_000 })).await;
    let passed = inspect_operation(&node, &format!("{}?wait_ms=50000", short.text("id"))).await;
    passed.assert_problem(409, "operation-unknown");
    assert_eq!(passed.body["why"], "lease_passed");
}

#[tokio::test]
async fn a_record_says_who_claimed_it_and_which_operator_resolved_it_and_why() {
    let (node, operator) = operated().await;
    let worker = Caller::with(&node, json!({ "scopes": ["read", "operations"] })).await;
    let go = worker.ok(Method::POST, "/v1/operations/pre", described("x")).await;
    let path = format!("/v1/operations/{}", go.text("id"));
    let resolve = format!("{path}/resolve");
    let busy = worker.post("/v1/operations/pre", described("x")).await.body;
    let listed = worker.get("/v1/operations").await.body["operations"][0].clone();
    for shown in [worker.get(&path).await.body, busy, listed] {
        let claimed_by = json!({ "app": "default", "api_key": worker.id() });
        assert_eq!(shown["claimed_by"], claimed_by, "without its secret: {shown}");
    }
    let found_out =
        json!({ "outcome": "success", "result": { "receipt": 8 }, "reason": "the bank has it", "by": "ann" });
    operator.post(&resolve, found_out.clone()).await.assert_problem(409, "operation-in-progress");
    let unknown = json!({ "stamp": go.text("stamp"), "outcome": "unknown" });
    worker.ok(Method::POST, &format!("{path}/post"), unknown).await;
    worker.post(&resolve, found_out.clone()).await.assert_problem(403, "forbidden");
    for (field, body) in [
        ("reason", json!({ "outcome": "failure", "reason": "" })),
        ("result", json!({ "outcome": "failure", "reason": "no", "result": 1 })),
        ("retention_ms", json!({ "outcome": "success", "reason": "yes", "retention_ms": 1 })),
    ] {
        operator.post(&resolve, body).await.assert_names(field);
    }
    operator.ok(Method::POST, &resolve, found_out.clone()).await;
    assert_eq!(operator.ok(Method::POST, &resolve, found_out).await.body["replayed"], true);
    let resolved = json!({ "reason": "the bank has it", "by": "ann", "api_key": operator.id() });
    let duplicate = worker.post("/v1/operations/pre", described("x")).await;
    duplicate.assert_problem(409, "operation-duplicate");
    for shown in [worker.get(&path).await.body, duplicate.body] {
        assert_eq!((&shown["resolved"], &shown["result"]), (&resolved, &json!({ "receipt": 8 })), "{shown}");
        assert_described(&shown);
    }
    let failed = operator.post(&resolve, json!({ "outcome": "failure", "reason": "no" })).await;
    failed.assert_problem(409, "outcome-conflict");
    let log = node.log();
    assert!(log.contains("resolve-operation") && log.contains("the bank has it"), "{log}");
    assert!(!log.contains("invoice 42") && !log.contains("OPS-1"), "what may be secret is not logged: {log}");
}

/// Only a durable one can be permanent, which is refused before the work.
#[tokio::test]
async fn a_durable_operation_beside_a_redis_is_resolved_for_all_callers() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &shared_database().await, "--gate", &redis.url()]).await;
    let mut durable = json!({ "operation": "charge", "contents": 1, "permanent": true });
    pre(&node, durable.clone()).await.assert_names("permanent");
    durable["durability"] = json!("durable");
    let go = begun(&node, durable.clone()).await;
    assert_eq!(go.body.get("durability"), None, "it is not volatile");
    report(&node, &go, json!({ "outcome": "unknown" })).await;
    let path = format!("/v1/operations/{}/resolve", go.text("id"));
    let done = request(&node, Method::POST, &path, json!({ "outcome": "success", "reason": "seen" })).await;
    // What a pre has said holds for its end.
    assert_eq!((done.status.as_u16(), &done.body["permanent"]), (200, &json!(true)), "{}", done.body);
    pre(&node, durable).await.assert_problem(409, "operation-duplicate");
    assert_eq!(inspect_operation(&node, &go.text("id")).await.body["resolved"]["reason"], "seen");
}
