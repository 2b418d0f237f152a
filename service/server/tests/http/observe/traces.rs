//! Traces at a collector, and what ties a log entry to them.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use latchgate_core::access::ApiKey;
use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{Answer, BIN, embedded, send};

const FIRST: &str = "0af7651916cd43dd8448eb211c80319c";
const SECOND: &str = "1bf7651916cd43dd8448eb211c80319c";
const UNSAMPLED: &str = "2cf7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector that keeps what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Bytes>>>);

impl Collector {
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let Self(received) = self.clone();
        let keep = post(move |body: Bytes| async move {
            received.lock().unwrap().push(body);
            StatusCode::OK
        });
        let routes = axum::Router::new().route("/v1/traces", keep);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        url
    }

    /// All of it, in hex.
    fn received(&self) -> String {
        self.0.lock().unwrap().iter().map(|request| hex(request)).collect()
    }

    /// The span with these fields, which its message of protobuf begins with. The two bytes before it are its length.
    fn span(&self, trace: &str, id: &str, parent: &str, name: &str) -> Option<String> {
        let (received, name) = (self.received(), format!("2a{:02x}{}", name.len(), hex(name.as_bytes())));
        let at = received.find(&format!("0a10{trace}1208{id}2208{parent}{name}"))?;
        let byte = |at: usize| usize::from_str_radix(&received[at..at + 2], 16).unwrap();
        let length = (byte(at - 4) & 0x7f) + (byte(at - 2) << 7);
        Some(received[at..at + 2 * length].to_owned())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn trace_parent(answer: &Answer) -> String {
    answer.headers["traceparent"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_request_and_its_calls_are_spans_of_the_clients_trace_named_in_logs() {
    let collector = Collector::default();
    let url = collector.start().await;
    let key = ApiKey::of_random([1; 6], [2; 32]);
    let args = ["--otlp-endpoint", &url, "--otlp-percent", "0", "--log-format", "json", "--access-log"];
    let mut node = Node::start_with(BIN, &args, &[("LATCHGATE_ADMIN_API_KEY", key.as_str())]).await;
    let call = |verb: &str, body: Value, trace: &str, flags: &str| -> RequestBuilder {
        let url = format!("{}/v1/locks/k/{verb}", node.base_url());
        let request = Client::new().post(url).bearer_auth(key.as_str()).body(body.to_string());
        request.header("traceparent", format!("00-{trace}-{PARENT}-{flags}"))
    };
    // Of the same trace as the client's request, and not traced because the client's is not.
    let held = send(call("acquire", json!({ "lease_id": "held" }), UNSAMPLED, "00")).await;
    assert!(trace_parent(&held).starts_with(&format!("00-{UNSAMPLED}-")), "{}", trace_parent(&held));
    let waits = tokio::spawn(send(call("acquire", json!({ "wait_ms": 30_000 }), SECOND, "01")));
    let waiters = || async {
        let url = format!("{}/v1/locks/k", node.base_url());
        send(Client::new().get(url).bearer_auth(key.as_str())).await.body["waiters"] == 1
    };
    until("the waiter", waiters).await;
    let release = call("release", json!({ "lease_id": "held" }), FIRST, "01").header("x-request-id", "mine-1");
    let released = trace_parent(&send(release).await);
    assert_eq!(waits.await.unwrap().status, 200);
    let id = released.split('-').nth(2).unwrap();
    let request = || collector.span(FIRST, id, PARENT, "release");
    until("the span of the request", || async { request().is_some() }).await;
    let (request, received) = (request().unwrap(), collector.received());
    for text in ["mine-1", "POST", "default", "010101010101"] {
        assert!(request.contains(&hex(text.as_bytes())), "no {text} in {request}");
    }
    assert!(received.contains(&format!("2208{id}2a07{}", hex(b"release"))), "no child of {id} in {received}");
    assert!(!received.contains(UNSAMPLED), "{received}");
    node.terminate();
    node.wait_exit(std::time::Duration::from_secs(30)).await.unwrap();
    let entry = node.log().lines().find(|line| line.contains("mine-1")).map(serde_json::from_str::<Value>);
    let entry = entry.unwrap().unwrap();
    for (field, expected) in [
        ("request_id", "mine-1"),
        ("app", "default"),
        ("key_id", "010101010101"),
        ("trace_id", FIRST),
        ("path", "/v1/locks/k/release"),
    ] {
        assert_eq!(entry[field], expected, "{entry}");
    }
}

#[tokio::test]
async fn without_a_collector_only_a_valid_traceparent_is_sent_back() {
    let node = embedded().await;
    let ask = |sent: &str| Client::new().get(format!("{}/readyz", node.base_url())).header("traceparent", sent);
    let good = format!("00-{FIRST}-{PARENT}-01");
    assert_eq!(trace_parent(&send(ask(&good)).await), good);
    assert!(!send(ask("00-nonsense")).await.headers.contains_key("traceparent"));
}
