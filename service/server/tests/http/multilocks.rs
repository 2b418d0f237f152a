//! Multilocks over HTTP.

use serde_json::{Value, json};

use crate::client::{embedded, granted, inspect, leases, many, release, until_waiting};

fn keys(keys: &[&str]) -> Value {
    keys.iter().map(|key| json!({ "key": key })).collect()
}

#[tokio::test]
async fn many_locks_are_taken_renewed_and_released_as_one() {
    let node = embedded().await;
    let shared = json!({ "key": "b/c", "mode": "shared" });
    let locks = json!([{ "key": "a" }, shared, { "key": "d", "mode": "permits", "permits": 2, "limit": 3 }]);
    let request = json!({ "locks": locks, "owner": "me", "lease_id": "mine", "ttl_ms": 20_000 });
    let grant = many(&node, "acquire", request.clone()).await;
    assert_eq!((grant.text("lease_id"), grant.text("owner")), ("mine".to_owned(), "me".to_owned()));
    let granted = &grant.body["locks"];
    let tokens = [&granted[0]["token"], &granted[1]["token"], &granted[2]["token"]];
    let expected = json!([
        { "key": "a", "mode": "exclusive", "token": tokens[0] },
        { "key": "b/c", "mode": "shared", "token": tokens[1] },
        { "key": "d", "mode": "permits", "permits": 2, "slots": [0, 1], "limit": 3, "token": tokens[2] },
    ]);
    assert_eq!(*granted, expected);
    for (key, token) in ["a", "b%2Fc", "d"].into_iter().zip(tokens) {
        assert_eq!(inspect(&node, key).await["holders"][0]["token"], *token);
    }
    assert_eq!(many(&node, "acquire", request).await.body["locks"], *granted, "a repetition gets the same leases");

    let named = leases("mine", &["a", "b/c", "d"]);
    for (verb, field) in [("renew", "ttl_ms"), ("release", "still_held"), ("release", "already")] {
        let answer = many(&node, verb, named.clone()).await;
        let results = answer.body["results"].as_array().unwrap();
        assert!(results.len() == 3 && results.iter().all(|result| !result[field].is_null()), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_refusal_names_the_key_and_nothing_is_held() {
    let node = embedded().await;
    let held = granted(&node, "b", json!({ "owner": "holder" })).await;
    let refused = many(&node, "acquire", json!({ "locks": keys(&["a", "b"]) })).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!((&refused.body["key"], &refused.body["holders"][0]["owner"]), (&json!("b"), &json!("holder")));
    let waited = many(&node, "acquire", json!({ "locks": keys(&["a", "b"]), "wait_ms": 100 })).await;
    waited.assert_problem(423, "wait-timeout");
    assert!(waited.body["ticket"].is_string() && waited.body["waited_ms"].as_u64() >= Some(100), "{}", waited.body);
    assert_eq!(inspect(&node, "a").await["held"], false);
    until_waiting(&node, "b", 0).await;
    release(&node, "b", &held.text("lease_id")).await;
    let resumed = json!({ "locks": keys(&["a", "b"]), "ticket": waited.body["ticket"] });
    assert_eq!(many(&node, "acquire", resumed).await.status, 200);
}
