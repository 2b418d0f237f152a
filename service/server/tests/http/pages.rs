//! Pages for people.

use reqwest::Client;

use crate::client::{embedded, get, send};
use crate::described::API;
use crate::raw::Raw;

#[tokio::test]
async fn swagger_ui_comes_from_the_binary_and_names_this_api() {
    let node = embedded().await;
    let page = get(&node, "/docs/").await;
    assert_eq!(page.status, 200);
    let html = page.body.as_str().unwrap();
    assert!(!html.contains("https://") && html.contains("swagger-ui-bundle.js"), "{html}");
    let is_file = |text: &&str| [".css", ".js", ".png"].iter().any(|end| text.ends_with(end));
    for file in html.split('"').filter(is_file) {
        assert_eq!(get(&node, &format!("/docs/{file}")).await.status, 200, "{file}");
    }
    // `make drift` compares it to the code.
    assert!(get(&node, "/openapi.json").await.body == *API);
}

#[tokio::test]
async fn the_console_comes_from_the_binary_and_is_kept_by_browsers() {
    let node = embedded().await;
    let page = get(&node, "/").await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(!policy.contains("unsafe") && policy.contains("script-src 'self';"), "{policy}");
    let html = page.body.as_str().unwrap();
    let files: Vec<&str> = html.split('"').filter(|text| text.starts_with("/console/")).collect();
    assert!(!html.contains("://") && files.contains(&"/console/app.js"), "{html}");
    for path in files {
        let file = get(&node, path).await;
        assert_eq!(file.status, 200, "{path}");
        assert_eq!(file.headers["cache-control"], "no-cache");
        let again = Client::new().get(format!("{}{path}", node.base_url()));
        assert_eq!(send(again.header("if-none-match", &file.headers["etag"])).await.status, 304, "{path}");
    }
    for path in ["test/console.test.mjs", "app.js/", "app.js/.", "pages//lock.js", "pages/./lock.js"] {
        // reqwest would shorten the path.
        let mut raw = Raw::connect(&node).await;
        assert_eq!(raw.status_of(&format!("/console/{path}")).await, 404, "{path}");
    }
}

#[tokio::test]
async fn every_answer_ends_with_a_newline_for_the_next_prompt() {
    let node = embedded().await;
    let api = ["/v1/locks/k", "/v1/locks", "/v1/operations", "/nowhere"];
    for path in api.into_iter().chain(["/healthz", "/readyz", "/metrics", "/openapi.json", "/"]) {
        let text = reqwest::get(format!("{}{path}", node.base_url())).await.unwrap().text().await.unwrap();
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{path}: {text:?}");
    }
}
