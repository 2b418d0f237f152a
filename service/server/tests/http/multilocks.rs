//! Multilocks over HTTP.

use serde_json::{Value, json};

use crate::client::{embedded, granted, inspect, leases, many, release, until_waiting};

fn keys(keys: &[&str]) -> Value {
    keys.iter().map(|key| json!({ "key": key })).collect()
}

#[tokio::test]
async fn many_locks_are_taken_renewed_and_released_as_one() {
    let node = embedded().await;
    let locks = json!([{ "key": "a" }, { "key": "b/c", "mode": "shared" }, { "key": "d", "mode": "permits", "permits": 2, "limit": 3 }]);
    let request = json!({ "locks": locks, "owner": "me", "lease_id": "mine", "ttl_ms": 20_000 });
    let grant = many(&node, "acquire", request.clone()).await;
    assert_eq!(grant.status, 200, "{}", grant.body);
    assert_eq!((grant.text("lease_id"), grant.text("owner")), ("mine".to_owned(), "me".to_owned()));
    let answers = grant.body["locks"].as_array().unwrap();
    assert_eq!((&answers[1]["key"], &answers[1]["mode"]), (&json!("b/c"), &json!("shared")));
    assert_eq!((&answers[2]["permits"], &answers[2]["limit"]), (&json!(2), &json!(3)));
    for (key, answer) in [("a", &answers[0]), ("b%2Fc", &answers[1]), ("d", &answers[2])] {
        assert_eq!(inspect(&node, key).await["holders"][0]["token"], answer["token"]);
    }
    assert_eq!(
        many(&node, "acquire", request).await.body["locks"],
        grant.body["locks"],
        "a repetition gets the same leases"
    );

    let mut named = leases("mine", &["a", "b/c", "d"]);
    let released = named.clone();
    named["leases"].as_array_mut().unwrap().iter_mut().for_each(|lease| lease["ttl_ms"] = json!(60_000));
    let renewed = many(&node, "renew", named).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    let results = renewed.body["results"].as_array().unwrap();
    assert!(results.len() == 3 && results.iter().all(|result| result["ttl_ms"].as_u64() > Some(30_000)));
    assert_eq!(many(&node, "release", released.clone()).await.status, 200);
    let again = many(&node, "release", released).await;
    assert_eq!((again.status.as_u16(), &again.body["results"][2]["already"]), (200, &json!(true)));
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
