//! What a hostile client may try against others.

use latchgate_testkit::node::Node;
use reqwest::{Client, Method};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{BIN, embedded, granted, pre, release, request, send};

#[tokio::test]
async fn html_of_clients_is_shown_as_json_text_that_no_browser_renders() {
    let node = embedded().await;
    let html = "<script>alert(1)</script>";
    let owner = json!({ "owner": html, "metadata": { "page": html }, "ttl_ms": 600_000 });
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

/// Takes a minute. `cargo test --test http ten_thousand -- --ignored`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs 10 000 open files in this process and in the node"]
async fn ten_thousand_slow_connections_do_not_keep_others_out() {
    let node = Node::start(BIN, &["--read-timeout", "10m"]).await;
    let (mut slow, mut closed) = (Vec::new(), 0);
    let head = b"POST /v1/locks/slow/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n";
    for number in 0..11_000 {
        let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
        // Of every ten, one sends its headers and only the beginning of its body.
        let end: &[u8] = if number % 10 == 0 { b"\r\n{" } else { b"" };
        stream.write_all(&[&head[..], end].concat()).await.unwrap();
        slow.push(stream);
        if number % 500 == 0 {
            for stream in &mut slow {
                closed += u32::from(stream.write_all(b"x").await.is_err());
            }
            let client = Client::builder().pool_max_idle_per_host(0).build().unwrap();
            let acquire = client.post(format!("{}/v1/locks/k/acquire", node.base_url()));
            let granted = send(acquire).await;
            assert_eq!(granted.status, 200, "with {number} slow connections: {}", granted.body);
            assert_eq!(release(&node, "k", &granted.text("lease_id")).await.status, 200);
        }
    }
    println!("{} slow connections, of which the node has closed some: {}", slow.len(), closed > 0);
}
