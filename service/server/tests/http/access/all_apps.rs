//! An operator looks at all apps at once.

use std::collections::BTreeSet;

use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use super::world::{Caller, operated, two_guarded};
use crate::described::endpoints;

/// The app and the name of each item on all pages of a listing.
async fn listed(caller: &Caller, path: &str, items: &str, name: &str) -> Vec<[Value; 2]> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = caller.ok(Method::GET, &format!("{path}{cursor}"), Value::Null).await;
        found.extend(page.body[items].as_array().unwrap().iter().map(|item| [item["app"].clone(), item[name].clone()]));
        let Some(next) = page.body["next_cursor"].as_str() else { return found };
        let query = reqwest::Url::parse_with_params("http://h/", [("cursor", next)]).unwrap();
        cursor = format!("&{}", query.query().unwrap());
    }
}

#[tokio::test]
async fn an_operator_lists_the_locks_operations_and_waiters_of_all_apps() {
    let (node, operator) = operated().await;
    let billing = Caller::of_app(&node, "billing").await;
    let other = Caller::of_app(&node, "a \"b\"").await;
    let _empty = Caller::of_app(&node, "empty").await;
    for (caller, keys) in [(&operator, ["x/1", "z"]), (&billing, ["x/1", "x/2"]), (&other, ["x/0", "y"])] {
        for key in keys {
            let path = format!("/v1/locks/{}/acquire", key.replace('/', "%2F"));
            caller.ok(Method::POST, &path, json!({ "owner": "worker", "ttl_ms": 300_000 })).await;
        }
        caller.begun(json!({ "operation": "a", "contents": 1 })).await;
    }
    let (a, b, c) = ("a \"b\"", "billing", "default");
    let all = [[a, "x/0"], [a, "y"], [b, "x/1"], [b, "x/2"], [c, "x/1"], [c, "z"]];
    for limit in [1, 2, 3, 100] {
        let found = listed(&operator, &format!("/v1/locks?app=*&limit={limit}"), "locks", "key").await;
        assert_eq!(found, all, "{limit} at a time");
        let by_prefix = format!("/v1/locks?prefix=x/&held=true&owner=worker&app=%2A&limit={limit}");
        let found = listed(&operator, &by_prefix, "locks", "key").await;
        assert_eq!(found, [all[0], all[2], all[3], all[4]], "{limit} at a time");
        let found = listed(&operator, &format!("/v1/operations?app=*&limit={limit}"), "operations", "operation").await;
        let apps: BTreeSet<&str> = found.iter().map(|[app, _]| app.as_str().unwrap()).collect();
        assert_eq!((found.len(), apps), (3, BTreeSet::from([a, b, c])), "{limit} at a time");
    }
    let wait = json!({ "owner": "waiter", "wait_ms": 30_000 });
    let waits = [&billing, &billing, &operator].map(|caller| caller.waiting("/v1/locks/x%2F1/acquire", wait.clone()));
    let ranked = || async { listed(&operator, "/v1/locks?app=*&sort=waiters", "locks", "key").await };
    until("two wait in one app and one in the other", || async { ranked().await == [all[2], all[4]] }).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    // Elsewhere, the answer is about one app and does not name it.
    assert_eq!(operator.get("/v1/locks?app=billing").await.body["locks"][0]["app"], Value::Null);
    assert_eq!(operator.get("/v1/locks").await.body["locks"][0]["app"], Value::Null);
}

#[tokio::test]
async fn all_apps_are_named_by_operators_and_in_listings_alone() {
    let (node, operator) = operated().await;
    operator.granted("k").await;
    let scopes = json!(["read", "locks", "operations", "admin"]);
    let of_app = Caller::with(&node, json!({ "app": "billing", "scopes": scopes })).await;
    let by_prefix = Caller::with(&node, json!({ "app": "default", "scopes": scopes, "prefixes": ["k"] })).await;
    let reader = Caller::with(&node, json!({ "app": "default", "scopes": ["read"] })).await;
    for path in ["/v1/locks?app=*", "/v1/locks?prefix=k&app=*", "/v1/operations?app=*", "/v1/events?app=*"] {
        for caller in [&of_app, &by_prefix, &reader] {
            caller.get(path).await.assert_problem(403, "forbidden");
        }
    }
    let is_about_one = |path: &str| path.starts_with("/v1/locks/") || path.starts_with("/v1/operations/");
    for (method, path, _) in endpoints().filter(|(_, path, _)| is_about_one(path)) {
        operator.call(method, &format!("{path}?app=*"), Value::Null).await.assert_names("app");
    }
    assert_eq!(operator.get("/v1/locks/k").await.body["held"], true);
    for cursor in ["k", "%5B%22a%22%5D", "%5B%22a%22%2C%22%5Cn%22%5D"] {
        operator.get(&format!("/v1/locks?app=*&cursor={cursor}")).await.assert_names("cursor");
    }
    operator.post("/v1/admin/apps", json!({ "app": "*" })).await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn one_stream_has_the_events_of_all_apps_and_goes_on_at_another_node() {
    let (one, two) = two_guarded().await;
    let (operator, billing) = (Caller::operator(&one), Caller::of_app(&one, "billing").await);
    let mut events = operator.events("/v1/events?app=*", "").await;
    until("the second node knows the app", || async { billing.at(&two).is_accepted().await }).await;
    operator.granted("k").await;
    billing.at(&two).granted("k").await;
    let names = |event: Value| ["app", "key", "kind"].map(|field| event[field].clone());
    for app in ["default", "billing"] {
        assert_eq!(names(events.next().await), [app, "k", "granted"]);
    }
    billing.granted("l").await;
    operator.granted("m").await;
    let mut events = operator.at(&two).events("/v1/events?app=*", &events.seen).await;
    for (app, key) in [("billing", "l"), ("default", "m")] {
        assert_eq!(names(events.next().await), [app, key, "granted"]);
    }
}
