//! Runs that were made while the gate was away are entered, and what an attempt says after its work is never refused for its form.

use latchgate_testkit::node::Node;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, begun, embedded, get, inspect_operation, post, pre, report, request};

async fn enter(node: &Node, attempt: &str, result: Value) -> Answer {
    let body = json!({
        "operation": "charge", "contents": 42, "attempt_id": attempt, "ran_at": "2026-11-20T10:37:51.926Z",
        "result": result, "label": "billing-7", "retention_ms": 5_000_000,
    });
    request(node, Method::POST, "/v1/operations/enter", body).await
}

fn charge() -> Value {
    json!({ "operation": "charge", "contents": 42 })
}

#[tokio::test]
async fn an_entered_run_has_succeeded_and_another_one_beside_it_is_counted() {
    let node = embedded().await;
    let entered = enter(&node, "a", json!({ "receipt": 7 })).await;
    assert_eq!((entered.status.as_u16(), &entered.body["double_run"]), (200, &json!(false)), "{}", entered.body);
    assert!((4_000_000..=5_000_100).contains(&entered.body["ttl_ms"].as_u64().unwrap()));
    let again = enter(&node, "a", json!({ "receipt": 7 })).await;
    assert_eq!((&again.body["replayed"], &again.body["double_run"]), (&json!(true), &json!(false)));
    let duplicate = pre(&node, charge()).await;
    duplicate.assert_problem(409, "operation-duplicate");
    assert_eq!((&duplicate.body["result"]["receipt"], &duplicate.body["label"]), (&json!(7), &json!("billing-7")));
    let shown = inspect_operation(&node, &entered.text("id")).await.body;
    assert_eq!([&shown["state"], &shown["created_at"]], ["succeeded", "2026-11-20T10:37:51.926Z"]);
    // Another run is counted once, and listed.
    for replayed in [Value::Null, json!(true)] {
        let second = enter(&node, "b", json!("second")).await.body;
        let shown = ["double_run", "suspected_double_runs", "replayed"].map(|field| second[field].clone());
        assert_eq!(shown, [json!(true), json!(1), replayed]);
    }
    assert_eq!(get(&node, "/v1/operations?suspect=true").await.body["operations"][0]["id"], entered.body["id"]);
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_is_dropped_and_the_success_recorded() {
    let node = embedded().await;
    let too_deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    let nothing_but_nul = format!("\"{}\"", r"\u0000".repeat(30_000));
    // The client itself may say that it has omitted it.
    for result in [r#""\ud800""#, r#"{"a":1e999}"#, &too_deep, &nothing_but_nul, r#"null,"result_omitted":true"#] {
        let charge = json!({ "operation": "charge", "contents": result.len() });
        let go = begun(&node, charge.clone()).await;
        let url = format!("{}/v1/operations/{}/post", node.base_url(), go.text("id"));
        let body = format!(r#"{{"stamp":"{}","outcome":"success","result":{result}}}"#, go.text("stamp"));
        let posted = post(url, body).await;
        assert_eq!((posted.status.as_u16(), &posted.body["result_omitted"]), (200, &json!(true)), "{}", posted.body);
        let duplicate = pre(&node, charge).await;
        assert_eq!((&duplicate.body["result"], &duplicate.body["result_omitted"]), (&Value::Null, &json!(true)));
    }
}

#[tokio::test]
async fn the_detail_of_an_unknown_outcome_is_shown_to_who_must_decide() {
    let node = embedded().await;
    let go = begun(&node, charge()).await;
    let detail = format!("exit 137\n\u{1b}[31m\u{0}{}", "é".repeat(2_000));
    assert_eq!(report(&node, &go, json!({ "outcome": "unknown", "detail": detail })).await.status, 200);
    let shown = inspect_operation(&node, &go.text("id")).await.text("detail");
    assert!(shown.starts_with("exit 137\n[31mé") && (2_047..=2_048).contains(&shown.len()), "{shown}");
    assert_eq!(get(&node, "/v1/operations").await.body["operations"][0]["detail"], shown);
    let key = "lgk_0123456789ab_c0ffee";
    let go = begun(&node, json!({ "operation": "charge", "contents": "leak" })).await;
    report(&node, &go, json!({ "outcome": "unknown", "detail": format!("with {key}") })).await;
    assert!(!inspect_operation(&node, &go.text("id")).await.text("detail").contains(key));
}
