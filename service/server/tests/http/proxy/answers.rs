//! Which answers are stored, and how they are replayed.

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
