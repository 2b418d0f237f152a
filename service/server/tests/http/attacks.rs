//! What a hostile client may try against others.

use reqwest::{Client, Method};
use serde_json::json;

use crate::client::{begun, embedded, granted, report};
use crate::described::endpoints;

#[tokio::test]
async fn html_of_clients_is_shown_as_data_that_no_browser_renders() {
    let node = embedded().await;
    let html = "<script>alert(1)</script>";
    granted(&node, "k", json!({ "owner": html, "metadata": { "page": html }, "ttl_ms": 300_000 })).await;
    let go = begun(&node, json!({ "operation": html, "contents": html })).await;
    report(&node, &go, json!({ "outcome": "success", "result": { "page": html } })).await;
    let pages = endpoints().filter(|(method, ..)| *method == Method::GET);
    let pages = pages.map(|(_, path, _)| path.replace(&"0".repeat(32), &go.text("id")));
    let absent = ["/errors/%3Cscript%3E", "/%3Cscript%3E", "/v1/events?after=%3Cscript%3E"].map(str::to_owned);
    for path in pages.chain(absent) {
        // As a browser asks for a page.
        let page = Client::new().get(format!("{}{path}", node.base_url())).header("accept", "text/html").send();
        let page = page.await.unwrap();
        let of = |name: &str| page.headers()[name].to_str().unwrap().to_owned();
        assert!(!of("content-type").contains("html"), "{path}: {}", of("content-type"));
        assert_eq!(of("x-content-type-options"), "nosniff", "{path}");
    }
}
