//! Fair shares of permits over HTTP.

use serde_json::json;

use crate::client::{acquire, embedded, granted, many, verb};

#[tokio::test]
async fn a_group_is_shown_and_its_limit_is_the_reason_of_a_refusal() {
    let node = embedded().await;
    let member = json!({ "mode": "permits", "limit": 3, "group": "a", "group_limit": 1 });
    assert_eq!(granted(&node, "k", member.clone()).await.body["group"], "a");
    let refused = acquire(&node, "k", member).await;
    refused.assert_problem(423, "lock-held");
    let shown = ["group", "group_held", "group_limit"].map(|field| refused.body[field].clone());
    assert_eq!((json!(shown), &refused.body["holders"][0]["group"]), (json!(["a", 1, 1]), &json!("a")));
    assert!(refused.text("detail").contains("group_limit"), "{}", refused.body);
    assert!(granted(&node, "k", json!({ "mode": "permits" })).await.body.get("group").is_none());
}

#[tokio::test]
async fn a_multilock_names_the_group_of_each_key() {
    let node = embedded().await;
    let pool = json!({ "key": "pool", "mode": "permits", "limit": 5, "group": "a", "group_limit": 1 });
    let both = json!({ "locks": [{ "key": "plain" }, pool] });
    let grant = many(&node, "acquire", both.clone()).await;
    assert_eq!((grant.status.as_u16(), &grant.body["locks"][1]["group"]), (200, &json!("a")), "{}", grant.body);
    assert_eq!(verb(&node, "plain", "release", json!({ "lease_id": grant.body["lease_id"] })).await.status, 200);
    let refused = many(&node, "acquire", both).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!((&refused.body["key"], &refused.body["group_held"]), (&json!("pool"), &json!(1)));
    let wrong = json!({ "locks": [{ "key": "plain", "group": "a" }] });
    many(&node, "acquire", wrong).await.assert_problem(400, "invalid-request");
}
