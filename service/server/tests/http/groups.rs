//! Fair shares of permits over HTTP.

use serde_json::{Value, json};

use crate::client::{acquire, embedded, granted, inspect, many, verb};

fn member(group: &str, limit: u32, more: Value) -> Value {
    let mut request = json!({ "mode": "permits", "limit": limit, "group": group });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

#[tokio::test]
async fn a_group_is_shown_and_its_limit_is_the_reason_of_a_refusal() {
    let node = embedded().await;
    let grant = granted(&node, "k", member("a", 3, json!({ "group_limit": 1 }))).await;
    assert_eq!(grant.body["group"], "a");
    let refused = acquire(&node, "k", member("a", 3, json!({ "group_limit": 1 }))).await;
    refused.assert_problem(423, "lock-held");
    let shown = ["group", "group_held", "group_limit"].map(|field| refused.body[field].clone());
    assert_eq!((json!(shown), &refused.body["holders"][0]["group"]), (json!(["a", 1, 1]), &json!("a")));
    assert!(refused.text("detail").contains("group_limit"), "{}", refused.body);
    assert_eq!(inspect(&node, "k").await["permits_held"], 1);
    assert!(granted(&node, "k", json!({ "mode": "permits" })).await.body.get("group").is_none());
}

#[tokio::test]
async fn wrong_groups_are_refused_with_the_name_of_the_field() {
    let node = embedded().await;
    for (request, field) in [
        (json!({ "group": "a" }), "group"),
        (json!({ "mode": "shared", "group": "a" }), "group"),
        (json!({ "group_limit": 1 }), "group_limit"),
        (json!({ "mode": "permits", "limit": 3, "group_limit": 1 }), "group_limit"),
        (member("a", 3, json!({ "group_limit": 0 })), "group_limit"),
        (member("a", 3, json!({ "group_limit": 4 })), "group_limit"),
        (member("a", 3, json!({ "group_limit": 1, "permits": 2 })), "group_limit"),
        (member("", 3, json!({})), "group"),
        (member("\n", 3, json!({})), "group"),
        (member(&"g".repeat(257), 3, json!({})), "group"),
    ] {
        acquire(&node, "k", request).await.assert_names(field);
    }
    granted(&node, "k", member(&"é".repeat(128), 3, json!({ "group_limit": 3, "permits": 3 }))).await;
}

#[tokio::test]
async fn a_multilock_names_the_group_of_each_key() {
    let node = embedded().await;
    let both = |owner: &str| {
        let pool = json!({ "key": "pool", "mode": "permits", "limit": 5, "group": "a", "group_limit": 1 });
        json!({ "owner": owner, "locks": [{ "key": "plain" }, pool] })
    };
    let grant = many(&node, "acquire", both("first")).await;
    assert_eq!((grant.status.as_u16(), &grant.body["locks"][1]["group"]), (200, &json!("a")), "{}", grant.body);
    assert_eq!(verb(&node, "plain", "release", json!({ "lease_id": grant.body["lease_id"] })).await.status, 200);
    let refused = many(&node, "acquire", both("second")).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!((&refused.body["key"], &refused.body["group_held"]), (&json!("pool"), &json!(1)));
    let wrong = json!({ "locks": [{ "key": "plain", "group": "a" }] });
    many(&node, "acquire", wrong).await.assert_problem(400, "invalid-request");
}
