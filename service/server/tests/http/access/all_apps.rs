//! An operator looks at all apps at once.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::world::{ADMIN, Caller, OPERATOR, operated};
use crate::client::BIN;
use crate::history::Events;

/// What all pages of a listing have, by the app and the name of each item.
async fn listed(caller: &Caller, path: &str, items: &str, name: &str) -> Vec<(String, String)> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = caller.ok(Method::GET, &format!("{path}{cursor}"), Value::Null).await;
        for item in page.body[items].as_array().unwrap() {
            found.push((item["app"].as_str().unwrap().to_owned(), item[name].as_str().unwrap().to_owned()));
        }
        let Some(next) = page.body["next_cursor"].as_str() else { return found };
        let query = reqwest::Url::parse_with_params("http://h/", [("cursor", next)]).unwrap();
        cursor = format!("&{}", query.query().unwrap());
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(app, key)| ((*app).to_owned(), (*key).to_owned())).collect()
}

#[tokio::test]
async fn an_operator_lists_the_locks_and_operations_of_all_apps() {
    let (node, operator) = operated().await;
    let billing = Caller::of_app(&node, "billing").await;
    let other = Caller::of_app(&node, "a \"b\"").await;
    let _empty = Caller::of_app(&node, "empty").await;
    for (caller, keys) in [(&operator, ["x/1", "z"]), (&billing, ["x/1", "x/2"]), (&other, ["x/0", "y"])] {
        for key in keys {
            let path = format!("/v1/locks/{}/acquire", key.replace('/', "%2F"));
            caller.ok(Method::POST, &path, json!({ "owner": "worker", "ttl_ms": 300_000 })).await;
        }
        caller.ok(Method::POST, "/v1/operations/pre", json!({ "operation": "a", "contents": 1 })).await;
    }
    let all = [
        ("a \"b\"", "x/0"),
        ("a \"b\"", "y"),
        ("billing", "x/1"),
        ("billing", "x/2"),
        ("default", "x/1"),
        ("default", "z"),
    ];
    for limit in [1, 2, 3, 100] {
        let found = listed(&operator, &format!("/v1/locks?app=*&limit={limit}"), "locks", "key").await;
        assert_eq!(found, pairs(&all), "{limit} at a time");
        let by_prefix = format!("/v1/locks?prefix=x/&held=true&owner=worker&app=%2A&limit={limit}");
        let found = listed(&operator, &by_prefix, "locks", "key").await;
        assert_eq!(found, pairs(&[all[0], all[2], all[3], all[4]]), "{limit} at a time");
        let found = listed(&operator, &format!("/v1/operations?app=*&limit={limit}"), "operations", "operation").await;
        let mut apps: Vec<&str> = found.iter().map(|(app, _)| &**app).collect();
        apps.sort_unstable();
        assert_eq!(apps, ["a \"b\"", "billing", "default"], "{limit} at a time");
    }
    let oldest = listed(&operator, "/v1/operations?app=*&sort=oldest&state=started", "operations", "operation").await;
    assert_eq!(oldest, pairs(&[("default", "a"), ("billing", "a"), ("a \"b\"", "a")]));
    assert_eq!(operator.get("/v1/locks?app=*&held=false").await.body, json!({ "locks": [] }));
    // Elsewhere, the answer is about one app and does not name it.
    assert_eq!(operator.get("/v1/locks?app=billing").await.body["locks"][0]["app"], Value::Null);
    assert_eq!(operator.get("/v1/locks").await.body["locks"][0]["app"], Value::Null);
}

#[tokio::test]
async fn waiters_are_seen_across_apps() {
    let (node, operator) = operated().await;
    let billing = Caller::of_app(&node, "billing").await;
    for caller in [&operator, &billing] {
        caller.ok(Method::POST, "/v1/locks/k/acquire", json!({ "owner": "holder", "ttl_ms": 300_000 })).await;
    }
    let wait = async |caller: &Caller| caller.acquire("k", json!({ "owner": "waiter", "wait_ms": 30_000 })).await;
    let seen = async {
        let ranked = || async { listed(&operator, "/v1/locks?app=*&sort=waiters", "locks", "key").await };
        until("two wait in one app and one in the other", || async {
            ranked().await == pairs(&[("billing", "k"), ("default", "k")])
        })
        .await;
        let of = |items: &Value| items.as_array().unwrap().iter().map(|item| item["app"].clone()).collect::<Vec<_>>();
        for app in ["default", "billing"] {
            operator.ok(Method::PUT, &format!("/v1/locks/k/closed?app={app}"), json!({ "reason": "end" })).await;
        }
        let waiting = operator.get("/v1/locks?app=*&closed=true&prefix=k").await.body;
        assert_eq!(of(&waiting["locks"]), ["billing", "default"]);
    };
    tokio::select! {
        () = seen => {}
        _ = async { tokio::join!(wait(&billing), wait(&billing), wait(&operator)) } => panic!("no wait ends"),
    }
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
    for (method, path, body) in [
        (Method::GET, "/v1/locks/k?app=*", Value::Null),
        (Method::GET, "/v1/locks/k/history?app=*", Value::Null),
        (Method::GET, "/v1/locks/k/events?app=*", Value::Null),
        (Method::DELETE, "/v1/locks/k?app=*", Value::Null),
        (Method::POST, "/v1/locks/k/revoke?app=*", json!({})),
        (Method::PUT, "/v1/locks/k/closed?app=*", json!({ "reason": "r" })),
        (Method::DELETE, "/v1/operations/056c7eac583ac3135a9673fd4e9b8b8e?app=*", Value::Null),
    ] {
        let refused = operator.call(method, path, body).await;
        refused.assert_names("app");
        assert!(refused.text("detail").contains("app must not be *"), "{}", refused.body);
    }
    assert_eq!(operator.get("/v1/locks/k").await.body["held"], true);
    for cursor in ["k", "%5B%22a%22%5D", "%5B%22a%22%2C%22%5Cn%22%5D"] {
        let refused = operator.get(&format!("/v1/locks?app=*&cursor={cursor}")).await;
        assert_eq!((refused.status.as_u16(), refused.text("field").as_str()), (400, "cursor"), "{cursor}");
    }
    operator.post("/v1/admin/apps", json!({ "app": "*" })).await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn one_stream_has_the_events_of_all_apps_and_goes_on_at_another_node() {
    let database = shared_database().await;
    let start = async || Node::start_with(BIN, &["--locks", &database], OPERATOR).await;
    let (one, two) = (start().await, start().await);
    let billing = Caller::of_app(&one, "billing").await;
    let operator = Caller::operator(&one);
    let stream = |node: &Node| Client::new().get(format!("{}/v1/events?app=*", node.base_url())).bearer_auth(ADMIN);
    let mut events = Events::of(stream(&one)).await;
    until("the second node knows the app", || async { billing.at(&two).is_accepted().await }).await;
    operator.granted("k").await;
    billing.at(&two).granted("k").await;
    let names = |event: &Value| (event["app"].clone(), event["key"].clone(), event["kind"].clone());
    for app in ["default", "billing"] {
        assert_eq!(names(&events.next().await), (json!(app), json!("k"), json!("granted")));
    }
    let seen = events.seen.clone();
    drop(events);
    billing.granted("l").await;
    operator.granted("m").await;
    let mut events = Events::of(stream(&two).header("last-event-id", seen)).await;
    for (app, key) in [("billing", "l"), ("default", "m")] {
        assert_eq!(names(&events.next().await), (json!(app), json!(key), json!("granted")));
    }
}
