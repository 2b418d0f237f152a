//! Which API keys are accepted, and what each permits.

use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::world::{ADMIN, Caller, guarded, operated};
use crate::client::{acquire, embedded, get, granted, post, request, send};
use crate::raw::Raw;

#[tokio::test]
async fn without_api_keys_clients_need_none_but_a_wrong_one_is_refused() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    for key in ["nonsense", ADMIN] {
        Caller::new(&node, key).get("/v1/locks/k").await.assert_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn with_the_first_api_key_every_request_needs_one() {
    let node = embedded().await;
    let create = |body: Value| request(&node, Method::POST, "/v1/admin/api-keys", body);
    // With one of these as the first API key, no request could create another one.
    for scopes in [json!(["read", "locks", "operations"]), json!([])] {
        create(json!({ "scopes": scopes })).await.assert_problem(400, "invalid-request");
    }
    let waiting = crate::client::waiting(&node, "k", json!({ "wait_ms": 50_000 }));
    assert_eq!(waiting.await.unwrap().status, 200);
    let poll = crate::client::waiting(&node, "k", json!({ "wait_ms": 50_000 }));
    crate::client::until_waiting(&node, "k", 1).await;
    let created = create(json!({ "scopes": ["read", "locks", "admin"] })).await;
    assert_eq!(created.status, 201, "{}", created.body);
    poll.await.unwrap().assert_problem(401, "unauthorized");

    for (method, path) in [
        (Method::POST, "/v1/locks/k/acquire"),
        (Method::POST, "/v1/operations/pre"),
        (Method::GET, "/v1/me"),
        (Method::GET, "/no/such/path"),
    ] {
        let refused = request(&node, method, path, json!({})).await;
        refused.assert_problem(401, "unauthorized");
        assert_eq!(refused.headers["www-authenticate"], "Bearer realm=\"latchgate\"", "{path}");
    }
    for path in ["/", "/console/app.js", "/healthz", "/readyz", "/errors/unauthorized", "/openapi.json"] {
        assert_eq!(get(&node, path).await.status, 200, "{path}");
    }
    let caller = Caller::new(&node, &created.text("api_key"));
    assert!(caller.is_accepted().await);
    assert_eq!(caller.get("/metrics").await.status, 200);
    // That is for good, even if no API key is left.
    caller.revoke(caller.id()).await;
    acquire(&node, "other", json!({})).await.assert_problem(401, "unauthorized");
}

#[tokio::test]
async fn a_caller_can_ask_what_it_may_do() {
    let open = embedded().await;
    let all = json!(["read", "locks", "operations", "admin"]);
    let without_key = json!({ "app": "default", "scopes": all, "prefixes": [], "operator": true });
    assert_eq!(get(&open, "/v1/me").await.body, without_key);
    let node = guarded(&[]).await;
    assert_eq!(Caller::operator(&node).get("/v1/me").await.body["operator"], true);
    let permitted = json!({ "app": "jobs", "scopes": ["locks", "admin"], "prefixes": ["nightly/"] });
    let caller = Caller::with(&node, permitted.clone()).await;
    let mut expected = permitted;
    expected["api_key_id"] = caller.id().into();
    expected["operator"] = false.into();
    assert_eq!(caller.get("/v1/me").await.body, expected);
}

#[tokio::test]
async fn a_change_that_began_before_the_first_api_key_is_refused_after_it() {
    let node = embedded().await;
    let body = json!({ "scopes": ["read", "locks", "operations", "admin"] });
    let mut slow = Raw::connect(&node).await;
    let head = "POST /v1/admin/api-keys HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n";
    slow.send(format!("{head}content-length: {}\r\n\r\n", body.to_string().len())).await;
    slow.is_asked_for_the_body().await;
    let created = request(&node, Method::POST, "/v1/admin/api-keys", body.clone()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    slow.send(body.to_string()).await;
    assert_eq!(slow.answer().await.unwrap().status, 401);
    let keys = Caller::new(&node, &created.text("api_key")).get("/v1/admin/api-keys").await;
    assert_eq!(keys.body["api_keys"].as_array().unwrap().len(), 1, "{}", keys.body);
}

#[tokio::test]
async fn only_one_whole_bearer_key_in_the_header_is_accepted() {
    let node = guarded(&[]).await;
    let url = format!("{}/v1/locks", node.base_url());
    let get = |header: String| send(Client::new().get(&url).header("authorization", header));
    assert_eq!(get(format!("bearer  {ADMIN}")).await.status, 200);
    let mut guessed = ADMIN.to_owned();
    guessed.replace_range(20..21, if &ADMIN[20..21] == "0" { "1" } else { "0" });
    for header in [
        ADMIN.to_owned(),
        format!("Basic {ADMIN}"),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer {ADMIN}0"),
        format!("Bearer {}", ADMIN.to_uppercase()),
        format!("Bearer {guessed}"),
        format!("Bearer {}", "x".repeat(8_000)),
    ] {
        get(header).await.assert_problem(401, "unauthorized");
    }
    let twice = Client::new().get(&url).bearer_auth(ADMIN).header("authorization", format!("Bearer {guessed}"));
    send(twice).await.assert_problem(401, "unauthorized");
    // A guess learns nothing from the answer: neither whether the id exists, nor whether the secret is nearly right.
    let details = [guessed, format!("lgk_ffffffffffff_{}", &ADMIN[17..])].map(|key| Caller::new(&node, &key));
    let [one, other] = [details[0].get("/v1/locks").await, details[1].get("/v1/locks").await];
    assert_eq!(one.body, other.body);
}

#[tokio::test]
async fn an_api_key_in_a_url_is_refused_even_if_it_is_right() {
    let node = guarded(&["--access-log"]).await;
    let operator = Caller::operator(&node);
    for query in ["key", "api_key", "access_token", "prefix"] {
        let path = format!("/v1/locks?{query}={ADMIN}");
        get(&node, &path).await.assert_problem(400, "invalid-request");
        operator.get(&path).await.assert_problem(400, "invalid-request");
    }
    let encoded = ADMIN.replace('_', "%5F").replace('l', "%6c");
    for (method, path) in [
        (Method::DELETE, format!("/v1/admin/api-keys/{ADMIN}")),
        (Method::DELETE, format!("/v1/admin/api-keys/{encoded}")),
        (Method::PUT, format!("/v1/admin/api-keys/{encoded}")),
        (Method::POST, format!("/v1/admin/api-keys/{ADMIN}/revoke")),
        (Method::GET, format!("/v1/operations/{ADMIN}")),
        (Method::DELETE, format!("/v1/locks/{ADMIN}")),
        (Method::GET, format!("/{ADMIN}")),
        (Method::GET, format!("/v1/locks?key={encoded}")),
    ] {
        operator.call(method, &path, Value::Null).await.assert_problem(400, "invalid-request");
    }
    let prefix = operator.get("/v1/locks?prefix=lgk_jobs").await;
    assert_eq!(prefix.status, 200, "{}", prefix.body);
    operator.get("/v1/last").await;
    until("the log has the last request", || async { node.log().contains("/v1/last") }).await;
    assert!(!node.log().contains(&ADMIN[17..]));
}

#[tokio::test]
async fn an_api_key_in_a_field_or_name_that_others_are_shown_is_refused() {
    let node = guarded(&["--access-log"]).await;
    let operator = Caller::operator(&node);
    for (path, field, body) in [
        ("locks/k/acquire", "owner", json!({ "owner": ADMIN })),
        ("locks/k/acquire", "group", json!({ "mode": "permits", "limit": 1, "group": ADMIN })),
        ("locks/k/acquire", "metadata", json!({ "metadata": { "sent_with": { "key": [ADMIN] } } })),
        ("locks/k/acquire", "metadata", json!({ "metadata": { ADMIN: 1 } })),
        ("multilocks/acquire", "metadata", json!({ "locks": [{ "key": "k" }], "metadata": { "key": ADMIN } })),
        ("multilocks/acquire", "locks", json!({ "locks": [{ "key": ADMIN }] })),
        ("operations/pre", "operation", json!({ "operation": ADMIN, "contents": 1 })),
        ("operations/pre", "label", json!({ "operation": "o", "contents": 1, "label": ADMIN })),
        ("operations/pre", "metadata", json!({ "operation": "o", "contents": 1, "metadata": { "key": ADMIN } })),
        ("operations/pre", "contents", json!({ "operation": "o", "contents": [ADMIN], "keep_contents": true })),
        ("admin/apps", "app", json!({ "app": ADMIN })),
        ("admin/api-keys", "app", json!({ "app": ADMIN, "scopes": ["read"] })),
        ("admin/api-keys", "prefixes", json!({ "scopes": ["read"], "prefixes": [ADMIN] })),
    ] {
        let refused = operator.post(&format!("/v1/{path}"), body).await;
        refused.assert_names(field);
        assert!(!refused.body.to_string().contains(&ADMIN[17..]), "{}", refused.body);
    }
    let held = operator.post("/v1/locks/k/acquire", json!({ "lease_id": "mine" })).await;
    assert_eq!(held.status, 200, "nothing was granted: {}", held.body);
    let renewal = json!({ "lease_id": "mine", "metadata": { "key": ADMIN } });
    operator.post("/v1/locks/k/renew", renewal).await.assert_problem(400, "invalid-request");
    // Contents of which only hashes are stored may be anything.
    let go = operator.post("/v1/operations/pre", json!({ "operation": "o", "contents": [ADMIN] })).await;
    assert_eq!(go.status, 201, "{}", go.body);
    until("the log has the last request", || async { node.log().contains("/v1/operations/pre") }).await;
    assert!(!node.log().contains(&ADMIN[17..]));
}

#[tokio::test]
async fn an_api_key_with_prefixes_touches_only_their_locks() {
    let node = guarded(&[]).await;
    let all = Caller::with(&node, json!({ "app": "a", "scopes": ["read", "locks", "admin"] })).await;
    let scopes = json!(["read", "locks", "admin"]);
    let request = json!({ "app": "a", "scopes": scopes, "prefixes": ["jobs/", "reports/"] });
    let limited = Caller::with(&node, request).await;
    all.granted("other").await;
    all.granted("jobs").await;
    limited.granted("jobs%2F1").await;
    limited.granted("reports/1").await;
    let many = |first: &str, second: &str| json!({ "locks": [{ "key": first }, { "key": second }] });
    limited.ok(Method::POST, "/v1/multilocks/acquire", many("jobs/2", "reports/2")).await;
    for path in ["/v1/locks/jobs/1", "/v1/locks?prefix=jobs/", "/v1/locks?prefix=jobs/1", "/v1/locks/jobs%2F1/history"]
    {
        limited.ok(Method::GET, path, Value::Null).await;
    }
    let refused = |answer: crate::client::Answer| {
        answer.assert_problem(403, "forbidden");
        assert_eq!(answer.body["prefixes"], json!(["jobs/", "reports/"]));
    };
    for key in ["other", "jobs", "Jobs%2F1", "%2Fjobs%2F1", "jobs%252F1"] {
        for verb in ["acquire", "renew", "release", "revoke", "fence"] {
            refused(limited.post(&format!("/v1/locks/{key}/{verb}"), json!({})).await);
        }
        refused(limited.call(Method::PUT, &format!("/v1/locks/{key}/limit"), json!({ "limit": 1 })).await);
        refused(limited.call(Method::DELETE, &format!("/v1/locks/{key}"), Value::Null).await);
        for path in [format!("/v1/locks/{key}"), format!("/v1/locks/{key}/history"), format!("/v1/locks/{key}/events")]
        {
            refused(limited.get(&path).await);
        }
    }
    refused(limited.post("/v1/multilocks/acquire", many("jobs/3", "other")).await);
    for verb in ["renew", "release"] {
        let leases = ["jobs/3", "other"].map(|key| json!({ "key": key, "lease_id": "x" }));
        refused(limited.post(&format!("/v1/leases/{verb}"), json!({ "leases": leases })).await);
    }
    for path in ["/v1/locks", "/v1/locks?prefix=jobs", "/v1/locks?prefix=j", "/v1/events", "/v1/events?prefix=other"] {
        refused(limited.get(path).await);
    }
    let listed = limited.get("/v1/locks?prefix=jobs/").await;
    let keys: Vec<&Value> = listed.body["locks"].as_array().unwrap().iter().map(|lock| &lock["key"]).collect();
    assert_eq!(keys, ["jobs/1", "jobs/2"]);
}

#[tokio::test]
async fn an_expired_api_key_and_those_of_a_disabled_app_are_refused() {
    let (node, operator) = operated().await;
    let caller = Caller::of_app(&node, "a").await;
    let held = caller.granted("k").await.text("lease_id");
    let short = Caller::with(&node, json!({ "app": "a", "scopes": ["read"], "expires_in_ms": 1 })).await;
    until("the API key has expired", || async { short.get("/v1/locks").await.status == 401 }).await;
    let listed = operator.get("/v1/admin/api-keys?app=a").await;
    let state_of = |id: &str| {
        let keys = listed.body["api_keys"].as_array().unwrap();
        keys.iter().find(|key| key["id"] == id).unwrap()["state"].clone()
    };
    assert_eq!((state_of(short.id()), state_of(caller.id())), (json!("expired"), json!("active")));
    assert!(!listed.body.to_string().contains(&caller.key[17..]));

    operator.ok(Method::PATCH, "/v1/admin/apps/a", json!({ "disabled": true })).await;
    caller.get("/v1/locks").await.assert_problem(401, "unauthorized");
    assert!(operator.is_accepted().await);
    operator.ok(Method::POST, "/v1/admin/apps", json!({ "app": "a" })).await;
    // Nothing that it held is lost.
    caller.ok(Method::POST, "/v1/locks/k/release", json!({ "lease_id": held })).await;
    operator
        .call(Method::PATCH, "/v1/admin/apps/unknown", json!({ "disabled": true }))
        .await
        .assert_problem(404, "unknown-app");
}

#[tokio::test]
async fn wrong_requests_for_apps_and_api_keys_are_refused_by_field() {
    let (node, operator) = operated().await;
    for (field, body) in [
        ("scopes", json!({ "scopes": [] })),
        ("scopes", json!({})),
        ("scopes[0]", json!({ "scopes": ["everything"] })),
        ("app", json!({ "scopes": ["read"], "app": "" })),
        ("prefixes", json!({ "scopes": ["read"], "prefixes": [""] })),
        ("prefixes", json!({ "scopes": ["read"], "prefixes": vec!["p"; 17] })),
        ("expires_in_ms", json!({ "scopes": ["read"], "expires_in_ms": 0 })),
        ("expires", json!({ "scopes": ["read"], "expires": "90d" })),
    ] {
        let refused = operator.post("/v1/admin/api-keys", body).await;
        refused.assert_names(field);
    }
    operator
        .post("/v1/admin/api-keys", json!({ "scopes": ["read"], "app": "b" }))
        .await
        .assert_problem(404, "unknown-app");
    operator.post("/v1/admin/apps", json!({ "app": "x".repeat(65) })).await.assert_problem(400, "invalid-request");
    for id in ["ffffffffffff", "nonsense", &ADMIN[4..16]] {
        let path = format!("/v1/admin/api-keys/{id}");
        operator.call(Method::DELETE, &path, Value::Null).await.assert_problem(404, "unknown-api-key");
    }
    post(format!("{}/v1/admin/api-keys", node.base_url()), "{}").await.assert_problem(401, "unauthorized");
}

#[tokio::test]
async fn only_an_empty_app_is_deleted() {
    let (node, operator) = operated().await;
    let delete = || operator.call(Method::DELETE, "/v1/admin/apps/billing", Value::Null);
    delete().await.assert_problem(404, "unknown-app");
    operator.call(Method::DELETE, "/v1/admin/apps/default", Value::Null).await.assert_problem(400, "invalid-request");
    let caller = Caller::of_app(&node, "billing").await;
    delete().await.assert_problem(409, "app-not-empty");
    let lease = caller.granted("k").await;
    let go = caller.ok(Method::POST, "/v1/operations/pre", json!({ "operation": "a", "contents": 1 })).await;
    let post = format!("/v1/operations/{}/post", go.text("id"));
    let other = Caller::of_app(&node, "billing").await;
    operator.revoke(caller.id()).await;
    delete().await.assert_problem(409, "app-not-empty");
    other.ok(Method::POST, &post, json!({ "stamp": go.text("stamp"), "outcome": "failure" })).await;
    operator.revoke(other.id()).await;
    delete().await.assert_problem(409, "app-not-empty");
    // Without API keys, the lease is released by another one of the app.
    let last = Caller::of_app(&node, "billing").await;
    last.ok(Method::POST, "/v1/locks/k/release", json!({ "lease_id": lease.text("lease_id") })).await;
    operator.revoke(last.id()).await;
    // Another node may not know yet that the API key is revoked.
    let early = delete().await;
    early.assert_problem(409, "app-not-empty");
    assert!(early.text("detail").contains("less than 3 s ago"), "{}", early.body);
    until("the app is deleted", || async { delete().await.body == json!({ "app": "billing" }) }).await;
    delete().await.assert_problem(404, "unknown-app");
    let apps = operator.get("/v1/admin/apps").await.body["apps"].clone();
    assert!(apps.as_array().unwrap().iter().all(|app| app["app"] != "billing"), "{apps}");
    let keys = operator.get("/v1/admin/api-keys?app=billing").await;
    assert_eq!(keys.body["api_keys"], json!([]));
}

#[tokio::test]
async fn what_is_left_in_a_deleted_app_is_seen_and_ended_by_an_operator() {
    let (node, operator) = operated().await;
    operator.ok(Method::POST, "/v1/admin/apps", json!({ "app": "t3" })).await;
    // An operator's request whose body arrives after the deletion.
    let mut late = Raw::connect(&node).await;
    let head = "PUT /v1/locks/k/closed?app=t3 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 19";
    late.send(format!("{head}\r\nauthorization: Bearer {ADMIN}\r\n\r\n{{\"reason\":")).await;
    operator.ok(Method::DELETE, "/v1/admin/apps/t3", Value::Null).await;
    late.send("\"freeze\"}").await;
    assert_eq!(late.answer().await.unwrap().status, 200);
    assert_eq!(operator.get("/v1/locks/k?app=t3").await.body["closed"]["reason"], "freeze");
    operator.ok(Method::DELETE, "/v1/locks/k/closed?app=t3", Value::Null).await;
    assert_eq!(operator.get("/v1/locks?app=none").await.body["locks"], json!([]));
}

#[tokio::test]
async fn a_request_does_nothing_if_its_api_key_is_revoked_before_the_body_ends() {
    let node = guarded(&[]).await;
    let admin = json!({ "app": "billing", "scopes": ["read", "admin"] });
    let (operator, caller) = (Caller::operator(&node), Caller::with(&node, admin).await);
    let mut late = Raw::connect(&node).await;
    let head = "PUT /v1/locks/k/limit HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 11";
    late.send(format!("{head}\r\nauthorization: Bearer {}\r\n\r\n{{\"limit\":", caller.key)).await;
    operator.revoke(caller.id()).await;
    late.send("2}").await;
    assert_eq!(late.answer().await.unwrap().status, 401);
    assert_eq!(operator.get("/v1/locks/k?app=billing").await.body["limit"], Value::Null);
}

#[tokio::test]
async fn an_app_that_was_deleted_leaves_the_metrics() {
    let node = guarded(&["--open-metrics"]).await;
    let (operator, caller) = (Caller::operator(&node), Caller::of_app(&node, "billing").await);
    caller.get("/v1/locks").await;
    let metrics = async || Client::new().get(format!("{}/metrics", node.base_url())).send().await.unwrap().text().await;
    assert!(metrics().await.unwrap().contains(r#"app="billing""#));
    operator.revoke(caller.id()).await;
    until("the app is deleted", || async {
        operator.call(Method::DELETE, "/v1/admin/apps/billing", Value::Null).await.status == 200
    })
    .await;
    assert!(!metrics().await.unwrap().contains(r#"app="billing""#));
}

#[tokio::test]
async fn only_an_operator_sees_and_ends_the_locks_and_operations_of_another_app() {
    let (node, operator) = operated().await;
    let scopes = json!(["read", "locks", "operations", "admin"]);
    let billing = Caller::with(&node, json!({ "app": "billing", "scopes": scopes })).await;
    billing.granted("k").await;
    let go = billing.ok(Method::POST, "/v1/operations/pre", json!({ "operation": "a", "contents": 1 })).await;
    assert_eq!(operator.get("/v1/locks/k").await.body["held"], false);
    for path in ["/v1/locks/k?app=billing", "/v1/locks/k?app=bill%69ng"] {
        assert_eq!(operator.get(path).await.body["held"], true, "{path}");
    }
    let listed = operator.get("/v1/locks?held=true&app=billing&limit=5").await;
    assert_eq!(listed.body["locks"][0]["key"], "k", "{}", listed.body);
    assert_eq!(operator.get("/v1/locks/k/history?app=billing").await.body["events"][0]["kind"], "granted");
    let operations = operator.get("/v1/operations?app=billing&sort=oldest").await;
    assert_eq!(operations.body["operations"][0]["id"], go.body["id"]);
    // Of its own app, each caller may say so.
    assert_eq!(billing.get("/v1/locks/k?app=billing").await.body["held"], true);
    for path in ["/v1/locks?app=default", "/v1/events?app=default", "/v1/operations?app=none"] {
        billing.get(path).await.assert_problem(403, "forbidden");
    }
    billing.call(Method::DELETE, "/v1/locks/k?app=default", Value::Null).await.assert_problem(403, "forbidden");
    operator.get("/v1/locks?app=").await.assert_problem(400, "invalid-request");
    operator.get("/v1/locks?app=billing&app=default").await.assert_problem(400, "invalid-request");
    operator.get("/v1/locks?app=billing&nonsense=1").await.assert_problem(400, "invalid-request");
    operator.post("/v1/locks/k/acquire?app=billing", json!({})).await.assert_problem(400, "invalid-request");
    operator.ok(Method::POST, "/v1/locks/k/revoke?app=billing", json!({ "reason": "a deploy" })).await;
    let ended = operator.ok(Method::DELETE, "/v1/locks/k?app=billing&reason=stuck", Value::Null).await;
    assert_eq!(ended.body["ended"], 1);
    assert_eq!(billing.get("/v1/locks/k").await.body["held"], false);
    assert!(node.log().contains(r#"action="force" app="default""#) && node.log().contains("k of the app billing"));
    let forgotten = format!("/v1/operations/{}?force=true&app=billing", go.text("id"));
    operator.ok(Method::DELETE, &forgotten, Value::Null).await;
}
