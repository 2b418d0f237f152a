//! Each operation of the OpenAPI description with each scope.

use std::collections::BTreeSet;

use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};

use super::world::{ADMIN, Caller, guarded};

const SCOPES: [&str; 4] = ["read", "locks", "operations", "admin"];

/// An operation, and the scope that it needs; `None` if any API key suffices.
struct Operation {
    method: Method,
    path: String,
    scope: Option<String>,
}

/// Those that need an API key.
async fn operations(base_url: &str) -> Vec<Operation> {
    let api: Value = reqwest::get(format!("{base_url}/openapi.json")).await.unwrap().json().await.unwrap();
    let mut found = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(scopes) = operation["security"][0]["api_key"].as_array() else { continue };
            found.push(Operation {
                method: method.to_uppercase().parse().unwrap(),
                path: path.replace("{key}", "some-key").replace("{id}", "some-id").replace("{app}", "some-app"),
                scope: scopes.first().map(|scope| scope.as_str().unwrap().to_owned()),
            });
        }
    }
    found
}

/// The status and the problem. The body of a stream of events never ends, so it is read of refusals alone. No request has a
/// body, so that those that are permitted change little.
async fn call(base_url: &str, operation: &Operation, key: Option<&str>) -> (StatusCode, Value) {
    let request = Client::new().request(operation.method.clone(), format!("{base_url}{}", operation.path));
    // Without a body, Terraform unlocks by force, which needs another scope.
    let is_unlock = operation.method == Method::DELETE && operation.path.starts_with("/v1/terraform/");
    let request = if is_unlock { request.body(r#"{"ID": "none"}"#) } else { request };
    let response: Response = match key {
        Some(key) => request.bearer_auth(key).send().await.unwrap(),
        None => request.send().await.unwrap(),
    };
    let status = response.status();
    let body = if status.is_success() { Value::Null } else { response.json().await.unwrap() };
    (status, body)
}

#[tokio::test]
async fn every_operation_is_refused_without_its_scope_and_permitted_with_it_alone() {
    let node = guarded(&[]).await;
    let url = node.base_url();
    let with = async |scopes: &[&str]| Caller::with(&node, json!({ "scopes": scopes })).await.key;
    let mut alone = Vec::new();
    let mut all_but = Vec::new();
    for scope in SCOPES {
        alone.push(with(&[scope]).await);
        let others: Vec<&str> = SCOPES.into_iter().filter(|other| *other != scope).collect();
        all_but.push(with(&others).await);
    }
    let mut used = BTreeSet::new();
    for operation in operations(&url).await {
        let at = format!("{} {}", operation.method, operation.path);
        let (status, problem) = call(&url, &operation, None).await;
        assert_eq!((status.as_u16(), problem["code"].as_str()), (401, Some("unauthorized")), "{at}");
        for (index, scope) in SCOPES.into_iter().enumerate() {
            let is_needed = operation.scope.as_deref().is_none_or(|needed| needed == scope);
            let (_, problem) = call(&url, &operation, Some(&alone[index])).await;
            assert_eq!(problem["code"] != "forbidden", is_needed, "{at} with {scope} alone: {problem}");
            if operation.scope.as_deref() == Some(scope) {
                used.insert(scope);
                let (status, problem) = call(&url, &operation, Some(&all_but[index])).await;
                assert_eq!((status.as_u16(), &problem["code"]), (403, &json!("forbidden")), "{at} without {scope}");
                assert_eq!(problem["scope"], scope, "{at}: {problem}");
            }
        }
    }
    assert_eq!(used, BTreeSet::from(SCOPES));
}

#[tokio::test]
async fn an_admin_of_another_app_is_no_operator() {
    let node = guarded(&[]).await;
    let url = node.base_url();
    let other = Caller::with(&node, json!({ "app": "billing", "scopes": SCOPES })).await.key;
    for operation in operations(&url).await.iter().filter(|operation| operation.path.starts_with("/v1/admin/")) {
        let (status, problem) = call(&url, operation, Some(&other)).await;
        assert_eq!((status.as_u16(), &problem["code"]), (403, &json!("forbidden")), "{}", operation.path);
    }
    assert!(Caller::new(&node, ADMIN).is_accepted().await);
}
