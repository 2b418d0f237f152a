//! Each endpoint with each scope, as docs/ACCESS.md says.

use std::collections::BTreeMap;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use super::world::{ADMIN, Caller, guarded};

const SCOPES: [&str; 4] = ["read", "locks", "operations", "admin"];

/// A row of the table.
struct Endpoint {
    method: Method,
    path: String,
    needs_key: bool,
    /// `None` if any API key does, or none.
    scope: Option<&'static str>,
    is_of_default: bool,
}

/// The table “Each endpoint” of the document.
fn endpoints() -> Vec<Endpoint> {
    let document = include_str!("../../../../../docs/ACCESS.md");
    let table = document.split("| needs | other apps | endpoints |").nth(1).expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let endpoints = rows.flat_map(|row| {
        let columns: Vec<&str> = row.split('|').collect();
        let (needs, endpoints) = (columns[1], columns[3]);
        let words: Vec<&str> = needs.split('`').collect();
        let (scope, is_of_default) = (words.get(1).copied(), words.len() > 3);
        endpoints.split('`').filter(|text| text.contains('/')).map(move |endpoint| {
            let (method, path) = endpoint.split_once(' ').expect("method and path");
            let path = path.replace("{key}", "some-key").replace("{id}", "some-id").replace("{app}", "some-app");
            let (method, path) = (method.parse().unwrap(), path.replace("{*path}", "index.html"));
            Endpoint { method, path, needs_key: !needs.contains("nothing"), scope, is_of_default }
        })
    });
    endpoints.collect()
}

impl Endpoint {
    /// What a request needs to be about keys. All others have no body, so that those that are permitted change little.
    fn body(&self) -> Value {
        match self.path.as_str() {
            "/v1/leases/renew" | "/v1/leases/release" => {
                json!({ "leases": [{ "key": "some-key", "lease_id": "l" }] })
            }
            "/v1/multilocks/acquire" => json!({ "locks": [{ "key": "some-key" }] }),
            _ => Value::Null,
        }
    }

    fn is_about_keys(&self) -> bool {
        ["/v1/locks", "/v1/leases", "/v1/multilocks", "/v1/events"].iter().any(|start| self.path.starts_with(start))
    }

    /// The status and the problem. The body of a stream of events never ends, so it is read of refusals alone.
    async fn call(&self, base_url: &str, key: Option<&str>) -> (StatusCode, Value) {
        let request = Client::new().request(self.method.clone(), format!("{base_url}{}", self.path));
        let request = if self.body().is_null() { request } else { request.body(self.body().to_string()) };
        let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        let response = request.send().await.unwrap();
        let status = response.status();
        let body = if status.is_success() { Value::Null } else { response.json().await.unwrap_or_default() };
        (status, body)
    }
}

/// API keys of one app: each scope alone.
async fn alone(node: &latchgate_testkit::node::Node, app: &str) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    for scope in SCOPES {
        keys.push((scope, Caller::with(node, json!({ "app": app, "scopes": [scope] })).await.key));
    }
    keys
}

#[tokio::test]
async fn every_endpoint_is_permitted_as_the_document_says() {
    let node = guarded(&[]).await;
    let url = node.base_url();
    let apps = BTreeMap::from([("default", alone(&node, "default").await), ("billing", alone(&node, "billing").await)]);
    let outside = Caller::with(&node, json!({ "app": "billing", "scopes": SCOPES, "prefixes": ["other/"] })).await;
    let revoked = Caller::with(&node, json!({ "scopes": SCOPES })).await;
    Caller::new(&node, ADMIN).revoke(revoked.id()).await;
    let mut tried = 0;
    for endpoint in endpoints() {
        let at = format!("{} {}", endpoint.method, endpoint.path);
        for key in [None, Some(revoked.key.as_str())] {
            let (status, problem) = endpoint.call(&url, key).await;
            assert_eq!(status == 401, endpoint.needs_key, "{at} without an API key: {problem}");
        }
        for (app, keys) in &apps {
            for (scope, key) in keys {
                let has_scope = endpoint.scope.is_none_or(|needed| needed == *scope);
                let is_permitted = has_scope && (*app == "default" || !endpoint.is_of_default);
                let (status, problem) = endpoint.call(&url, Some(key)).await;
                let at = format!("{at} with {scope} of {app}: {status} {problem}");
                assert_ne!(status, 401, "{at}");
                assert_eq!(problem["code"] != "forbidden", is_permitted, "{at}");
                assert!(is_permitted || problem["scope"].as_str() == endpoint.scope, "{at}");
                tried += 1;
            }
        }
        let (status, problem) = endpoint.call(&url, Some(&outside.key)).await;
        let is_refused = endpoint.is_about_keys() || endpoint.is_of_default;
        assert_eq!(problem["code"] == "forbidden", is_refused, "{at} outside the prefixes: {status} {problem}");
        assert_eq!(problem["prefixes"].is_array(), endpoint.is_about_keys(), "{at} outside the prefixes: {problem}");
    }
    assert!(tried > 300, "only {tried} requests were tried");
}

#[tokio::test]
async fn what_ends_the_work_of_others_needs_the_scope_admin() {
    let node = guarded(&[]).await;
    let holder = Caller::of_app(&node, "billing").await;
    let operator = Caller::with(&node, json!({ "app": "billing", "scopes": SCOPES })).await;
    holder.granted("k").await;
    for grace_ms in [0, 1, 999] {
        let refused = holder.post("/v1/locks/k/revoke", json!({ "grace_ms": grace_ms })).await;
        refused.assert_problem(403, "forbidden");
        assert_eq!(refused.body["scope"], "admin");
    }
    assert_eq!(holder.get("/v1/locks/k").await.body["holders"][0]["revocation"], Value::Null);
    holder.ok(Method::POST, "/v1/locks/k/revoke", json!({ "grace_ms": 60_000 })).await;
    operator.ok(Method::POST, "/v1/locks/k/revoke", json!({ "grace_ms": 0 })).await;

    let begun = holder.begun(json!({ "operation": "o", "contents": 1 })).await;
    let path = format!("/v1/operations/{}?force=true", begun.text("id"));
    holder.call(Method::DELETE, &path, Value::Null).await.assert_problem(403, "forbidden");
    assert_eq!(holder.get(&format!("/v1/operations/{}", begun.text("id"))).await.body["state"], "started");
    operator.ok(Method::DELETE, &path, Value::Null).await;
}
