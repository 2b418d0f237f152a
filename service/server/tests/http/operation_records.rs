//! What a person reads of an operation, and waiting for its outcome without claiming it.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::access::world::{ADMIN, Caller, guarded, operated};
use crate::client::{Answer, BIN, begun, embedded, get, inspect_operation, pre, report, request};

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

async fn outcome(node: &Node, go: &Answer, wait_ms: u64) -> Answer {
    get(node, &format!("/v1/operations/{}?wait_ms={wait_ms}", go.text("id"))).await
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

    let text = Client::new().get(format!("{}/v1/operations/{}", node.base_url(), go.text("id"))).send().await.unwrap();
    let text = text.text().await.unwrap();
    assert!(text.contains(r#""contents":{"a":1,"z":"x"}"#), "the canonical contents: {text}");
    assert_described(&serde_json::from_str(&text).unwrap());
    let listed = get(&node, "/v1/operations").await.body["operations"][0].clone();
    assert_described(&listed);
    assert!(listed.get("contents").is_none() && listed.get("result").is_none(), "{listed}");
}

#[tokio::test]
async fn what_is_too_long_to_keep_is_refused_by_field_and_claims_nothing() {
    let node = embedded().await;
    let long = |field: &str, value: Value| json!({ "operation": "charge", "contents": "x", field: value });
    let kept = |length: usize| json!({ "operation": "charge", "contents": "x".repeat(length), "keep_contents": true });
    for (field, body) in [
        ("label", long("label", json!("x".repeat(257)))),
        ("label", long("label", json!("two\nlines"))),
        ("label", long("label", json!(""))),
        ("label", long("label", json!(format!("key {}", ADMIN)))),
        ("metadata", long("metadata", json!({ "a": "x".repeat(1_020) }))),
        ("contents", kept(16 * 1024 - 1)),
    ] {
        pre(&node, body).await.assert_names(field);
    }
    pre(&node, long("metadata", json!([1]))).await.assert_problem(400, "invalid-request");
    assert_eq!(get(&node, "/v1/operations").await.body["operations"], json!([]));
    // The quotes of the string count as two bytes.
    let go = begun(&node, kept(16 * 1024 - 2)).await;
    let shown = inspect_operation(&node, &go.text("id")).await.body;
    assert_eq!(shown["contents"].as_str().map(str::len), Some(16 * 1024 - 2));
    assert_eq!(report(&node, &go, json!({ "outcome": "success" })).await.status, 200);
}

#[tokio::test]
async fn the_claiming_api_key_is_shown_without_its_secret_and_only_to_its_app() {
    let node = guarded(&[]).await;
    let (mine, theirs) = (Caller::of_app(&node, "mine").await, Caller::of_app(&node, "theirs").await);
    let go = mine.ok(Method::POST, "/v1/operations/pre", described("x")).await;
    let path = format!("/v1/operations/{}", go.text("id"));
    let claimed_by = json!({ "app": "mine", "api_key": mine.id() });
    let shown = mine.get(&path).await;
    assert_eq!(shown.body["claimed_by"], claimed_by, "{}", shown.body);
    assert!(!shown.body.to_string().contains(&mine.key[17..]));
    assert_eq!(mine.get("/v1/operations").await.body["operations"][0]["claimed_by"], claimed_by);
    let busy = mine.post("/v1/operations/pre", described("x")).await;
    busy.assert_problem(409, "operation-in-progress");
    assert_eq!(busy.body["claimed_by"], claimed_by);
    theirs.get(&path).await.assert_problem(404, "operation-not-found");
    let log = node.log();
    assert!(!log.contains("invoice 42") && !log.contains("OPS-1"), "what may be secret is not logged: {log}");
}

#[tokio::test]
async fn without_an_outcome_a_wait_is_answered_as_a_pre_that_may_not_proceed() {
    let node = embedded().await;
    let go = begun(&node, json!({ "operation": "charge", "contents": 1, "label": "worker" })).await;
    for wait_ms in [0, 100] {
        let busy = outcome(&node, &go, wait_ms).await;
        busy.assert_problem(409, "operation-in-progress");
        assert!(busy.body["retry_after_ms"].is_u64() && busy.body["label"] == "worker", "{}", busy.body);
        assert!(busy.body["waited_ms"].as_u64().unwrap() >= wait_ms, "{}", busy.body);
    }
    // No attempt runs any more, so there is nothing to wait for.
    let short = begun(&node, json!({ "operation": "charge", "contents": 2, "ttl_ms": 1_000 })).await;
    let passed = outcome(&node, &short, 50_000).await;
    passed.assert_problem(409, "operation-unknown");
    assert_eq!(passed.body["why"], "lease_passed");
}

#[tokio::test]
async fn an_operator_resolves_unknown_outcomes_and_the_record_says_who_and_why() {
    let (node, operator) = operated().await;
    let worker = Caller::with(&node, json!({ "scopes": ["read", "operations"] })).await;
    let go = worker.ok(Method::POST, "/v1/operations/pre", described("x")).await;
    let path = format!("/v1/operations/{}", go.text("id"));
    let resolve = format!("{path}/resolve");
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
    assert!(node.log().contains("resolve-operation") && node.log().contains("the bank has it"), "{}", node.log());
}

#[tokio::test]
async fn a_durable_operation_beside_a_redis_is_resolved_for_all_callers() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &shared_database().await, "--gate", &redis.url()]).await;
    let durable = json!({ "operation": "charge", "contents": 1, "durability": "durable" });
    let go = begun(&node, durable.clone()).await;
    assert_eq!(go.body.get("durability"), None, "it is not volatile");
    report(&node, &go, json!({ "outcome": "unknown" })).await;
    let path = format!("/v1/operations/{}/resolve", go.text("id"));
    let found_out = json!({ "outcome": "success", "reason": "seen" });
    let done = request(&node, Method::POST, &path, found_out).await;
    assert_eq!(done.status, 200, "{}", done.body);
    pre(&node, durable).await.assert_problem(409, "operation-duplicate");
    assert_eq!(inspect_operation(&node, &go.text("id")).await.body["resolved"]["reason"], "seen");
}
