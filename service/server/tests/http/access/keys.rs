//! Which API keys are accepted, and what each permits.

use std::collections::BTreeMap;

use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::{ADMIN, Caller, guarded, operated};
use crate::client::{acquire, embedded, get, granted, http, leases, request, send, until_waiting, waiting};
use crate::raw::Raw;

#[tokio::test]
async fn with_the_first_api_key_every_request_needs_one() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    // Before it, clients need none, but a wrong one is refused.
    for key in ["nonsense", ADMIN] {
        Caller::new(&node, key).get("/v1/locks/k").await.assert_problem(401, "unauthorized");
    }
    let create = |body: Value| request(&node, Method::POST, "/v1/admin/api-keys", body);
    // With one of these as the first API key, no request could create another one.
    for scopes in [json!(["read", "locks", "operations"]), json!([])] {
        create(json!({ "scopes": scopes })).await.assert_problem(400, "invalid-request");
    }
    let poll = waiting(&node, "k", json!({ "wait_ms": 50_000 }));
    until_waiting(&node, "k", 1).await;
    let body = json!({ "scopes": ["read", "locks", "admin"] });
    let mut slow = Raw::before_body(&node, "POST /v1/admin/api-keys", "", &body).await;
    let created = create(body.clone()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    // A wait, and a change whose body arrives only now.
    poll.await.unwrap().assert_problem(401, "unauthorized");
    slow.send(body.to_string()).await;
    assert_eq!(slow.answer().await.unwrap().status, 401);

    // The test of scopes.rs has the endpoints.
    let refused = get(&node, "/no/such/path").await;
    refused.assert_problem(401, "unauthorized");
    assert_eq!(refused.headers["www-authenticate"], "Bearer realm=\"latchgate\"");
    for path in ["/", "/console/app.js", "/errors/unauthorized", "/docs/", "/docs/index.html", "/openapi.json"] {
        assert_eq!(get(&node, path).await.status, 200, "{path}");
    }
    let caller = Caller::new(&node, &created.text("api_key"));
    assert_eq!(caller.get("/v1/admin/api-keys").await.body["api_keys"].as_array().unwrap().len(), 1);
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
    let mut permitted = json!({ "app": "jobs", "scopes": ["locks", "admin"], "prefixes": ["nightly/"] });
    let caller = Caller::with(&node, permitted.clone()).await;
    permitted["api_key_id"] = caller.id().into();
    permitted["operator"] = false.into();
    assert_eq!(caller.get("/v1/me").await.body, permitted);
}

