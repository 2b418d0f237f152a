//! Clients that are silent, or gone.

use std::time::Duration;

use latchgate_testkit::until;
use reqwest::Response;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::world::{Proxy, Service, proxied};

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.url.trim_start_matches("http://")).await.unwrap()
}

#[tokio::test]
async fn silent_connections_make_room_for_others() {
    // Long enough that no time-out ends them.
    let (service, _node, proxy) = proxied(&["--connections-max", "4", "--client-timeout", "600000ms"]).await;
    let mut silent = Vec::new();
    let unfinished = "POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 9\r\n\r\na";
    for (key, sent) in (0..).zip(["", "POST / HT", unfinished]) {
        for _ in 0..4 {
            let mut stream = connect(&proxy).await;
            stream.write_all(sent.as_bytes()).await.unwrap();
            silent.push(stream);
        }
        let key = format!("key {key}");
        let answer = tokio::time::timeout(Duration::from_secs(60), proxy.post("/", &key, "")).await;
        assert_eq!(answer.expect("an answer").status(), 201, "{sent:?}");
    }
    assert_eq!(service.calls("k"), 0);
    // A running call is not ended for another client.
    let mut running = Vec::new();
    for key in ["k1", "k2", "k3"] {
        running.push(tokio::spawn(proxy.request("/slow", key, "").send()));
        until("the service is called", || async { service.calls(key) == 1 }).await;
    }
    for _ in 0..8 {
        silent.push(connect(&proxy).await);
    }
    assert_eq!(proxy.post("/", "k4", "").await.status(), 201);
    for call in running {
        until_answered(&service, call).await;
    }
}

/// Lets calls of `/slow` end until this one is answered.
async fn until_answered(service: &Service, call: JoinHandle<reqwest::Result<Response>>) {
    until("the call has ended", || async {
        service.go_on.notify_waiters();
        call.is_finished()
    })
    .await;
    assert_eq!(call.await.unwrap().unwrap().status(), 201);
}

#[tokio::test]
async fn calls_whose_clients_have_gone_count_as_connections() {
    let (service, _node, proxy) = proxied(&["--connections-max", "3"]).await;
    let calls = || (0..10).map(|key| service.calls(&format!("k{key}"))).sum::<u32>();
    for count in 1..=3 {
        let running = tokio::spawn(proxy.request("/slow", &format!("k{count}"), "").send());
        until("the service is called", || async { calls() == count }).await;
        running.abort();
    }
    let waiting = tokio::spawn(proxy.request("/slow", "k4", "").send());
    // A request that is not answered is no proof, so the next call must follow the end of one that has gone.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(calls(), 3);
    for _ in 0..2 {
        service.go_on.notify_one();
    }
    until("a call has ended, and the next one has begun", || async { calls() == 4 }).await;
    until_answered(&service, waiting).await;
}
