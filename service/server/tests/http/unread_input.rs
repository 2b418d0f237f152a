//! Input that an endpoint does not read is refused, and what a client has sent does not keep it from reading the answer.

use std::collections::{BTreeMap, BTreeSet};

use latchgate_testkit::node::Node;
use reqwest::Method;
use serde_json::json;

use crate::client::{embedded, get, granted, http, inspect, send, sent};
use crate::described::endpoints;
use crate::raw::Raw;

#[tokio::test]
async fn undefined_query_parameters_are_refused_on_every_endpoint_and_method() {
    let node = embedded().await;
    for (method, path, _) in endpoints().filter(|(_, path, _)| !["/healthz", "/readyz"].contains(&path.as_str())) {
        sent(&node, method.clone(), &format!("{path}?ttl_ms=5000"), "").await.assert_names("ttl_ms");
        sent(&node, method, &format!("{path}?dry%20run"), "").await.assert_names("dry run");
    }
    assert_eq!(inspect(&node, "k").await["last_token"], 0);
    assert_eq!(sent(&node, Method::POST, "/v1/locks/k/acquire?", "").await.status, 200);
}

#[tokio::test]
async fn a_body_that_an_endpoint_does_not_take_is_refused() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    for (method, path, _) in endpoints().filter(|(.., said)| said.get("requestBody").is_none()) {
        for body in [r#"{"reason":"stuck"}"#, "{}", " "] {
            sent(&node, method.clone(), &path, body).await.assert_names("body");
        }
    }
    assert_eq!(inspect(&node, "k").await["held"], true);
    // Neither a length of 0 nor an empty chunk is a body.
    for length in ["content-length: 0\r\n\r\n", "transfer-encoding: chunked\r\n\r\n0\r\n\r\n"] {
        let mut client = Raw::connect(&node).await;
        client.send(format!("DELETE /v1/locks/k HTTP/1.1\r\nhost: x\r\n{length}")).await;
        assert_eq!(client.answer().await.unwrap().status, 200, "{length}");
    }
}

/// The test of target.rs has more texts.
#[tokio::test]
async fn paths_and_queries_that_are_not_percent_encoded_utf_8_are_refused() {
    let node = embedded().await;
    for key in ["a%", "%ff", "a%ZZ/b"] {
        get(&node, &format!("/v1/locks/{key}")).await.assert_problem(400, "invalid-key");
        sent(&node, Method::POST, &format!("/v1/locks/{key}/acquire"), "").await.assert_problem(400, "invalid-key");
        for (path, field) in [
            ("/v1/operations/", "path"),
            ("/errors/", "path"),
            ("/nowhere/", "path"),
            ("/v1/locks?limit=1&prefix=b", "prefix"),
            ("/v1/operations?operation=", "operation"),
        ] {
            get(&node, &format!("{path}{key}")).await.assert_names(field);
        }
    }
}

#[tokio::test]
async fn a_client_that_sends_all_of_a_body_before_it_reads_gets_the_refusal() {
    let node = embedded().await;
    let body = " ".repeat(3 << 20);
    let chunks = format!("{:x}\r\n{}\r\n", 1 << 16, " ".repeat(1 << 16)).repeat(48);
    for (path, status, code) in [
        ("/v1/locks/k/acquire", 413, "body-too-large"),
        ("/v1/operations/pre", 413, "body-too-large"),
        ("/v1/locks/%zz/acquire", 400, "invalid-key"),
        ("/nowhere", 404, "not-found"),
        ("/v1/locks", 405, "method-not-allowed"),
    ] {
        for rest in [
            format!("content-length: {}\r\n\r\n{body}", body.len()),
            format!("transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
        ] {
            let mut client = Raw::connect(&node).await;
            client.send(format!("POST {path} HTTP/1.1\r\nhost: x\r\n{rest}")).await;
            let answer = client.answer().await.expect("an answer");
            assert_eq!((answer.status, &answer.body["code"]), (status, &json!(code)));
        }
    }
}

#[tokio::test]
async fn headers_and_bodies_that_never_end_are_cut_off() {
    let node = Node::start(crate::client::BIN, &["--read-timeout", "2s"]).await;
    let head = "POST /v1/locks/k/acquire HTTP/1.1\r\nhost: x";
    let (mut slow_head, mut slow_body) = (Raw::connect(&node).await, Raw::connect(&node).await);
    slow_head.send(head).await;
    slow_body.send(format!("{head}\r\ncontent-length: 10\r\n\r\n{{")).await;
    assert!(slow_head.answer().await.is_none());
    let answer = slow_body.answer().await.unwrap();
    assert_eq!((answer.status, &answer.body["code"]), (400, &json!("body-timeout")));
    assert!(slow_body.answer().await.is_none());
    assert_eq!(inspect(&node, "k").await["held"], false);
    let mut client = Raw::connect(&node).await;
    client.send("POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 900000000000\r\n\r\n").await;
    let megabyte = vec![b' '; 1 << 20];
    let mut sent = 0;
    while client.try_send(&megabyte).await {
        sent += 1;
        assert!(sent < 1_000, "the node reads without end");
    }
}

/// It allows a page of another origin nothing.
#[tokio::test]
async fn allow_names_the_methods_of_the_path_and_options_answers() {
    let node = embedded().await;
    let mut methods = BTreeMap::from([("/".to_owned(), vec!["GET".to_owned()])]);
    for (method, path, _) in endpoints() {
        methods.entry(path).or_default().push(method.to_string());
    }
    methods.insert("/v1/locks/a/b".to_owned(), methods["/v1/locks/k"].clone());
    for (path, mut expected) in methods {
        if expected.contains(&"GET".to_owned()) {
            expected.push("HEAD".to_owned());
        }
        expected.push("OPTIONS".to_owned());
        let preflight = http()
            .request(Method::OPTIONS, format!("{}{path}", node.base_url()))
            .header("origin", "https://evil.example")
            .header("sec-fetch-site", "cross-site")
            .header("access-control-request-method", "DELETE");
        let wrong = sent(&node, Method::TRACE, &path, "").await;
        wrong.assert_problem(405, "method-not-allowed");
        for (answer, status) in
            [(sent(&node, Method::OPTIONS, &path, "").await, 204), (send(preflight).await, 204), (wrong, 405)]
        {
            let allowed: BTreeSet<&str> = answer.headers["allow"].to_str().unwrap().split(',').collect();
            assert_eq!(
                (answer.status.as_u16(), allowed),
                (status, expected.iter().map(String::as_str).collect()),
                "{path}"
            );
            assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control-")), "{path}");
        }
    }
    sent(&node, Method::OPTIONS, "/nowhere", "").await.assert_problem(404, "not-found");
}
