//! The gate over HTTP: every row of its table of answers.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, beat, begun, embedded, forget, get, inspect_operation, post, pre, report, send};

const LONG: Duration = Duration::from_secs(20);

fn charge(contents: &Value) -> Value {
    json!({ "operation": "charge", "contents": contents })
}

/// Waits until the lease of the attempt has expired.
async fn lease_passes(node: &Node, go: &Answer) {
    let id = go.text("id");
    assert!(eventually(LONG, || async { inspect_operation(node, &id).await.body["ttl_ms"] == 0 }).await);
}

async fn batch(node: &Node, body: Value) -> Answer {
    post(format!("{}/v1/operations/pre/batch", node.base_url()), body.to_string()).await
}

#[tokio::test]
async fn one_pre_proceeds_the_next_is_refused_and_a_later_one_gets_the_result() {
    let node = embedded().await;
    let request = charge(&json!({ "order": 42, "amount": "19.90" }));
    let go = begun(&node, request.clone()).await;
    // `GET /openapi.json` shows this answer as an example.
    assert_eq!(go.text("id"), "7d88c00ddeafbae02d6198a43e38f30a");
    assert_eq!(go.body["attempt"], 1);
    assert!((59_000..=60_000).contains(&go.body["ttl_ms"].as_u64().unwrap()), "{}", go.body);
    assert!(go.text("expires_at").ends_with('Z'));
    for absent in ["durability", "reentry"] {
        assert!(go.body.get(absent).is_none(), "{}", go.body);
    }

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
async fn a_stamp_of_another_operation_proves_nothing() {
    let node = embedded().await;
    let (one, other) = (begun(&node, charge(&json!(1))).await, begun(&node, charge(&json!(2))).await);
    for stamp in [other.text("stamp"), "0".repeat(32)] {
        for verb in ["post", "heartbeat"] {
            let url = format!("{}/v1/operations/{}/{verb}", node.base_url(), one.text("id"));
            let mut body = json!({ "stamp": stamp });
            if verb == "post" {
                body["outcome"] = json!("success");
            }
            post(url, body.to_string()).await.assert_problem(403, "stamp-mismatch");
        }
    }
    assert_eq!(inspect_operation(&node, &one.text("id")).await.body["state"], "started");
}

#[tokio::test]
async fn an_operation_that_was_never_begun_is_404() {
    let node = embedded().await;
    let go = begun(&node, charge(&json!("x"))).await;
    for id in ["0".repeat(32), "nonsense".to_owned(), go.text("id").to_uppercase(), "%C3%A9".to_owned()] {
        let stamp = go.text("stamp");
        let base = format!("{}/v1/operations/{id}", node.base_url());
        let body = json!({ "stamp": stamp, "outcome": "success" }).to_string();
        post(format!("{base}/post"), body).await.assert_problem(404, "operation-not-found");
        post(format!("{base}/heartbeat"), json!({ "stamp": stamp }).to_string())
            .await
            .assert_problem(404, "operation-not-found");
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
    let shown = inspect_operation(&node, &go.text("id")).await.body;
    for (field, value) in [
        ("id", &go.body["id"]),
        ("operation", &json!("charge")),
        ("state", &json!("started")),
        ("attempt", &json!(1)),
        ("expires_at", &go.body["expires_at"]),
        ("on_expiry", &json!("block")),
        ("durability", &json!("fast")),
        ("suspected_double_runs", &json!(0)),
    ] {
        assert_eq!(&shown[field], value, "{field} in {shown}");
    }
    assert!(shown["created_at"].is_string() && shown["ttl_ms"].as_u64().unwrap() > 30_000, "{shown}");
    let text = shown.to_string();
    assert!(!text.contains("secret-name") && !text.contains(&go.text("stamp")), "{text}");
    report(&node, &go, json!({ "outcome": "success", "result": [1] })).await;
    let shown = inspect_operation(&node, &go.text("id")).await.body;
    assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!([1])));
    assert!(
        shown["ended_at"].is_string()
            && shown["expires_at"].is_string()
            && shown["ttl_ms"].as_u64().unwrap() > 86_000_000
    );
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
    let items = |numbers: &[u32]| numbers.iter().map(|number| charge(&json!(number))).collect::<Vec<_>>();
    let went = batch(&node, json!({ "operations": items(&[1, 2]) })).await;
    assert_eq!(went.status, 201, "{}", went.body);
    for item in went.body["items"].as_array().unwrap() {
        assert!(item["stamp"].is_string() && item["status"] == 201, "{item}");
    }
    let refused = batch(&node, json!({ "operations": items(&[3, 2, 4]) })).await;
    refused.assert_problem(409, "batch-refused");
    let codes: Vec<_> = refused.body["items"].as_array().unwrap().iter().map(|item| &item["code"]).collect();
    assert_eq!(codes, ["operation-not-claimed", "operation-in-progress", "operation-not-claimed"]);
    assert!(!refused.body.to_string().contains("\"stamp\""), "{}", refused.body);
    // The refused batch has claimed nothing.
    assert_eq!(batch(&node, json!({ "operations": items(&[3, 4]) })).await.status, 201);
}

