//! Which answers are stored, and how they are replayed.

use latchgate_testkit::until;
use serde_json::Value;

use super::world::{exchange, posting, proxied};

#[tokio::test]
async fn an_answer_that_only_holds_for_now_is_not_stored() {
    let (service, _node, proxy) = proxied(&[]).await;
    for status in [408, 409, 425, 429, 500, 503] {
        let (key, path) = (format!("key {status}"), format!("/status/{status}"));
        for call in 1..=2 {
            assert_eq!(proxy.said(&path, &key, "").await, format!("{status} call {call}"));
        }
        assert_eq!(service.calls(&key), 2);
    }
    for status in [200, 302, 400, 404, 422] {
        let (key, path) = (format!("key {status}"), format!("/status/{status}"));
        for replayed in ["", " replayed"] {
            assert_eq!(proxy.said(&path, &key, "").await, format!("{status}{replayed} call 1"));
        }
    }
}

/// Of a length and chunks, the chunks count. There are hundreds of headers, and an answer of HTTP 1.0.
#[tokio::test]
async fn unusual_answers_are_passed_and_replayed_in_http_1_1() {
    let (service, _node, proxy) = proxied(&[]).await;
    for (path, header, body) in
        [("/ambiguous", "", "abcde"), ("/many-headers", "x-299: 299\r\n", "many"), ("/old", "", "old")]
    {
        let with_key = format!("idempotency-key: {path}");
        for (key, is_replayed) in [(&*with_key, false), (&*with_key, true), ("x-other: none", false)] {
            let answer = exchange(&proxy.url, &posting(path, &["host: a", key])).await;
            assert!(answer.starts_with("HTTP/1.1 201") && answer.contains(header), "{path}: {answer}");
            let (head, sent) = answer.split_once("\r\n\r\n").unwrap();
            assert!(sent.contains(body) && !head.contains("content-length: 3\r\n"), "{path}: {answer}");
            assert_eq!(head.contains("idempotency-replayed: true"), is_replayed, "{path}: {answer}");
        }
        assert_eq!(service.calls(path), 1);
    }
}

#[tokio::test]
async fn a_client_does_not_see_with_which_app_and_api_key_the_proxy_claims() {
    let (service, _node, proxy) = proxied(&[]).await;
    let running = tokio::spawn(proxy.request("/slow", "running", "").send());
    until("the service is called", || async { service.calls("running") == 1 }).await;
    proxy.said("/dies", "unknown", "").await;
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
