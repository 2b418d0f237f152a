//! Scenarios 20, 21 and 22: errors.

use latchgate_client::{Client, Error, Method, Revoke};
use latchgate_testkit::free_port;
use latchgate_testkit::lossy::Lossy;
use latchgate_testkit::node::Node;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{client, client_through, desk, look, node, seconds};

#[tokio::test]
async fn a_refused_request_is_not_repeated_and_its_error_has_problem_fields() {
    let node = node().await;
    let client = client(&[&node]);
    let _permit = client.lock("p").permits(1, 3).acquire().await.unwrap();
    let refused = client.lock("p").permits(1, 4).acquire().await.unwrap_err();
    let Error::Refused(problem) = &refused else { panic!("{refused}") };
    assert_eq!((problem.status(), problem.code(), problem.field("limit").as_u64()), (409, "limit-mismatch", Some(3)));
    let refused = client.lock("").acquire().await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(problem) if [400, 404].contains(&problem.status())), "{refused}");
}

#[tokio::test]
async fn without_any_node_the_error_says_so_when_the_patience_is_over() {
    let client = Client::new([format!("http://127.0.0.1:{}", free_port())]).unwrap().patience(seconds(1));
    let error = client.lock("k").wait(seconds(600)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    let error = client.operation("charge").begin(&1).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn a_change_goes_to_the_next_node_only_if_it_was_certainly_not_made() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let away = format!("http://127.0.0.1:{}", free_port());
    // A load balancer that has lost the answer of its node.
    let balancer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut vec![0; 65_536]).await.unwrap();
        stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await.unwrap();
    });
    let (limit, node) = (json!({ "limit": 3 }), node().await);
    let first_of = |urls: [String; 2]| loop {
        let client = Client::new(&urls).unwrap();
        if client.prefers(&urls[0]) {
            return client;
        }
    };
    let client = first_of([url, node.base_url()]);
    let error = client.call(Method::PUT, "/v1/locks/p/limit", Some(&limit)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    balancer.await.unwrap();
    let client = first_of([away, node.base_url()]);
    client.call(Method::PUT, "/v1/locks/p/limit", Some(&limit)).await.unwrap();
}

#[tokio::test]
async fn a_node_that_cannot_serve_is_called_again_not_before_it_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let lock = Client::new([url]).unwrap().patience(seconds(30)).lock("k");
    let acquiring = tokio::spawn(lock.acquire());
    let answers = [
        ("503 Service Unavailable", r#"{"status":503,"code":"overloaded","detail":"later","retry_after_ms":1500}"#),
        ("200 OK", r#"{"key":"k","lease_id":"x","owner":"a","token":7,"ttl_ms":30000}"#),
    ];
    let mut arrivals = Vec::new();
    for (status, body) in answers {
        arrivals.push(answered(&listener, status, body).await);
    }
    assert_eq!(acquiring.await.unwrap().unwrap().token(), 7);
    assert!(arrivals[1] - arrivals[0] >= std::time::Duration::from_millis(1_500));
}

#[tokio::test]
async fn a_wait_goes_on_while_a_quota_is_used_up() {
    let node = node().await;
    let lossy = Lossy::then_refusing(&node, "/acquire", 0, 429, "quota-reached").await;
    let lock = client_through(&lossy).patience(std::time::Duration::from_millis(1)).lock("k").wait(seconds(60));
    let acquiring = tokio::spawn(lock.acquire());
    lossy.until_refused(3).await;
    lossy.pass_all();
    assert!(acquiring.await.unwrap().unwrap().check().is_ok());
}

/// Answers the next request at the listener; returns when that arrived.
async fn answered(listener: &TcpListener, status: &str, body: &str) -> std::time::Instant {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = vec![0; 65_536];
    let _ = stream.read(&mut request).await.unwrap();
    let arrived = std::time::Instant::now();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await.unwrap();
    arrived
}

#[tokio::test]
async fn a_command_whose_output_cannot_be_written_ends_with_exit_code_74() {
    // An API key that could not be printed is revoked.
    let (_node, desk) = desk().await;
    desk.run(&["lock", "k", "--", "true"]).ends().await.assert(0, "");
    for command in [
        "locks list --all",
        "locks show k",
        "locks history k --json",
        "engines list",
        "api-key list --json; latchgate api-key generate",
        "app list",
        "openapi",
    ] {
        let ended = desk.shell(&format!("latchgate {command} >/dev/full")).ends().await;
        assert_eq!(ended.code, Some(74), "{command}: {}", ended.err);
        assert!(!ended.err.contains("panicked"), "{command}: {}", ended.err);
    }
    let created = desk.shell("latchgate api-key create --scope admin >/dev/full").ends().await;
    assert_eq!(created.code, Some(74), "{}", created.err);
    assert!(created.err.contains("is revoked"), "{}", created.err);
}

/// The base URL of a proxy in front of the node that merges the slashes of paths.
async fn merging(node: &Node) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address = node.base_url().trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let node = TcpStream::connect(&address).await.unwrap();
            let ((mut from, mut to), (mut answers, mut requests)) = (stream.into_split(), node.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 * 1_024];
                while let Ok(length @ 1..) = from.read(&mut buffer).await {
                    let request = String::from_utf8_lossy(&buffer[..length]).replace("%2F%2F", "%2F");
                    requests.write_all(request.as_bytes()).await.unwrap();
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn an_answer_about_another_key_stops_the_client_and_a_grant_is_given_back() {
    let node = node().await;
    let client = Client::new([merging(&node).await]).unwrap().patience(seconds(30));
    let other = client.lock("a/b").acquire().await.unwrap();
    let fenced = client.fence("a//b", other.token()).await;
    other.release().await.unwrap();
    let revoked = client.revoke("a//b", &Revoke::default()).await.map(|_| ());
    let granted = client.lock("a//b").acquire().await.map(|_| ());
    for refused in [fenced, revoked, granted] {
        let error = refused.unwrap_err();
        assert_eq!(error.code(), Some("other-key"), "{error}");
        assert!(error.to_string().contains("\"a/b\", not \"a//b\""), "{error}");
    }
    assert!(client.settled().await);
    assert_eq!(look(&node, "a%2Fb").await["held"], false);
    client.lock("a/b").acquire().await.unwrap().release().await.unwrap();
}
