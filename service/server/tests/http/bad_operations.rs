//! Requests that the gate refuses: the answer names the wrong field.

use reqwest::Client;
use serde_json::json;

use crate::client::{begun, embedded, get, post, pre, report, send};

#[tokio::test]
async fn fields_of_a_pre_that_are_wrong_are_named() {
    let node = embedded().await;
    for (field, value) in [
        ("operation", json!("")),
        ("operation", json!("o".repeat(257))),
        ("operation", json!("a\nb")),
        ("operation", json!(7)),
        ("operation", json!(null)),
        ("contents", json!(null)),
        ("attempt_id", json!("")),
        ("attempt_id", json!("a".repeat(257))),
        ("attempt_id", json!(7)),
        ("ttl_ms", json!(0)),
        ("ttl_ms", json!(999)),
        ("ttl_ms", json!(86_400_001)),
        ("ttl_ms", json!(-1)),
        ("ttl_ms", json!(1.5)),
        ("ttl_ms", json!("60000")),
        ("wait_ms", json!("1")),
        ("on_expiry", json!("retry-ish")),
        ("durability", json!("Fast")),
        ("on_outage", json!("open")),
        ("lease", json!(1_000)),
        ("stamp", json!("p0")),
    ] {
        let mut request = json!({ "operation": "charge", "contents": 1 });
        request[field] = value.clone();
        let answer = pre(&node, request).await;
        answer.assert_names(field);
    }
    for (request, field) in [(json!({ "contents": 1 }), "operation"), (json!({ "operation": "charge" }), "contents")] {
        let answer = pre(&node, request).await;
        answer.assert_names(field);
    }
    assert_eq!(get(&node, "/v1/operations").await.body["operations"], json!([]));
}

#[tokio::test]
async fn an_encoded_body_is_refused_and_says_which_encoding() {
    let node = embedded().await;
    for (encoding, body, status, code) in [
        ("gzip", b"\x1f\x8b\x08".as_slice(), 415, "unsupported-encoding"),
        ("br", b"{}", 415, "unsupported-encoding"),
        ("identity", b"{}", 200, ""),
        ("Identity", b"\xff\xfe{\0}\0", 400, "invalid-request"),
    ] {
        let url = format!("{}/v1/locks/k-{encoding}/acquire", node.base_url());
        let answer = send(Client::new().post(url).header("content-encoding", encoding).body(body)).await;
        assert_eq!(answer.status, status, "{encoding}");
        assert_eq!(answer.body["code"].as_str().unwrap_or_default(), code);
    }
}