#[tokio::test]
async fn a_batch_that_may_proceed_in_part_names_its_grants() {
    let node = embedded().await;
    let done = begun(&node, charge(&json!("done"))).await;
    report(&node, &done, json!({ "outcome": "success", "result": 7 })).await;
    let request = json!({ "operations": [charge(&json!("done")), charge(&json!("new"))], "all_or_nothing": false });
    let refused = batch(&node, request).await;
    refused.assert_problem(409, "batch-refused");
    let items = &refused.body["items"];
    assert_eq!((&items[0]["code"], &items[0]["result"]), (&json!("operation-duplicate"), &json!(7)));
    assert_eq!((&items[1]["status"], items[1].get("code")), (&json!(201), None));
    let url = format!("{}/v1/operations/{}/post", node.base_url(), items[1]["id"].as_str().unwrap());
    let body = json!({ "stamp": items[1]["stamp"], "outcome": "success" });
    assert_eq!(post(url, body.to_string()).await.status, 200);
}

#[tokio::test]
async fn a_repeated_batch_gets_its_stamps_again() {
    let node = embedded().await;
    let request = json!({ "operations": [
        { "operation": "charge", "contents": 1, "attempt_id": "mine" },
        { "operation": "charge", "contents": 2, "attempt_id": "mine" },
    ] });
    let (first, again) = (batch(&node, request.clone()).await, batch(&node, request).await);
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200), "{}", again.body);
    for index in 0..2 {
        assert_eq!(first.body["items"][index]["stamp"], again.body["items"][index]["stamp"]);
    }
}

