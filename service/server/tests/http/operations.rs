//! The gate over HTTP: every row of its table of answers.

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::client::{Answer, beat, begun, embedded, forget, get, inspect_operation, post, pre, report, request};

fn charge(contents: &Value) -> Value {
    json!({ "operation": "charge", "contents": contents })
}

fn batch(node: &Node, body: Value) -> impl Future<Output = Answer> {
    request(node, Method::POST, "/v1/operations/pre/batch", body)
}

/// `GET` shows the record without the stamp and the attempt id, and a preview stores nothing.
#[tokio::test]
async fn one_pre_proceeds_the_next_is_refused_and_a_later_one_gets_the_result() {
    let node = embedded().await;
    let mut request = charge(&json!({ "order": 42, "amount": "19.90" }));
    // `GET /openapi.json` shows this answer as an example.
    let id = "7d88c00ddeafbae02d6198a43e38f30a";
    let preview = post(format!("{}/v1/operations/preview", node.base_url()), request.to_string()).await;
    let expected = json!({
        "id": id, "sha256": "326d5f1705c659b11908bbfb9d0cdb99b72954f62f975e90ca8cd3464aee0169",
        "canonical": r#"{"amount":"19.90","order":42}"#,
    });
    assert_eq!(preview.body, expected);
    request["attempt_id"] = json!("secret-name");
    let go = begun(&node, request.clone()).await;
    assert_shown(&go.body, json!({ "id": id, "attempt": 1 }), &["stamp", "ttl_ms", "expires_at"]);
    assert!((59_000..=60_000).contains(&go.body["ttl_ms"].as_u64().unwrap()) && go.text("expires_at").ends_with('Z'));
    let mut record = json!({
        "id": id, "operation": "charge", "state": "started", "attempt": 1, "on_expiry": "block", "durability": "fast",
        "suspected_double_runs": 0, "expires_at": go.body["expires_at"],
    });
    let shown = inspect_operation(&node, id).await.body;
    assert_shown(&shown, record.clone(), &["created_at", "started_at", "ttl_ms"]);

    request.as_object_mut().unwrap().remove("attempt_id");
    let mut checked = request.clone();
    checked["checked"] = json!(7);
    pre(&node, checked).await.assert_problem(422, "contents-mismatch");
    let busy = pre(&node, request.clone()).await;
    busy.assert_problem(409, "operation-in-progress");
    let expected = json!({ "id": id, "attempt": 1, "expires_at": go.body["expires_at"], "retry_after_ms": 1_000 });
    assert_shown(&busy.body, expected, &[&PROBLEM[..], &["started_at", "ttl_ms", "waited_ms"]].concat());
    assert_eq!(busy.headers["retry-after"], "1");

    let result = json!({ "receipt": [7, null, "<b>"] });
    let done = report(&node, &go, json!({ "outcome": "success", "result": result })).await;
    assert_shown(&done.body, json!({ "id": id, "attempt": 1, "outcome": "success" }), &["ttl_ms", "expires_at"]);
    assert!(done.body["ttl_ms"].as_u64().unwrap() > 86_000_000);
    (record["state"], record["result"], record["expires_at"]) =
        (json!("succeeded"), result.clone(), done.body["expires_at"].clone());
    let shown = inspect_operation(&node, id).await.body;
    assert_shown(&shown, record, &["created_at", "ended_at", "ttl_ms"]);

    let duplicate = pre(&node, request).await;
    duplicate.assert_problem(409, "operation-duplicate");
    let expected = json!({ "id": id, "attempt": 1, "result": result, "expires_at": done.body["expires_at"] });
    assert_shown(&duplicate.body, expected, &[&PROBLEM[..], &["at", "ttl_ms"]].concat());
    let ended = beat(&node, &go, json!({})).await;
    ended.assert_problem(409, "operation-ended");
    assert_eq!(ended.body["recorded"], "success");
}

const PROBLEM: [&str; 5] = ["type", "title", "status", "detail", "code"];

/// Fails unless an answer has these fields and values, others with any value, and no more.
fn assert_shown(shown: &Value, mut expected: Value, others: &[&str]) {
    for field in others {
        assert!(!shown[field].is_null(), "no {field} in {shown}");
        expected[field] = shown[field].clone();
    }
    assert_eq!(*shown, expected);
}

