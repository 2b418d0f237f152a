//! The keys with most waiters.

use latchgate_testkit::until;
use serde_json::{Value, json};

use crate::client::{get, granted, latchgate, two_nodes, until_waiting, waiting};

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
    until("the turns count all waiters", || async {
        keys(&get(&other, "/v1/locks?sort=waiters").await.body) == ["b", "d", "a"]
    })
    .await;
    assert_eq!(keys(&get(&one, "/v1/locks?sort=waiters&limit=1").await.body), ["b"]);
    get(&one, "/v1/locks?sort=age").await.assert_problem(400, "invalid-request");
    let command = latchgate(&["locks", "list", "--waiters", "--url", &one.base_url()]).await;
    let listed = String::from_utf8(command.stdout).unwrap();
    let firsts: Vec<&str> = listed.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(firsts, ["b", "d", "a"], "{listed}");
}
