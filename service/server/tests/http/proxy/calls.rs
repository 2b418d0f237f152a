//! Which requests call the service, and how often.

use std::time::Duration;

use latchgate_testkit::lossy::Lossy;
use latchgate_testkit::until;
use reqwest::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::{LARGE, Proxy, Service, proxied, proxy_at, proxy_of, said};
use crate::client::{embedded, get};

#[tokio::test]
async fn a_repeat_gets_the_stored_answer_and_a_different_request_is_refused() {
    // Both have the same idempotency key.
    let (service, node, proxy) = proxied(&[]).await;
    assert_eq!(proxy.said("/orders?a=1", "\"k1\"", "pay").await, "201 call 1 of \"k1\", 3 bytes");
    for _ in 0..2 {
        assert_eq!(proxy.said("/orders?a=1", "\"k1\"", "pay").await, "201 replayed call 1 of \"k1\", 3 bytes");
        assert_eq!(proxy.post("/orders?a=1", "\"k1\"", "pay").await.headers()["x-service"], "yes");
    }
    for (path, body) in [("/orders?a=1", "pay more"), ("/orders?a=2", "pay"), ("/others", "pay")] {
        assert_eq!(proxy.said(path, "k1", body).await, "422 contents-mismatch");
    }
    assert_eq!(proxy.said("/orders", "\"open", "pay").await, "400 invalid-request");
    // Callers may be told apart by another header.
    let by_user = proxy_of(&proxy.upstream, &node, &["--operation", "users", "--caller-header", "X-User"]).await;
    for (token, user, expected) in [
        ("a", "ann", "201 call 1 of k1, 3 bytes"),
        ("renewed", "ann", "201 replayed call 1 of k1, 3 bytes"),
        ("a", "bob", "201 call 2 of k1, 3 bytes"),
    ] {
        let request = by_user.request("/orders", "k1", "pay").bearer_auth(token).header("x-user", user);
        assert_eq!(said(request).await, expected);
    }

    let running = tokio::spawn(proxy.request("/slow", "k2", "").send());
    until("the service is called", || async { service.calls("k2") == 1 }).await;
    assert_eq!(proxy.said("/slow", "k2", "").await, "409 operation-in-progress");
    assert_eq!(proxy.refusal("/slow", "k2", "").await, "code detail id retry_after_ms status");
    // The call goes on although its client has gone.
    running.abort();
    service.go_on.notify_one();
    until("the answer is stored", || async { proxy.said("/slow", "k2", "").await == "201 replayed slow" }).await;
    assert_eq!(service.calls("k2"), 1);
}

#[tokio::test]
async fn a_call_whose_upstream_dies_half_way_is_unknown_and_not_repeated() {
    let (service, node, proxy) = proxied(&[]).await;
    // A switch to another protocol is not passed.
    assert_eq!(Client::new().post(format!("{}/switches", proxy.url)).send().await.unwrap().status(), 502);
    for (key, path) in [("k1", "/dies"), ("k2", "/dies-half-way"), ("k4", "/switches")] {
        assert_eq!(proxy.said(path, key, "").await, "502 upstream-failed");
        for _ in 0..2 {
            assert_eq!(proxy.said(path, key, "").await, "409 operation-unknown");
        }
        assert_eq!(service.calls(key), 1);
    }
    for body in ["", "other"] {
        assert_eq!(proxy.refusal("/dies", "k1", body).await, "code detail id status");
    }
    // A service that cannot be reached has done nothing.
    let away = proxy_of("http://127.0.0.1:1", &node, &[]).await;
    assert_eq!(away.said("/", "k3", "").await, "502 upstream-unreachable");
    assert_eq!(proxy.post("/", "k3", "").await.status(), 201);
}

#[tokio::test]
async fn an_upload_without_a_key_may_take_longer_than_the_upstream_may_pause() {
    let (_, _node, proxy) = proxied(&["--upstream-timeout", "2000ms"]).await;
    let mut upload = TcpStream::connect(proxy.url.trim_start_matches("http://")).await.unwrap();
    upload.write_all(b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 25\r\n\r\n").await.unwrap();
    for _ in 0..25 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        upload.write_all(b"a").await.unwrap();
    }
    let mut answer = String::new();
    upload.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201") && answer.ends_with("25 bytes"), "{answer}");
}