#[tokio::test]
async fn an_expired_lease_is_re_entered_and_the_late_first_post_is_counted() {
    let node = embedded().await;
    let retried = json!({ "operation": "charge", "contents": "x", "ttl_ms": 1_000, "on_expiry": "retry" });
    let first = begun(&node, retried).await;
    let second = begun(&node, json!({ "operation": "charge", "contents": "x", "wait_ms": 20_000 })).await;
    assert_eq!((&second.body["attempt"], &second.body["reentry"]), (&json!(2), &json!(true)));
    let late = report(&node, &first, json!({ "outcome": "success" })).await;
    late.assert_problem(409, "operation-superseded");
    assert_eq!((&late.body["suspected_double_runs"], &late.body["attempt"]), (&json!(1), &json!(2)));
    beat(&node, &first, json!({})).await.assert_problem(409, "operation-superseded");
    assert_eq!(report(&node, &second, json!({ "outcome": "success" })).await.body["suspected_double_runs"], 1);
    let suspect = get(&node, "/v1/operations?suspect=true").await.body["operations"][0].clone();
    assert_eq!((&suspect["id"], &suspect["suspected_double_runs"]), (&first.body["id"], &json!(1)));
}

#[tokio::test]
async fn a_result_is_shown_as_it_was_posted() {
    let node = embedded().await;
    for (index, result) in ["1e300", "18446744073709551617", "{\"b\":1,\"a\":2}", "false"].iter().enumerate() {
        let go = begun(&node, charge(&json!(index))).await;
        let url = format!("{}/v1/operations/{}/post", node.base_url(), go.text("id"));
        let body = format!(r#"{{"stamp":"{}","outcome":"success","result":{result}}}"#, go.text("stamp"));
        assert_eq!(post(url, body).await.status, 200, "{result}");
        let url = format!("{}/v1/operations/{}", node.base_url(), go.text("id"));
        let text = Client::new().get(url).send().await.unwrap().text().await.unwrap();
        assert!(text.contains(&format!("\"result\":{result}")), "{text}");
    }
}

#[tokio::test]
async fn a_heartbeat_renews_a_lease_that_has_passed_and_says_so() {
    let node = embedded().await;
    let go = begun(&node, json!({ "operation": "charge", "contents": "x", "ttl_ms": 1_000 })).await;
    let id = go.text("id");
    until("the lease has passed", || async { inspect_operation(&node, &id).await.body["ttl_ms"] == 0 }).await;
    let revived = beat(&node, &go, json!({ "ttl_ms": 60_000 })).await;
    assert_eq!((&revived.body["attempt"], &revived.body["late"]), (&json!(1), &json!(true)), "{}", revived.body);
    assert!(revived.body["ttl_ms"].as_u64() > Some(50_000) && revived.text("expires_at") > go.text("expires_at"));
}

#[tokio::test]
async fn only_force_deletes_an_operation_that_may_have_been_done() {
    let node = embedded().await;
    let go = begun(&node, charge(&json!("x"))).await;
    let id = go.text("id");
    forget(&node, &id, "").await.assert_problem(409, "operation-in-progress");
    report(&node, &go, json!({ "outcome": "unknown" })).await;
    forget(&node, &id, "").await.assert_problem(409, "operation-unknown");
    assert_eq!(forget(&node, &id, "?force=true").await.body["was"], "unknown");
    forget(&node, &id, "").await.assert_problem(404, "operation-not-found");
}

#[tokio::test]
async fn a_batch_proceeds_whole_or_not_at_all() {
    let node = embedded().await;
    let item = |number: u32| json!({ "operation": "charge", "contents": number, "attempt_id": "mine" });
    let mine = json!({ "operations": [item(1), item(2)] });
    let [went, again] = [batch(&node, mine.clone()).await, batch(&node, mine).await];
    assert_eq!((went.status.as_u16(), again.status.as_u16()), (201, 200), "{}", again.body);
    for (went, again) in [0, 1].map(|at| (&went.body["items"][at], &again.body["items"][at])) {
        assert!(went["stamp"].is_string() && went["status"] == 201, "{went}");
        assert_eq!((&went["stamp"], &again["status"]), (&again["stamp"], &json!(200)));
    }
    // What was claimed before keeps its owner.
    begun(&node, charge(&json!("busy"))).await;
    let mut request = json!({ "operations": [item(3), item(2), item(4), charge(&json!("busy"))] });
    let refused = batch(&node, request.clone()).await;
    refused.assert_problem(409, "batch-refused");
    let refused = &refused.body["items"];
    let codes: Vec<_> = refused.as_array().unwrap().iter().map(|item| &item["code"]).collect();
    let not = json!("operation-not-claimed");
    assert_eq!(codes, [&not, &Value::Null, &not, &json!("operation-in-progress")]);
    assert_eq!((&refused[1]["status"], &refused[1]["stamp"]), (&json!(200), &went.body["items"][1]["stamp"]));
    assert_eq!(refused.to_string().matches("\"stamp\"").count(), 1, "{refused}");
    // The refused batch has claimed nothing, so a batch that may proceed in part gets what is free.
    request["all_or_nothing"] = json!(false);
    let refused = batch(&node, request).await;
    refused.assert_problem(409, "batch-refused");
    let statuses: Vec<_> = refused.body["items"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [201, 200, 201, 409]);
}

#[tokio::test]
async fn a_listing_filters_sorts_and_pages() {
    let node = embedded().await;
    let mut begun_now = Vec::new();
    for operation in ["a", "a", "b"] {
        begun_now.push(begun(&node, json!({ "operation": operation, "contents": begun_now.len() })).await);
    }
    for (number, outcome) in [(2, "success"), (0, "unknown")] {
        // Each state begins in a later millisecond.
        until("the states are older", || async { listed(&node, "older_than_ms=1").await.len() == 3 }).await;
        report(&node, &begun_now[number], json!({ "outcome": outcome, "result": "r" })).await;
    }
    for (query, expected) in [
        ("sort=oldest", &[1, 2, 0][..]),
        ("sort=newest", &[0, 2, 1]),
        ("sort=newest&operation=a&limit=1", &[0]),
        ("state=started", &[1]),
        ("state=succeeded", &[2]),
        ("state=unknown&operation=a", &[0]),
        ("state=vacant", &[]),
        ("suspect=true", &[]),
        ("older_than_ms=3600000", &[]),
    ] {
        let expected: Vec<_> = expected.iter().map(|number: &usize| begun_now[*number].text("id")).collect();
        assert_eq!(listed(&node, query).await, expected, "{query}");
    }
    let mut ids = listed(&node, "suspect=false&limit=1").await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
    get(&node, "/v1/operations?sort=oldest&cursor=p").await.assert_names("cursor");
}

/// The ids on all pages. Results are not shown in a listing.
async fn listed(node: &Node, query: &str) -> Vec<String> {
    let (mut ids, mut path) = (Vec::new(), format!("/v1/operations?{query}"));
    loop {
        let page = get(node, &path).await;
        assert_eq!(page.status, 200, "{}", page.body);
        for operation in page.body["operations"].as_array().unwrap() {
            assert!(operation.get("result").is_none() && operation.get("stamp").is_none(), "{operation}");
            ids.push(operation["id"].as_str().unwrap().to_owned());
        }
        let Some(cursor) = page.body["next_cursor"].as_str() else { return ids };
        path = format!("/v1/operations?{query}&cursor={cursor}");
    }
}

#[tokio::test]
async fn an_unreadable_operation_is_listed_apart_and_can_be_deleted() {
    let node = embedded().await;
    let request = |contents: &str| json!({ "operation": "charge", "contents": contents });
    let (good, bad) = (begun(&node, request("good")).await, begun(&node, request("bad")).await);
    let id = bad.text("id");
    let file = rusqlite::Connection::open(node.dir().join("latchgate.db")).unwrap();
    file.execute("update operations set state = '{damaged' where key = ?1", [&id]).unwrap();
    let listed = get(&node, "/v1/operations").await.body;
    let ids: Vec<_> = listed["operations"].as_array().unwrap().iter().map(|operation| &operation["id"]).collect();
    assert_eq!((ids, &listed["unreadable"]), (vec![&good.body["id"]], &json!([id])));
    crate::readiness::assert_metric(&node, "latchgate_operations_unreadable_total 1").await;
    forget(&node, &id, "").await.assert_problem(500, "state-unreadable");
    assert_eq!(forget(&node, &id, "?force=true").await.status, 200);
    assert_eq!(get(&node, "/v1/operations").await.body.get("unreadable"), None);
}