#[tokio::test]
async fn probes_take_any_query() {
    let node = embedded().await;
    for path in ["/readyz?x=1", "/healthz?cache=0&cache=1", "/readyz?"] {
        assert_eq!(get(&node, path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn contents_without_one_form_are_refused_by_path() {
    let node = embedded().await;
    for (contents, path) in [
        (r#"{"a":1,"a":1}"#, ".a"),
        (r#"{"a":{"b c":[0,{"x":1,"\u0078":2}]}}"#, r#".a["b c"][1].x"#),
        ("9007199254740992", ""),
        ("-9007199254740992", ""),
        (r#"{"order":{"id":9007199254740993}}"#, ".order.id"),
        (r#"[1,[1e300]]"#, "[1][0]"),
        (r#"[1e400]"#, "[0]"),
        (r#"[123456789012345678901234567890]"#, "[0]"),
    ] {
        for field in ["contents", "checked"] {
            let other = if field == "checked" { r#","contents":1"# } else { "" };
            let body = format!(r#"{{"operation":"charge","{field}":{contents}{other}}}"#);
            let answer = post(format!("{}/v1/operations/pre", node.base_url()), body).await;
            answer.assert_names(&format!("{field}{path}"));
        }
        let body =
            format!(r#"{{"operations":[{{"operation":"o","contents":1}},{{"operation":"o","contents":{contents}}}]}}"#);
        let answer = post(format!("{}/v1/operations/pre/batch", node.base_url()), body).await;
        answer.assert_names(&format!("operations[1].contents{path}"));
        let body = format!(r#"{{"operation":"charge","contents":{contents}}}"#);
        let answer = post(format!("{}/v1/operations/preview", node.base_url()), body).await;
        answer.assert_problem(400, "invalid-request");
    }
    let deep = format!(r#"{{"operation":"o","contents":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    post(format!("{}/v1/operations/pre", node.base_url()), deep).await.assert_problem(400, "invalid-request");
    assert_eq!(get(&node, "/v1/operations").await.body["operations"], json!([]));
}

#[tokio::test]
async fn bodies_that_are_not_json_objects_are_refused() {
    let node = embedded().await;
    for path in ["pre", "pre/batch", "preview", "0123456789abcdef0123456789abcdef/post"] {
        let url = format!("{}/v1/operations/{path}", node.base_url());
        let twice = r#"{"operation":"a","operation":"b","contents":1}"#;
        for body in ["", "{}", "{", "nonsense", "[]", "7", "null", "{} {}", twice, r#"{"contents":}"#] {
            post(url.clone(), body).await.assert_problem(400, "invalid-request");
        }
        post(url.clone(), vec![b'{', 0xff, 0xfe]).await.assert_problem(400, "invalid-request");
        post(url, " ".repeat(500_000)).await.assert_problem(413, "body-too-large");
    }
    let not_utf8 = b"{\"operation\":\"o\",\"contents\":\"\xff\"}".to_vec();
    post(format!("{}/v1/operations/pre", node.base_url()), not_utf8).await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn fields_of_a_post_that_are_wrong_are_named() {
    let node = embedded().await;
    let go = begun(&node, json!({ "operation": "charge", "contents": 1 })).await;
    for (field, value) in [
        ("outcome", json!("done")),
        ("outcome", json!(null)),
        ("retention_ms", json!(0)),
        ("retention_ms", json!(365 * 86_400_000_u64 + 1)),
        ("retention_ms", json!("1000")),
        ("permanent", json!("yes")),
        ("resutl", json!(1)),
    ] {
        let mut body = json!({ "outcome": "success" });
        body[field] = value.clone();
        let answer = report(&node, &go, body).await;
        answer.assert_names(field);
    }
    let both = json!({ "outcome": "success", "permanent": true, "retention_ms": 5_000 });
    assert_eq!(report(&node, &go, both).await.body["field"], "retention_ms");
    let url = format!("{}/v1/operations/{}", node.base_url(), go.text("id"));
    for (verb, body, field) in [
        ("post", json!({ "outcome": "success" }), "stamp"),
        ("post", json!({ "stamp": go.body["stamp"] }), "outcome"),
        ("post", json!({ "stamp": "", "outcome": "success" }), "stamp"),
        ("heartbeat", json!({}), "stamp"),
        ("heartbeat", json!({ "stamp": "s".repeat(32) }), "stamp"),
        ("heartbeat", json!({ "stamp": go.body["stamp"], "ttl_ms": 10 }), "ttl_ms"),
        ("heartbeat", json!({ "stamp": go.body["stamp"], "outcome": "success" }), "outcome"),
    ] {
        let answer = post(format!("{url}/{verb}"), body.to_string()).await;
        answer.assert_names(field);
    }
    assert_eq!(get(&node, &format!("/v1/operations/{}", go.text("id"))).await.body["state"], "started");
}

#[tokio::test]
async fn items_of_a_batch_that_are_wrong_are_named() {
    let node = embedded().await;
    let url = format!("{}/v1/operations/pre/batch", node.base_url());
    let item = |number: usize| json!({ "operation": "o", "contents": number });
    let many = |count: usize| (0..count).map(item).collect::<Vec<_>>();
    for (body, field) in [
        (json!({}), "operations"),
        (json!({ "operations": [] }), "operations"),
        (json!({ "operations": many(101) }), "operations"),
        (json!({ "operations": [item(1), { "operation": "o" }] }), "operations[1].contents"),
        (json!({ "operations": [item(1), { "contents": 2 }] }), "operations[1].operation"),
        (json!({ "operations": [{ "operation": "o", "contents": 1, "wait_ms": 1 }] }), "operations[0].wait_ms"),
        (json!({ "operations": [{ "operation": "o", "contents": 1, "ttl_ms": 1 }] }), "operations[0].ttl_ms"),
        (json!({ "operations": [{ "operation": "o", "contents": 1, "leas_ms": 1 }] }), "operations[0].leas_ms"),
        (json!({ "operations": [item(1), item(2), item(1)] }), "operations[2].contents"),
        (json!({ "operations": [item(1)], "all_or_nothing": "yes" }), "all_or_nothing"),
        (json!({ "operations": [item(1)], "wait_ms": 1 }), "wait_ms"),
    ] {
        let answer = post(url.clone(), body.to_string()).await;
        answer.assert_names(field);
    }
    assert_eq!(post(url, json!({ "operations": many(100) }).to_string()).await.status, 201);
}

#[tokio::test]
async fn wrong_query_parameters_are_named() {
    let node = embedded().await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("state=done", "state"),
        ("suspect=maybe", "suspect"),
        ("operation=", "operation"),
        ("cursor=nonsense", "cursor"),
        ("stat=started", "stat"),
    ] {
        let answer = get(&node, &format!("/v1/operations?{query}")).await;
        answer.assert_names(field);
    }
    let id = "0".repeat(32);
    for (query, field) in [("force=maybe", "force"), ("forse=true", "forse")] {
        let url = format!("{}/v1/operations/{id}?{query}", node.base_url());
        let answer = send(Client::new().delete(url)).await;
        answer.assert_names(field);
    }
}