#[tokio::test]
async fn with_a_key_long_requests_and_long_answers_are_passed_up_to_a_limit() {
    let (service, node, proxy) = proxied(&["--body-bytes-max", "1000000"]).await;
    let long = "a".repeat(900_000);
    for _ in 0..2 {
        assert!(proxy.said("/", "k1", &long).await.ends_with("call 1 of k1, 900000 bytes"));
    }
    assert_eq!(proxy.post("/large", "k4", "").await.bytes().await.unwrap().len(), LARGE);
    assert_eq!(proxy.said("/large", "k4", "").await, "409 response-not-stored");
    assert_eq!((service.calls("k1"), service.calls("k4")), (1, 1));
    let longer = "a".repeat(5 << 20);
    assert_eq!(proxy.said("/", "k2", &longer).await, "413 body-too-large");
    assert_eq!(service.calls("k2"), 0);
    let small = proxy_of(&proxy.upstream, &node, &["--body-bytes-max", "200000"]).await;
    for _ in 0..2 {
        assert_eq!(small.said("/large", "k3", "").await, "409 response-not-stored");
    }
    assert_eq!(service.calls("k3"), 1);
    for call in 1..=2 {
        let passed = Client::new().post(format!("{}/", proxy.url)).body(longer.clone()).send().await.unwrap();
        assert_eq!(passed.text().await.unwrap(), format!("call {call} of , {} bytes", longer.len()));
    }
    let strict = proxy_of(&proxy.upstream, &node, &["--require-key"]).await;
    assert_eq!(Client::new().post(&strict.url).send().await.unwrap().status(), 400);
    assert_eq!(Client::new().get(&strict.url).send().await.unwrap().status(), 201);
}

#[tokio::test]
async fn only_a_proxy_that_may_proceed_calls_in_an_outage_and_enters_the_answer() {
    let bounds = ["--gate-timeout", "500ms", "--retry-for", "1s"];
    let (service, mut node, proxy) = proxied(&[&bounds[..], &["--on-outage", "proceed"]].concat()).await;
    let strict = proxy_of(&proxy.upstream, &node, &bounds).await;
    node.kill9();
    assert_eq!(strict.said("/", "k2", "").await, "503 gate-unreachable");
    assert_eq!(service.calls("k2"), 0);
    assert_eq!(proxy.said("/", "k1", "").await, "201 call 1 of k1, 0 bytes");
    node.start_again().await;
    until_free(&strict, "k2").await;
    let are_both_listed = || async {
        let answer = get(&node, "/v1/operations?state=succeeded").await.body;
        answer["operations"].as_array().is_some_and(|operations| operations.len() == 2)
    };
    until("the call is entered", are_both_listed).await;
    assert_eq!(proxy.said("/", "k1", "").await, "201 replayed call 1 of k1, 0 bytes");
    assert_eq!(service.calls("k1"), 1);
}

async fn until_free(proxy: &Proxy, key: &str) {
    let first = format!("201 call 1 of {key}, 0 bytes");
    until(format!("{key} is free"), || async { proxy.said("/", key, "").await == first }).await;
}

#[tokio::test]
async fn a_key_that_the_proxy_asks_for_when_its_client_goes_away_is_given_back() {
    let ((service, upstream), node) = (Service::start().await, embedded().await);
    let lossy = Lossy::of_all(&node, "/pre").await;
    let proxy = proxy_at(&upstream, &lossy.base_url(), &[]).await;
    let asking = tokio::spawn(proxy.request("/", "k", "").send());
    lossy.until_lost_one().await;
    asking.abort();
    lossy.pass_all();
    until_free(&proxy, "k").await;
    assert_eq!(service.calls("k"), 1);
}

#[tokio::test]
async fn an_outcome_that_the_gate_refuses_for_a_while_is_reported_again() {
    let ((service, upstream), node) = (Service::start().await, embedded().await);
    for (status, code) in [(429, "rate-limited"), (500, "internal-error")] {
        let key = format!("key {status}");
        let lossy = Lossy::then_refusing(&node, "/post", 0, status, code).await;
        let proxy = proxy_at(&upstream, &lossy.base_url(), &[]).await;
        let calling = tokio::spawn(proxy.request("/", &key, "").send());
        lossy.until_refused(2).await;
        lossy.pass_all();
        assert_eq!(calling.await.unwrap().unwrap().status(), 201);
        assert!(proxy.said("/", &key, "").await.starts_with("201 replayed "));
        assert_eq!(service.calls(&key), 1);
    }
}
