//! The gate over HTTP: every row of its table of answers.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::client::{Answer, BIN, beat, begun, embedded, forget, get, inspect_operation, post, pre, report, request};

fn charge(contents: &Value) -> Value {
    json!({ "operation": "charge", "contents": contents })
}

/// Waits until the lease of the attempt has expired.
async fn lease_passes(node: &Node, go: &Answer) {
    let id = go.text("id");
    until("the lease has passed", || async { inspect_operation(node, &id).await.body["ttl_ms"] == 0 }).await;
}

fn batch(node: &Node, body: Value) -> impl Future<Output = Answer> {
    request(node, Method::POST, "/v1/operations/pre/batch", body)
}

#[tokio::test]
async fn one_pre_proceeds_the_next_is_refused_and_a_later_one_gets_the_result() {
    let node = embedded().await;
    let request = charge(&json!({ "order": 42, "amount": "19.90" }));
    let go = begun(&node, request.clone()).await;
    // `GET /openapi.json` shows this answer as an example.
    let [stamp, ttl_ms, expires_at] = ["stamp", "ttl_ms", "expires_at"].map(|field| &go.body[field]);
    let id = "7d88c00ddeafbae02d6198a43e38f30a";
    let expected = json!({ "id": id, "attempt": 1, "stamp": stamp, "ttl_ms": ttl_ms, "expires_at": expires_at });
    assert_eq!(go.body, expected);
    assert!((59_000..=60_000).contains(&go.body["ttl_ms"].as_u64().unwrap()) && go.text("expires_at").ends_with('Z'));

    let mut checked = request.clone();
    checked["checked"] = json!(7);
    pre(&node, checked).await.assert_problem(422, "contents-mismatch");
    let busy = pre(&node, request.clone()).await;
    busy.assert_problem(409, "operation-in-progress");
    assert_eq!((&busy.body["id"], &busy.body["attempt"]), (&go.body["id"], &json!(1)));
    assert!(busy.text("started_at") < busy.text("expires_at"));
    assert!(busy.body["ttl_ms"].as_u64().unwrap() > 30_000 && busy.body["waited_ms"].is_u64(), "{}", busy.body);
    assert_eq!((&busy.body["retry_after_ms"], &busy.headers["retry-after"]), (&json!(1_000), &"1".parse().unwrap()));
    assert!(!busy.body.to_string().contains(&go.text("stamp")));

    let result = json!({ "receipt": [7, null, "<b>"] });
    let done = report(&node, &go, json!({ "outcome": "success", "result": result })).await;
    assert_eq!((done.status.as_u16(), &done.body["outcome"]), (200, &json!("success")));
    assert!(done.body["ttl_ms"].as_u64().unwrap() > 86_000_000 && done.body["expires_at"].is_string());

    let duplicate = pre(&node, request).await;
    duplicate.assert_problem(409, "operation-duplicate");
    assert_eq!((&duplicate.body["result"], &duplicate.body["attempt"]), (&result, &json!(1)));
    assert_eq!(duplicate.body["expires_at"], done.body["expires_at"]);
    assert!(duplicate.body["at"].is_string() && duplicate.body.get("permanent").is_none());
    assert!(!duplicate.body.to_string().contains(&go.text("stamp")));
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
async fn a_stamp_of_another_operation_proves_nothing_and_an_unknown_id_is_404() {
    let node = embedded().await;
    let (one, other) = (begun(&node, charge(&json!(1))).await, begun(&node, charge(&json!(2))).await);
    let (id, stamp) = (one.text("id"), one.text("stamp"));
    let absent = ["0".repeat(32), "nonsense".to_owned(), id.to_uppercase(), "%C3%A9".to_owned()];
    let unknown = absent.iter().map(|id| (id, &stamp, 404, "operation-not-found"));
    let (other, random) = (other.text("stamp"), "0".repeat(32));
    let mismatches = [&other, &random].map(|stamp| (&id, stamp, 403, "stamp-mismatch"));
    for (id, stamp, status, code) in mismatches.into_iter().chain(unknown) {
        for (verb, body) in
            [("post", json!({ "stamp": stamp, "outcome": "success" })), ("heartbeat", json!({ "stamp": stamp }))]
        {
            let path = format!("/v1/operations/{id}/{verb}");
            request(&node, Method::POST, &path, body).await.assert_problem(status, code);
        }
    }
    assert_eq!(inspect_operation(&node, &id).await.body["state"], "started");
    for id in absent {
        inspect_operation(&node, &id).await.assert_problem(404, "operation-not-found");
        forget(&node, &id, "").await.assert_problem(404, "operation-not-found");
    }
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
async fn heartbeats_renew_the_lease_until_the_end() {
    let node = embedded().await;
    let go = begun(&node, json!({ "operation": "charge", "contents": "x", "ttl_ms": 1_000 })).await;
    lease_passes(&node, &go).await;
    let revived = beat(&node, &go, json!({ "ttl_ms": 60_000 })).await;
    assert_eq!((&revived.body["attempt"], &revived.body["late"]), (&json!(1), &json!(true)), "{}", revived.body);
    assert!(revived.body["ttl_ms"].as_u64() > Some(50_000) && revived.text("expires_at") > go.text("expires_at"));
    pre(&node, charge(&json!("x"))).await.assert_problem(409, "operation-in-progress");
    report(&node, &go, json!({ "outcome": "success" })).await;
    let ended = beat(&node, &go, json!({})).await;
    ended.assert_problem(409, "operation-ended");
    assert_eq!(ended.body["recorded"], "success");
}

#[tokio::test]
async fn a_record_is_shown_without_the_stamp_and_the_attempt_id() {
    let node = embedded().await;
    let request = json!({ "operation": "charge", "contents": "x", "attempt_id": "secret-name", "on_expiry": "block" });
    let go = begun(&node, request).await;
    let shown = async |varying: &[&str], state: &str| {
        let shown = inspect_operation(&node, &go.text("id")).await.body;
        let mut expected = json!({
            "id": go.body["id"], "operation": "charge", "state": state, "attempt": 1, "on_expiry": "block",
            "durability": "fast", "suspected_double_runs": 0,
        });
        varying.iter().for_each(|field| expected[field] = shown[field].clone());
        assert_eq!(shown, expected);
        shown
    };
    let started = shown(&["created_at", "started_at", "expires_at", "ttl_ms"], "started").await;
    assert_eq!(started["expires_at"], go.body["expires_at"]);
    assert!(started["created_at"].is_string() && started["ttl_ms"].as_u64() > Some(30_000), "{started}");
    report(&node, &go, json!({ "outcome": "success", "result": [1] })).await;
    let succeeded = shown(&["created_at", "ended_at", "expires_at", "ttl_ms", "result"], "succeeded").await;
    assert!(succeeded["ended_at"].is_string() && succeeded["ttl_ms"].as_u64() > Some(86_000_000), "{succeeded}");
    assert_eq!(succeeded["result"], json!([1]));
}

#[tokio::test]
async fn only_force_deletes_an_operation_that_may_have_been_done() {
    let node = embedded().await;
    for (outcome, code, was) in [
        (None, "operation-in-progress", "started"),
        (Some("unknown"), "operation-unknown", "unknown"),
        (Some("success"), "", "succeeded"),
    ] {
        let go = begun(&node, charge(&json!("x"))).await;
        if let Some(outcome) = outcome {
            report(&node, &go, json!({ "outcome": outcome })).await;
        }
        let id = go.text("id");
        if !code.is_empty() {
            forget(&node, &id, "").await.assert_problem(409, code);
        }
        let forgotten = forget(&node, &id, if code.is_empty() { "" } else { "?force=true" }).await;
        assert_eq!((forgotten.status.as_u16(), &forgotten.body["was"]), (200, &json!(was)));
        forget(&node, &id, "").await.assert_problem(404, "operation-not-found");
    }
}

#[tokio::test]
async fn a_batch_proceeds_whole_or_not_at_all() {
    let node = embedded().await;
    let items = |numbers: &[u32]| {
        let item = |number| json!({ "operation": "charge", "contents": number, "attempt_id": "mine" });
        json!({ "operations": numbers.iter().map(item).collect::<Vec<_>>() })
    };
    let went = batch(&node, items(&[1, 2])).await;
    let again = batch(&node, items(&[1, 2])).await;
    assert_eq!((went.status.as_u16(), again.status.as_u16()), (201, 200), "{}", again.body);
    for (went, again) in went.body["items"].as_array().unwrap().iter().zip(again.body["items"].as_array().unwrap()) {
        assert!(went["stamp"].is_string() && went["status"] == 201, "{went}");
        assert_eq!((&went["stamp"], &again["status"]), (&again["stamp"], &json!(200)));
    }
    // What was claimed before keeps its owner.
    begun(&node, charge(&json!("busy"))).await;
    let mut request = items(&[3, 2, 4]);
    request["operations"].as_array_mut().unwrap().push(charge(&json!("busy")));
    let refused = batch(&node, request).await;
    refused.assert_problem(409, "batch-refused");
    let refused = &refused.body["items"];
    let codes: Vec<_> = refused.as_array().unwrap().iter().map(|item| &item["code"]).collect();
    let not = json!("operation-not-claimed");
    assert_eq!(codes, [&not, &Value::Null, &not, &json!("operation-in-progress")]);
    assert_eq!((&refused[1]["status"], &refused[1]["stamp"]), (&json!(200), &went.body["items"][1]["stamp"]));
    assert_eq!(refused.to_string().matches("\"stamp\"").count(), 1, "{refused}");
    // The refused batch has claimed nothing.
    assert_eq!(batch(&node, items(&[3, 4])).await.status, 201);
}

#[tokio::test]
async fn a_batch_that_may_proceed_in_part_names_its_grants() {
    let node = embedded().await;
    let done = begun(&node, charge(&json!("done"))).await;
    report(&node, &done, json!({ "outcome": "success", "result": 7 })).await;
    let body = json!({ "operations": [charge(&json!("done")), charge(&json!("new"))], "all_or_nothing": false });
    let refused = batch(&node, body).await;
    refused.assert_problem(409, "batch-refused");
    let items = &refused.body["items"];
    assert_eq!((&items[0]["code"], &items[0]["result"]), (&json!("operation-duplicate"), &json!(7)));
    assert_eq!((&items[1]["status"], items[1].get("code")), (&json!(201), None));
    let path = format!("/v1/operations/{}/post", items[1]["id"].as_str().unwrap());
    let body = json!({ "stamp": items[1]["stamp"], "outcome": "success" });
    assert_eq!(request(&node, Method::POST, &path, body).await.status, 200);
}

#[tokio::test]
async fn a_preview_returns_the_id_and_stores_nothing() {
    let node = embedded().await;
    let url = format!("{}/v1/operations/preview", node.base_url());
    let body = r#"{"operation":"charge","contents":{"order":42,"amount":"19.90"}}"#;
    let preview = post(url, body).await;
    assert_eq!(
        preview.body,
        json!({
            "id": "7d88c00ddeafbae02d6198a43e38f30a",
            "sha256": "326d5f1705c659b11908bbfb9d0cdb99b72954f62f975e90ca8cd3464aee0169",
            "canonical": r#"{"amount":"19.90","order":42}"#,
        })
    );
    inspect_operation(&node, &preview.text("id")).await.assert_problem(404, "operation-not-found");
    let go = begun(&node, charge(&json!({ "order": 42, "amount": "19.90" }))).await;
    assert_eq!(go.body["id"], preview.body["id"]);
}

#[tokio::test]
async fn a_listing_filters_sorts_and_pages() {
    let node = embedded().await;
    let mut begun_now = Vec::new();
    for operation in ["a", "a", "a", "b"] {
        begun_now.push(begun(&node, json!({ "operation": operation, "contents": begun_now.len() })).await);
    }
    // The present state of the first one begins last.
    for (number, outcome) in [(3, "success"), (2, "unknown"), (0, "success")] {
        // Each state begins in a later millisecond.
        until("the states are older", || async { listed(&node, "older_than_ms=1").await.len() == 4 }).await;
        report(&node, &begun_now[number], json!({ "outcome": outcome, "result": "r" })).await;
    }
    let gone = begun(&node, charge(&json!("failed"))).await;
    report(&node, &gone, json!({ "outcome": "failure" })).await;
    for (query, expected, is_in_order) in [
        ("", &[0, 1, 2, 3][..], false),
        ("operation=a", &[0, 1, 2], false),
        ("state=started", &[1], false),
        ("state=succeeded", &[0, 3], false),
        ("state=succeeded&operation=b", &[3], false),
        ("state=unknown", &[2], false),
        ("state=vacant", &[], false),
        ("suspect=true", &[], false),
        ("suspect=false&limit=1", &[0, 1, 2, 3], false),
        ("limit=2", &[0, 1, 2, 3], false),
        ("sort=oldest", &[1, 3, 2, 0], true),
        ("sort=newest", &[0, 2, 3, 1], true),
        ("sort=newest&state=succeeded&limit=1", &[0], true),
        ("older_than_ms=3600000", &[], true),
        ("sort=oldest&older_than_ms=0&state=unknown", &[2], true),
    ] {
        let mut listed = listed(&node, query).await;
        let mut expected: Vec<_> = expected.iter().map(|number: &usize| begun_now[*number].text("id")).collect();
        if !is_in_order {
            listed.sort();
            expected.sort();
        }
        assert_eq!(listed, expected, "{query}");
    }
    get(&node, "/v1/operations?sort=oldest&cursor=p").await.assert_names("cursor");
}

/// The ids on all pages. Results are not shown in a listing.
async fn listed(node: &Node, query: &str) -> Vec<String> {
    const PAGES_MAX: usize = 100;
    let (mut ids, mut path) = (Vec::new(), format!("/v1/operations?{query}"));
    for _ in 0..PAGES_MAX {
        let page = get(node, &path).await;
        assert_eq!(page.status, 200, "{}", page.body);
        for operation in page.body["operations"].as_array().unwrap() {
            assert!(operation.get("result").is_none() && operation.get("stamp").is_none(), "{operation}");
            ids.push(operation["id"].as_str().unwrap().to_owned());
        }
        let Some(cursor) = page.body["next_cursor"].as_str() else { return ids };
        path = format!("/v1/operations?{query}&cursor={cursor}");
    }
    panic!("{query}: more than {PAGES_MAX} pages");
}

#[tokio::test]
async fn a_pre_says_if_its_claim_may_be_lost() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &shared_database().await, "--gate", &redis.url()]).await;
    let fast = json!({ "operation": "charge", "contents": 1, "attempt_id": "mine" });
    assert_eq!(begun(&node, fast.clone()).await.body["durability"], "volatile");
    assert_eq!(pre(&node, fast).await.body["durability"], "volatile");
    let durable = json!({ "operation": "charge", "contents": 2, "durability": "durable" });
    assert!(begun(&node, durable).await.body.get("durability").is_none());
    assert!(begun(&embedded().await, charge(&json!(1))).await.body.get("durability").is_none());
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
    // An attempt may be running, so every pre is refused, and only `force` deletes the record.
    pre(&node, request("bad")).await.assert_problem(500, "state-unreadable");
    begun(&node, json!({ "operation": "charge", "contents": "next" })).await;
    inspect_operation(&node, &id).await.assert_problem(500, "state-unreadable");
    forget(&node, &id, "").await.assert_problem(500, "state-unreadable");
    assert_eq!(forget(&node, &id, "?force=true").await.status, 200);
    assert_eq!(get(&node, "/v1/operations").await.body.get("unreadable"), None);
    begun(&node, request("bad")).await;
}
