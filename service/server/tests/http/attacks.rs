//! What a hostile client may try against others.

use reqwest::{Client, Method};
use serde_json::json;

use crate::client::{embedded, granted, pre, request};

#[tokio::test]
async fn html_of_clients_is_shown_as_json_text_that_no_browser_renders() {
    let node = embedded().await;
    let html = "<script>alert(1)</script>";
    let owner = json!({ "owner": html, "metadata": { "page": html }, "ttl_ms": 300_000 });
    granted(&node, "%3Cscript%3E", owner).await;
    let begun = pre(&node, json!({ "operation": html, "contents": html })).await;
    let posted = json!({ "stamp": begun.text("stamp"), "outcome": "success", "result": { "page": html } });
    let id = begun.text("id");
    assert_eq!(request(&node, Method::POST, &format!("/v1/operations/{id}/post"), posted).await.status, 200);
    request(&node, Method::DELETE, "/v1/locks/other?reason=%3Cscript%3E&by=%3Cscript%3E", json!(null)).await;
    for path in [
        "/v1/locks/%3Cscript%3E".to_owned(),
        "/v1/locks?prefix=%3C".to_owned(),
        "/v1/locks/%3Cscript%3E/history".to_owned(),
        format!("/v1/operations/{id}"),
        "/v1/admin/apps".to_owned(),
        "/errors/%3Cscript%3E".to_owned(),
        "/%3Cscript%3E".to_owned(),
        "/v1/events?prefix=%3Cscript%3E&after=%3Cscript%3E".to_owned(),
    ] {
        // As a browser asks for a page.
        let page = Client::new().get(format!("{}{path}", node.base_url())).header("accept", "text/html").send();
        let page = page.await.unwrap();
        let of = |name: &str| page.headers()[name].to_str().unwrap().to_owned();
        let kind = of("content-type");
        assert!(["application/json", "application/problem+json"].contains(&kind.as_str()), "{path}: {kind}");
        assert_eq!(of("x-content-type-options"), "nosniff", "{path}");
    }
}
