//! An answer belongs to one caller and one request.

use super::world::{exchange, posting, proxied, proxy_of};

#[tokio::test]
async fn the_answer_to_one_caller_is_never_replayed_to_another() {
    let (service, node, proxy) = proxied(&[]).await;
    let callers: [&[&str]; 5] = [
        &["host: a.example"],
        &["host: b.example"],
        &["host: a.example", "cookie: session=ann"],
        &["host: a.example", "cookie: session=bob"],
        &["host: a.example", "authorization: Basic YQ==", "cookie: session=bob"],
    ];
    for (call, caller) in (1..).zip(callers) {
        for _ in 0..2 {
            let answer = exchange(&proxy.url, &posting("/", &[caller, &["idempotency-key: k"]].concat())).await;
            assert!(answer.ends_with(&format!("call {call} of k, 0 bytes")), "{caller:?}: {answer}");
        }
    }
    assert_eq!(service.calls("k"), 5);
    let by_none = proxy_of(&proxy.upstream, &node, &["--operation", "all", "--caller-header", ""]).await;
    for cookie in ["cookie: session=ann", "cookie: session=bob"] {
        let request = posting("/", &["host: a.example", cookie, "idempotency-key: k"]);
        assert!(exchange(&by_none.url, &request).await.ends_with("call 6 of k, 0 bytes"));
    }
}

/// The tests of same.rs have more ways.
#[tokio::test]
async fn a_repeat_is_the_same_request_however_it_is_written() {
    let (service, _node, proxy) = proxied(&[]).await;
    for (target, host, login, boundary, value, expected) in [
        ("/p", "a.example", "Bearer x", "first", 7, "call 1 of k"),
        ("http://A.Example/%70?", "b", "BEARER  x", "other", 7, "call 1 of k"),
        ("/p", "a.example:80", "Bearer x", "first", 8, "contents-mismatch"),
    ] {
        let form = format!("--{boundary}\r\n\r\n{value}\r\n--{boundary}--\r\n");
        let head = format!("POST {target} HTTP/1.1\r\nconnection: close\r\nhost: {host}\r\nauthorization: {login}");
        let kind = format!("idempotency-key: k\r\ncontent-type: multipart/form-data; boundary={boundary}");
        let request = format!("{head}\r\n{kind}\r\ncontent-length: {}\r\n\r\n{form}", form.len());
        let answer = exchange(&proxy.url, &request).await;
        assert!(answer.contains(expected), "{target} {host}: {answer}");
    }
    assert_eq!(service.calls("k"), 1);
}

#[tokio::test]
async fn requests_that_could_be_read_in_two_ways_and_tunnels_are_refused() {
    let (service, _node, proxy) = proxied(&["--methods", "CONNECT,POST"]).await;
    let twice = ["authorization: a", "cookie: a", "content-type: a", "content-encoding: a", "idempotency-key: k"];
    let mut refused: Vec<(String, u16)> =
        twice.iter().map(|twice| (posting("/", &["host: a", "idempotency-key: k", twice, twice]), 400)).collect();
    // Also without a key: the service might believe the other one.
    refused.push((posting("/", &["host: a", "host: b"]), 400));
    refused.push((posting("http://user@a.example/host", &["host: a.example"]), 400));
    for key in ["", "idempotency-key: k\r\n"] {
        let head = "CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\nconnection: close\r\n";
        refused.push((format!("{head}{key}\r\n"), 405));
    }
    for (request, status) in refused {
        let answer = exchange(&proxy.url, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}{answer}");
    }
    assert_eq!((service.calls("k"), service.calls("")), (0, 0));
}

#[tokio::test]
async fn a_target_with_a_host_replaces_the_header() {
    let (_, _node, proxy) = proxied(&[]).await;
    for key in [&["host: b.example", "idempotency-key: k"][..], &["host: b.example"]] {
        let answer = exchange(&proxy.url, &posting("http://a.example:81/host", key)).await;
        assert!(answer.ends_with("\r\n\r\na.example:81"), "{answer}");
    }
    let same = exchange(&proxy.url, &posting("/host", &["host: a.example:81", "idempotency-key: k"])).await;
    assert!(same.to_lowercase().contains("idempotency-replayed: true"), "{same}");
}