#[tokio::test]
async fn operations_claimed_before_a_refused_batch_keep_their_owners() {
    let node = embedded().await;
    let mine = json!({ "operation": "charge", "contents": 1, "attempt_id": "mine" });
    let go = begun(&node, mine.clone()).await;
    begun(&node, charge(&json!(2))).await;
    let refused = batch(&node, json!({ "operations": [mine, charge(&json!(2)), charge(&json!(3))] })).await;
    refused.assert_problem(409, "batch-refused");
    let items = &refused.body["items"];
    assert_eq!((&items[0]["status"], &items[0]["stamp"]), (&json!(200), &go.body["stamp"]));
    assert_eq!(items[2]["code"], "operation-not-claimed");
    assert_eq!(report(&node, &go, json!({ "outcome": "success" })).await.status, 200);
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
async fn a_listing_filters_and_pages() {
    let node = embedded().await;
    let mut ids = Vec::new();
    for (operation, outcome) in [("a", None), ("a", Some("success")), ("a", Some("unknown")), ("b", Some("success"))] {
        let go = begun(&node, json!({ "operation": operation, "contents": ids.len() })).await;
        if let Some(outcome) = outcome {
            report(&node, &go, json!({ "outcome": outcome, "result": "r" })).await;
        }
        ids.push(go.text("id"));
    }
    let gone = begun(&node, charge(&json!("failed"))).await;
    report(&node, &gone, json!({ "outcome": "failure" })).await;
    for (query, expected) in [
        ("", &[0, 1, 2, 3][..]),
        ("operation=a", &[0, 1, 2]),
        ("state=started", &[0]),
        ("state=succeeded", &[1, 3]),
        ("state=succeeded&operation=b", &[3]),
        ("state=unknown", &[2]),
        ("state=vacant", &[]),
        ("suspect=true", &[]),
        ("suspect=false&limit=1", &[0, 1, 2, 3]),
        ("limit=2", &[0, 1, 2, 3]),
    ] {
        let mut listed = listed(&node, query).await;
        let mut expected: Vec<_> = expected.iter().map(|index: &usize| ids[*index].clone()).collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{query}");
    }
}

#[tokio::test]
async fn operations_are_listed_by_time_and_by_age() {
    let node = embedded().await;
    let mut begun_now = Vec::new();
    for number in 0..4 {
        begun_now.push(begun(&node, json!({ "operation": "a", "contents": number })).await);
    }
    // The present state of the first one begins last.
    report(&node, &begun_now[0], json!({ "outcome": "success" })).await;
    begun_now.rotate_left(1);
    let ids: Vec<String> = begun_now.iter().map(|go| go.text("id")).collect();
    let mut newest = ids.clone();
    newest.reverse();
    assert_eq!(listed(&node, "sort=oldest").await, ids);
    assert_eq!(listed(&node, "sort=newest").await, newest);
    assert_eq!(listed(&node, "sort=newest&state=started&limit=2").await, newest[1..3]);
    assert_eq!(listed(&node, "older_than_ms=3600000").await, [""; 0]);
    assert_eq!(listed(&node, "sort=oldest&older_than_ms=0&state=succeeded").await, newest[..1]);
    let refused = send(Client::new().get(format!("{}/v1/operations?sort=oldest&cursor=p", node.base_url()))).await;
    assert_eq!((refused.status.as_u16(), refused.text("field").as_str()), (400, "cursor"));
}

/// The ids on all pages. Results are not shown in a listing.
async fn listed(node: &Node, query: &str) -> Vec<String> {
    const PAGES_MAX: usize = 100;
    let mut ids = Vec::new();
    let mut cursor = String::new();
    for _ in 0..PAGES_MAX {
        let mut url: reqwest::Url = format!("{}/v1/operations?{query}", node.base_url()).parse().unwrap();
        if !cursor.is_empty() {
            url.query_pairs_mut().append_pair("cursor", &cursor);
        }
        let page = send(Client::new().get(url)).await;
        assert_eq!(page.status, 200, "{}", page.body);
        for operation in page.body["operations"].as_array().unwrap() {
            assert!(operation.get("result").is_none() && operation.get("stamp").is_none(), "{operation}");
            ids.push(operation["id"].as_str().unwrap().to_owned());
        }
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return ids,
        }
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
    let listed = get(&node, "/v1/operations").await;
    assert_eq!(listed.status, 200, "{}", listed.body);
    assert_eq!(listed.body["operations"].as_array().unwrap().len(), 1);
    assert_eq!(listed.body["operations"][0]["id"], good.body["id"]);
    assert_eq!(listed.body["unreadable"], json!([id]));
    let metrics = get(&node, "/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("latchgate_operations_unreadable_total 1"), "{metrics}");
    // An attempt may be running, so every pre is refused, and only `force` deletes the record.
    pre(&node, request("bad")).await.assert_problem(500, "state-unreadable");
    begun(&node, json!({ "operation": "charge", "contents": "next" })).await;
    inspect_operation(&node, &id).await.assert_problem(500, "state-unreadable");
    forget(&node, &id, "").await.assert_problem(500, "state-unreadable");
    let deleted = forget(&node, &id, "?force=true").await;
    assert_eq!(deleted.status.as_u16(), 200, "{}", deleted.body);
    assert_eq!(get(&node, "/v1/operations").await.body.get("unreadable"), None);
    begun(&node, request("bad")).await;
}
