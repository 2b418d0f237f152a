//! Fair shares of permits over HTTP.

use serde_json::json;

use crate::client::{acquire, embedded, granted, many};

#[tokio::test]
async fn a_group_is_shown_and_its_limit_is_the_reason_of_a_refusal() {
    let node = embedded().await;
    let member = json!({ "mode": "permits", "limit": 3, "group": "a", "group_limit": 1 });
    let mut pool = member.clone();
    pool["key"] = json!("pool");
    let both = json!({ "locks": [{ "key": "plain", "mode": "shared" }, pool], "owner": "holder" });
    let grant = many(&node, "acquire", both.clone()).await;
    assert_eq!((grant.status.as_u16(), &grant.body["locks"][1]["group"]), (200, &json!("a")), "{}", grant.body);
    for refused in [many(&node, "acquire", both).await, acquire(&node, "pool", member).await] {
        refused.assert_problem(423, "lock-held");
        let shown = ["key", "group", "group_held", "group_limit"].map(|field| refused.body[field].clone());
        assert_eq!(json!(shown), json!(["pool", "a", 1, 1]));
        let holder = &refused.body["holders"][0];
        assert_eq!((&holder["owner"], &holder["group"]), (&json!("holder"), &json!("a")));
        assert!(refused.text("detail").contains("group_limit"), "{}", refused.body);
    }
    assert_eq!(granted(&node, "pool", json!({ "mode": "permits" })).await.body.get("group"), None);
}
