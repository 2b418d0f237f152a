//! Which answers are stored, and how they are replayed.

use latchgate_testkit::until;
use reqwest::redirect::Policy;
use serde_json::Value;

use super::world::{exchange, proxied};

#[tokio::test]
async fn an_answer_that_only_holds_for_now_is_not_stored() {
    let (service, _node, proxy) = proxied(&[]).await;
    for status in [408, 409, 425, 429, 500, 503] {
        let (key, path) = (format!("key {status}"), format!("/status/{status}"));
        for call in 1..=2 {
            let response = proxy.post(&path, &key, "").await;
            assert_eq!(response.status().as_u16(), status);
            assert!(!response.headers().contains_key("idempotency-replayed"));
            assert_eq!(response.text().await.unwrap(), format!("call {call}"));
        }
        assert_eq!(service.calls(&key), 2);
    }
    for status in [200, 302, 400, 404, 422] {
        let (key, path) = (format!("key {status}"), format!("/status/{status}"));
        for is_replayed in [false, true] {
            let response = proxy.post(&path, &key, "").await;
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key("idempotency-replayed"), is_replayed, "{status}");
            assert_eq!(response.text().await.unwrap(), "call 1");
        }
    }
}

#[tokio::test]
async fn a_replayed_answer_has_its_headers_byte_for_byte_but_sets_no_cookies() {
    let (service, _node, proxy) = proxied(&[]).await;
    let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    for cookies in [2, 0] {
        let request = client.post(format!("{}/moved", proxy.url)).header("idempotency-key", "k");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 303);
        assert_eq!(response.headers()["location"].as_bytes(), "/köln/7".as_bytes());
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), cookies);
    }
    assert_eq!(service.calls("k"), 1);
}

#[tokio::test]
async fn an_answer_with_a_length_and_chunks_is_passed_as_its_chunks_say() {
    let (_, _node, proxy) = proxied(&[]).await;
    for _ in 0..2 {
        assert_eq!(proxy.post("/ambiguous", "k", "").await.text().await.unwrap(), "abcde");
    }
    let passed = reqwest::Client::new().post(format!("{}/ambiguous", proxy.url)).send().await.unwrap();
    assert_eq!(passed.text().await.unwrap(), "abcde");
}

#[tokio::test]
async fn a_switch_of_protocols_is_neither_passed_nor_stored() {
    let (_, _node, proxy) = proxied(&[]).await;
    assert_eq!(proxy.refused("/switches", "k", "").await, (502, "upstream-failed".to_owned()));
    assert_eq!(proxy.refused("/switches", "k", "").await, (409, "operation-unknown".to_owned()));
    let passed = reqwest::Client::new().post(format!("{}/switches", proxy.url)).send().await.unwrap();
    assert_eq!(passed.status(), 502);
}

#[tokio::test]
async fn an_answer_with_hundreds_of_headers_is_one_and_is_replayed() {
    let (service, _node, proxy) = proxied(&[]).await;
    // The client of these tests reads at most a hundred.
    let request = "POST /many-headers HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\nidempotency-key: k\r\n\r\n";
    for is_replayed in [false, true] {
        let answer = exchange(&proxy.url, request).await;
        assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("x-299: 299\r\n"), "{answer}");
        assert_eq!((answer.contains("idempotency-replayed: true"), answer.ends_with("many")), (is_replayed, true));
    }
    assert_eq!(service.calls("k"), 1);
}

#[tokio::test]
async fn the_proxy_speaks_http_1_1_whatever_the_service_speaks() {
    let (_, _node, proxy) = proxied(&[]).await;
    for key in ["idempotency-key: k\r\n", "idempotency-key: k\r\n", ""] {
        let request = format!("POST /old HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n{key}\r\n");
        let answer = exchange(&proxy.url, &request).await;
        assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("old"), "{answer}");
    }
}

#[tokio::test]
async fn a_client_does_not_see_with_which_app_and_api_key_the_proxy_claims() {
    let (service, _node, proxy) = proxied(&[]).await;
    let running = tokio::spawn(proxy.request("/slow", "running", "").send());
    until("the service is called", || async { service.calls("running") == 1 }).await;
    proxy.refused("/dies", "unknown", "").await;
    for (path, key, body, fields) in [
        ("/slow", "running", "", &["code", "detail", "id", "retry_after_ms", "status"][..]),
        ("/dies", "unknown", "", &["code", "detail", "id", "status"]),
        ("/dies", "unknown", "other", &["code", "detail", "id", "status"]),
    ] {
        let refusal: Value = proxy.post(path, key, body).await.json().await.unwrap();
        let names: Vec<&String> = refusal.as_object().unwrap().keys().collect();
        assert_eq!(names, fields, "{refusal}");
    }
    service.go_on.notify_one();
    assert_eq!(running.await.unwrap().unwrap().status(), 201);
}
