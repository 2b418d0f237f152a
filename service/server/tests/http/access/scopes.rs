//! Each endpoint with each scope, as the OpenAPI description says. A test of the node holds docs/ACCESS.md to the same rows.

use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::world::{ADMIN, Caller, guarded};
use crate::described::endpoints;

const SCOPES: [&str; 4] = ["read", "locks", "operations", "admin"];

#[tokio::test]
async fn every_endpoint_is_permitted_as_its_description_says() {
    let node = guarded(&[]).await;
    let mut keys = Vec::new();
    for app in ["default", "billing"] {
        for scope in SCOPES {
            keys.push((app, scope, Caller::with(&node, json!({ "app": app, "scopes": [scope] })).await.key));
        }
    }
    let outside = Caller::with(&node, json!({ "app": "billing", "scopes": SCOPES, "prefixes": ["other/"] })).await.key;
    let revoked = Caller::with(&node, json!({ "scopes": SCOPES })).await;
    Caller::new(&node, ADMIN).revoke(revoked.id()).await;
    let mut tried = 0;
    for (method, path, said) in endpoints() {
        let scope = said["security"][0]["api_key"][0].as_str();
        let is_of_default = said["description"].as_str().is_some_and(|text| text.contains("of the app `default`"));
        // What a request needs to be about keys. All others have no body, so that those that are permitted change little.
        let body = match path.as_str() {
            "/v1/leases/renew" | "/v1/leases/release" => r#"{"leases":[{"key":"k","lease_id":"l"}]}"#,
            "/v1/multilocks/acquire" => r#"{"locks":[{"key":"k"}]}"#,
            _ => "",
        };
        // The status and the problem. The body of a stream of events never ends, so it is read of refusals alone.
        let call = async |key: &str| {
            let request = Client::new().request(method.clone(), format!("{}{path}", node.base_url())).body(body);
            let request = if key.is_empty() { request } else { request.bearer_auth(key) };
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            (status, if status < 300 { Value::Null } else { response.json().await.unwrap_or_default() })
        };
        for key in ["", &revoked.key] {
            let (status, problem) = call(key).await;
            assert_eq!(status == 401, said["security"] != json!([]), "{method} {path} without an API key: {problem}");
        }
        for (app, of_key, key) in &keys {
            let has_scope = scope.is_none_or(|needed| needed == *of_key);
            let is_permitted = has_scope && (*app == "default" || !is_of_default);
            let (status, problem) = call(key).await;
            let at = format!("{method} {path} with {of_key} of {app}: {status} {problem}");
            assert_ne!(status, 401, "{at}");
            assert_eq!(problem["code"] != "forbidden", is_permitted, "{at}");
            assert!(is_permitted || problem["scope"].as_str() == scope, "{at}");
            tried += 1;
        }
        let (_, problem) = call(&outside).await;
        let starts = ["/v1/locks", "/v1/leases", "/v1/multilocks", "/v1/events"];
        let is_about_keys = starts.iter().any(|start| path.starts_with(start));
        let (is_refused, names_prefixes) = (problem["code"] == "forbidden", problem["prefixes"].is_array());
        let expected = (is_about_keys || is_of_default, is_about_keys);
        assert_eq!((is_refused, names_prefixes), expected, "{method} {path} outside the prefixes: {problem}");
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