#[tokio::test]
async fn only_one_whole_bearer_key_in_the_header_is_accepted() {
    let node = guarded(&[]).await;
    let get = |headers: &[&str]| {
        let request = http().get(format!("{}/v1/locks", node.base_url()));
        send(headers.iter().fold(request, |request, header| request.header("authorization", *header)))
    };
    let right = format!("bearer  {ADMIN}");
    assert_eq!(get(&[&right]).await.status, 200);
    // A guess learns nothing from the answer: neither whether the id exists, nor whether the secret is nearly right.
    let (guessed, unknown) =
        (ADMIN.replacen("_c0ffee", "_d0ffee", 1), ADMIN.replacen("0123456789ab", "ffffffffffff", 1));
    let guesses = [get(&[&format!("Bearer {guessed}")]).await, get(&[&format!("Bearer {unknown}")]).await];
    assert_eq!(guesses[0].body, guesses[1].body);
    let long = format!("Bearer {}", "x".repeat(8_000));
    for headers in [&[ADMIN][..], &[&format!("Basic {ADMIN}")], &["Bearer"], &["Bearer "], &[&long], &[&right, &right]]
    {
        get(headers).await.assert_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn an_api_key_in_a_url_is_refused_even_if_it_is_right() {
    let node = guarded(&["--access-log"]).await;
    let operator = Caller::operator(&node);
    get(&node, &format!("/v1/locks?key={ADMIN}")).await.assert_problem(400, "invalid-request");
    let encoded = ADMIN.replace('_', "%5F").replace('l', "%6c");
    for (method, path) in [
        (Method::GET, "/v1/locks?key="),
        (Method::DELETE, "/v1/admin/api-keys/"),
        (Method::PUT, "/v1/admin/api-keys/"),
        (Method::GET, "/v1/operations/"),
        (Method::GET, "/"),
    ] {
        for key in [ADMIN, &encoded] {
            let refused = operator.call(method.clone(), &format!("{path}{key}"), Value::Null).await;
            refused.assert_problem(400, "invalid-request");
        }
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
        ("locks/k/renew", "metadata", json!({ "lease_id": "mine", "metadata": { "key": ADMIN } })),
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
    operator.granted("k").await;
    // Contents of which only hashes are stored may be anything.
    operator.begun(json!({ "operation": "o", "contents": [ADMIN] })).await;
    until("the log has the last request", || async { node.log().contains("/v1/operations/pre") }).await;
    assert!(!node.log().contains(&ADMIN[17..]));
}

/// The tests of scopes.rs have each endpoint, and core has the rule.
#[tokio::test]
async fn an_api_key_with_prefixes_touches_only_their_locks() {
    let node = guarded(&[]).await;
    Caller::of_app(&node, "a").await.granted("jobs").await;
    let request = json!({ "app": "a", "scopes": ["read", "locks", "admin"], "prefixes": ["jobs/", "reports/"] });
    let limited = Caller::with(&node, request).await;
    limited.granted("jobs%2F1").await;
    let many = |second: &str| json!({ "locks": [{ "key": "jobs/2" }, { "key": second }] });
    limited.ok(Method::POST, "/v1/multilocks/acquire", many("reports/2")).await;
    for refused in [
        limited.post("/v1/multilocks/acquire", many("other")).await,
        limited.post("/v1/leases/renew", leases("x", &["jobs/3", "other"])).await,
        limited.post("/v1/leases/release", leases("x", &["jobs/3", "other"])).await,
        limited.acquire("%2Fjobs%2F1", json!({})).await,
        limited.acquire("jobs%252F1", json!({})).await,
        limited.get("/v1/locks?prefix=jobs").await,
    ] {
        refused.assert_problem(403, "forbidden");
        assert_eq!(refused.body["prefixes"], json!(["jobs/", "reports/"]));
    }
    let listed = limited.get("/v1/locks?prefix=jobs/").await;
    let keys: Vec<&Value> = listed.body["locks"].as_array().unwrap().iter().map(|lock| &lock["key"]).collect();
    assert_eq!(keys, ["jobs/1", "jobs/2"]);
}

#[tokio::test]
async fn an_expired_api_key_is_refused_and_listed_without_its_secret() {
    let (node, operator) = operated().await;
    let caller = Caller::of_app(&node, "a").await;
    let short = Caller::with(&node, json!({ "app": "a", "scopes": ["read"], "expires_in_ms": 1 })).await;
    until("the API key has expired", || async { short.get("/v1/locks").await.status == 401 }).await;
    let listed = operator.get("/v1/admin/api-keys?app=a").await.body;
    let states = listed["api_keys"].as_array().unwrap().iter().map(|key| [&key["id"], &key["state"]]);
    let states: BTreeMap<_, _> = states.map(|shown| shown.map(|text| text.as_str().unwrap()).into()).collect();
    assert_eq!(states, BTreeMap::from([(caller.id(), "active"), (short.id(), "expired")]));
    assert!(!listed.to_string().contains(&caller.key[17..]));
}

/// The test of bad_input.rs has what the description rules out.
#[tokio::test]
async fn unknown_apps_and_api_keys_are_refused() {
    let (_node, operator) = operated().await;
    for (method, path, body, code) in [
        (Method::PATCH, "apps/unknown", json!({ "disabled": true }), "unknown-app"),
        (Method::DELETE, "apps/unknown", Value::Null, "unknown-app"),
        (Method::POST, "api-keys", json!({ "scopes": ["read"], "app": "b" }), "unknown-app"),
        (Method::DELETE, "api-keys/nonsense", Value::Null, "unknown-api-key"),
        // Of the configuration.
        (Method::DELETE, &format!("api-keys/{}", &ADMIN[4..16]), Value::Null, "unknown-api-key"),
    ] {
        operator.call(method, &format!("/v1/admin/{path}"), body).await.assert_problem(404, code);
    }
    let empty = json!({ "scopes": ["read"], "prefixes": [""] });
    operator.post("/v1/admin/api-keys", empty).await.assert_names("prefixes");
}

#[tokio::test]
async fn only_an_empty_app_is_deleted_and_it_leaves_the_metrics() {
    let (node, operator) = operated().await;
    let delete = || operator.call(Method::DELETE, "/v1/admin/apps/billing", Value::Null);
    operator.call(Method::DELETE, "/v1/admin/apps/default", Value::Null).await.assert_problem(400, "invalid-request");
    let caller = Caller::of_app(&node, "billing").await;
    delete().await.assert_problem(409, "app-not-empty");
    let lease = caller.granted("k").await;
    let go = caller.begun(json!({ "operation": "a", "contents": 1 })).await;
    let post = format!("/v1/operations/{}/post", go.text("id"));
    // Without API keys, the lease and the attempt are ended by another one of the app.
    let ends = [
        (post, json!({ "stamp": go.text("stamp"), "outcome": "failure" })),
        ("/v1/locks/k/release".to_owned(), json!({ "lease_id": lease.text("lease_id") })),
    ];
    operator.revoke(caller.id()).await;
    for (path, body) in ends {
        delete().await.assert_problem(409, "app-not-empty");
        let other = Caller::of_app(&node, "billing").await;
        other.ok(Method::POST, &path, body).await;
        operator.revoke(other.id()).await;
    }
    // Another node may not know yet that the API key is revoked.
    let early = delete().await;
    early.assert_problem(409, "app-not-empty");
    assert!(early.text("detail").contains("less than 3 s ago"), "{}", early.body);
    let is_in_metrics = async || operator.get("/metrics").await.body.to_string().contains(r#"app=\"billing\""#);
    assert!(is_in_metrics().await);
    until("the app is deleted", || async { delete().await.body == json!({ "app": "billing" }) }).await;
    assert!(!is_in_metrics().await);
    let apps = operator.get("/v1/admin/apps").await.body["apps"].to_string();
    assert!(!apps.contains("billing"), "{apps}");
    assert_eq!(operator.get("/v1/admin/api-keys?app=billing").await.body["api_keys"], json!([]));
}

#[tokio::test]
async fn only_an_operator_sees_and_ends_the_locks_and_operations_of_another_app() {
    let (node, operator) = operated().await;
    let scopes = json!(["read", "locks", "operations", "admin"]);
    let billing = Caller::with(&node, json!({ "app": "billing", "scopes": scopes })).await;
    billing.granted("k").await;
    let go = billing.begun(json!({ "operation": "a", "contents": 1 })).await;
    // Of its own app, each caller may say so.
    for (caller, path, at, expected) in [
        (&operator, "/v1/locks/k", "/held", json!(false)),
        (&operator, "/v1/locks/k?app=bill%69ng", "/held", json!(true)),
        (&operator, "/v1/locks?held=true&app=billing&limit=5", "/locks/0/key", json!("k")),
        (&operator, "/v1/locks/k/history?app=billing", "/events/0/kind", json!("granted")),
        (&operator, "/v1/operations?app=billing&sort=oldest", "/operations/0/id", go.body["id"].clone()),
        // An app that was deleted may have left something.
        (&operator, "/v1/locks?app=none", "/locks", json!([])),
        (&billing, "/v1/locks/k?app=billing", "/held", json!(true)),
    ] {
        let shown = caller.get(path).await.body;
        assert_eq!(shown.pointer(at), Some(&expected), "{path}: {shown}");
    }
    for path in ["/v1/locks?app=default", "/v1/events?app=default", "/v1/operations?app=none"] {
        billing.get(path).await.assert_problem(403, "forbidden");
    }
    billing.call(Method::DELETE, "/v1/locks/k?app=default", Value::Null).await.assert_problem(403, "forbidden");
    for query in ["app=", "app=billing&app=default", "app=billing&nonsense=1"] {
        operator.get(&format!("/v1/locks?{query}")).await.assert_problem(400, "invalid-request");
    }
    operator.post("/v1/locks/k/acquire?app=billing", json!({})).await.assert_problem(400, "invalid-request");
    let ended = operator.ok(Method::DELETE, "/v1/locks/k?app=billing&reason=stuck", Value::Null).await;
    assert_eq!(ended.body["ended"], 1);
    assert_eq!(billing.get("/v1/locks/k").await.body["held"], false);
    let forgotten = format!("/v1/operations/{}?force=true&app=billing", go.text("id"));
    operator.ok(Method::DELETE, &forgotten, Value::Null).await;
}
