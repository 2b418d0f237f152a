//! Who blocks whom: the keys with most waiters, what an owner holds and waits for, and owners that wait for each other.

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use serde_json::{Value, json};

use crate::access::world::{Caller, guarded};
use crate::client::{embedded, get, granted, latchgate, on_postgres, release, two_nodes, until_waiting, waiting};

async fn owner(node: &Node, name: &str) -> Value {
    let answer = get(node, &format!("/v1/owners/{name}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// The owners `a` and `b` hold a key each, and wait for that of the other.
async fn deadlock(node: &Node) -> [tokio::task::JoinHandle<crate::client::Answer>; 2] {
    granted(node, "k1", json!({ "owner": "a", "lease_id": "a1" })).await;
    granted(node, "k2", json!({ "owner": "b", "lease_id": "b2" })).await;
    let waits = [
        waiting(node, "k2", json!({ "owner": "a", "wait_ms": 40_000 })),
        waiting(node, "k1", json!({ "owner": "b", "wait_ms": 40_000 })),
    ];
    until_waiting(node, "k1", 1).await;
    until_waiting(node, "k2", 1).await;
    waits
}

#[tokio::test]
async fn owners_that_wait_for_each_other_are_shown_and_nothing_is_ended_for_it() {
    let node = embedded().await;
    let [first, second] = deadlock(&node).await;
    let circle = json!([{ "waiter": "a", "key": "k2", "holder": "b" }, { "waiter": "b", "key": "k1", "holder": "a" }]);
    let shown = owner(&node, "a").await;
    assert_eq!(shown["cycle"], circle, "{shown}");
    let of_all = get(&node, "/v1/owners/a?app=*").await.body;
    assert_eq!((&of_all["cycle"], &of_all["cycle_app"]), (&circle, &json!("default")), "{of_all}");
    assert!(shown.get("cycle_app").is_none(), "{shown}");
    assert_eq!((&shown["holds"][0]["key"], &shown["holds"][0]["leases"][0]["owner"]), (&json!("k1"), &json!("a")));
    let awaited = &shown["waits_for"][0];
    assert_eq!((&awaited["key"], &awaited["holders"][0]["owner"]), (&json!("k2"), &json!("b")), "{shown}");
    assert_eq!(awaited["waiting"][0]["owner"], "a");
    assert!(!shown.to_string().contains("a1"), "no lease id: {shown}");
    // An owner that only waits for one of them is in no circle.
    let third = waiting(&node, "k1", json!({ "owner": "c", "wait_ms": 40_000 }));
    until_waiting(&node, "k1", 2).await;
    let shown = owner(&node, "c").await;
    assert!(shown.get("cycle").is_none() && shown["waits_for"][0]["key"] == "k1", "{shown}");

    assert_eq!(release(&node, "k2", "b2").await.status, 200);
    assert_eq!(first.await.unwrap().status, 200, "its holder has released it");
    assert!(owner(&node, "a").await.get("cycle").is_none());
    second.abort();
    third.abort();
}

#[tokio::test]
async fn the_keys_with_most_waiters_come_first_and_those_without_are_left_out() {
    let (one, other) = two_nodes().await;
    for (key, waiters) in [("a", 1), ("b", 3), ("c", 0), ("d", 2)] {
        granted(&one, key, json!({ "owner": "holder" })).await;
        for number in 0..waiters {
            let node = if number % 2 == 0 { &one } else { &other };
            waiting(node, key, json!({ "owner": format!("w{number}"), "wait_ms": 40_000 }));
        }
        until_waiting(&one, key, waiters).await;
        until_waiting(&other, key, waiters).await;
    }
    let keys = |answer: &Value| -> Vec<String> {
        answer["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
    };
    until("the turns count all waiters".to_owned(), || async {
        keys(&get(&other, "/v1/locks?sort=waiters").await.body) == ["b", "d", "a"]
    })
    .await;
    assert_eq!(keys(&get(&one, "/v1/locks?sort=waiters&limit=1").await.body), ["b"]);
    get(&one, "/v1/locks?sort=age").await.assert_problem(400, "invalid-request");
    // The waiters at another node are counted, and their owners are not known.
    let shown = owner(&one, "w1").await;
    assert!(shown["waits_for"] == json!([]) && shown["waiting_elsewhere"].as_u64() >= Some(2), "{shown}");
    let command = latchgate(&["locks", "list", "--waiters", "--url", &one.base_url()]).await;
    let listed = String::from_utf8(command.stdout).unwrap();
    let firsts: Vec<&str> = listed.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(firsts, ["b", "d", "a"], "{listed}");
}

#[tokio::test]
async fn an_owner_is_shown_within_its_app_and_the_prefixes_of_the_api_key() {
    let node = guarded(&[]).await;
    let (mine, theirs) = (Caller::of_app(&node, "mine").await, Caller::of_app(&node, "theirs").await);
    let limited = json!({ "app": "mine", "scopes": ["read"], "prefixes": ["orders/"] });
    let limited = Caller::with(&node, limited).await;
    for key in ["orders%2F1", "secret"] {
        mine.ok(reqwest::Method::POST, &format!("/v1/locks/{key}/acquire"), json!({ "owner": "host: a/b" })).await;
    }
    let path = "/v1/owners/host%3A%20a%2Fb";
    assert_eq!(mine.get(path).await.body["holds"].as_array().map(Vec::len), Some(2));
    assert_eq!(theirs.get(path).await.body["holds"], json!([]));
    limited.get(path).await.assert_problem(403, "forbidden");
    let shown = limited.get(&format!("{path}?prefix=orders/")).await.body;
    assert_eq!(shown["holds"].as_array().map(Vec::len), Some(1), "{shown}");
    assert!(!shown.to_string().contains("secret"));
    mine.get(&format!("/v1/owners/{}", "x".repeat(257))).await.assert_problem(400, "invalid-request");
    mine.get("/v1/owners/a?limit=1").await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn a_circle_with_a_waiter_at_another_node_is_not_claimed_to_be_none() {
    let database = latchgate_testkit::postgres::shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    granted(&one, "k1", json!({ "owner": "a" })).await;
    granted(&one, "k2", json!({ "owner": "b" })).await;
    let waits = [
        waiting(&one, "k2", json!({ "owner": "a", "wait_ms": 40_000 })),
        waiting(&other, "k1", json!({ "owner": "b", "wait_ms": 40_000 })),
    ];
    until_waiting(&one, "k1", 1).await;
    until_waiting(&one, "k2", 1).await;
    let shown = owner(&one, "a").await;
    assert!(shown.get("cycle").is_none() && shown["waiting_elsewhere"] == 1, "{shown}");
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}
