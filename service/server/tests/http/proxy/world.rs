//! A service that knows nothing of idempotency, and proxies in front of it.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use latchgate_testkit::node::{self, Node};
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio::sync::Notify;

use crate::client::{BIN, embedded};

pub const LARGE: usize = 300_000;

/// A service that counts how often it is called with each key.
#[derive(Clone, Default)]
pub struct Service {
    calls: Arc<Mutex<HashMap<String, u32>>>,
    /// Lets the calls of `/slow` end.
    pub go_on: Arc<Notify>,
}

impl Service {
    pub async fn start() -> (Self, String) {
        let service = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let accepting = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = accepting.clone();
                tokio::spawn(async move { service.serve(stream).await });
            }
        });
        (service, url)
    }

    async fn serve(&self, mut stream: TcpStream) {
        let Some((head, length)) = read_request(&mut stream).await else { return };
        let (path, key) = (head.split(' ').nth(1).unwrap(), header(&head, "idempotency-key"));
        let call = *self.calls.lock().unwrap().entry(key.to_owned()).and_modify(|calls| *calls += 1).or_insert(1);
        let created = |body: &str| {
            let head = "HTTP/1.1 201 Created\r\nx-service: yes\r\nconnection: close\r\n";
            format!("{head}content-length: {}\r\n\r\n{body}", body.len())
        };
        let answer = match path {
            "/slow" => {
                self.go_on.notified().await;
                created("slow")
            }
            "/dies" => String::new(),
            "/dies-half-way" => "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf".to_owned(),
            "/host" => created(header(&head, "host")),
            "/large" => created(&"a".repeat(LARGE)),
            "/ambiguous" => {
                let head = "HTTP/1.1 201 Created\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n";
                format!("{head}5\r\nabcde\r\n0\r\n\r\n")
            }
            "/switches" => {
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n".to_owned()
            }
            // An old service, which ends the answer with the connection.
            "/old" => "HTTP/1.0 201 Created\r\n\r\nold".to_owned(),
            "/many-headers" => {
                let headers: String = (0..300).map(|number| format!("x-{number}: {number}\r\n")).collect();
                format!("HTTP/1.1 201 Created\r\n{headers}content-length: 4\r\n\r\nmany")
            }
            _ => match path.strip_prefix("/status/") {
                None => created(&format!("call {call} of {key}, {length} bytes")),
                Some(status) => {
                    let (head, text) = (format!("HTTP/1.1 {status} Any\r\nconnection: close"), format!("call {call}"));
                    format!("{head}\r\nretry-after: 1\r\ncontent-length: {}\r\n\r\n{text}", text.len())
                }
            },
        };
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    pub fn calls(&self, key: &str) -> u32 {
        self.calls.lock().unwrap().get(key).copied().unwrap_or_default()
    }
}

/// The head of a request, and the length of its body; `None` if the connection ends before.
async fn read_request(stream: &mut TcpStream) -> Option<(String, usize)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = header(&head, "content-length").parse().unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                return Some((head, length));
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// The value of a header; empty if it is absent.
fn header<'head>(head: &'head str, name: &str) -> &'head str {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim())
}

pub struct Proxy {
    pub url: String,
    pub upstream: String,
    _process: Child,
}

/// A service, and a proxy in front of it with a node of its own.
pub async fn proxied(more: &[&str]) -> (Service, Node, Proxy) {
    let ((service, upstream), node) = (Service::start().await, embedded().await);
    let proxy = proxy_of(&upstream, &node, more).await;
    (service, node, proxy)
}

pub async fn proxy_of(upstream: &str, node: &Node, more: &[&str]) -> Proxy {
    proxy_at(upstream, &node.base_url(), more).await
}

pub async fn proxy_at(upstream: &str, gate: &str, more: &[&str]) -> Proxy {
    let mut command = tokio::process::Command::from(node::command(BIN));
    command.args(["proxy", "--listen", "127.0.0.1:0", "--upstream", upstream, "--url", gate]).args(more);
    let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().expect("the proxy has ended");
    let url = line.split(' ').next_back().unwrap().to_owned();
    Proxy { url, upstream: upstream.to_owned(), _process: process }
}

impl Proxy {
    pub fn request(&self, path: &str, key: &str, body: &str) -> reqwest::RequestBuilder {
        Client::new().post(format!("{}{path}", self.url)).header("idempotency-key", key).body(body.to_owned())
    }

    pub async fn post(&self, path: &str, key: &str, body: &str) -> Response {
        self.request(path, key, body).send().await.unwrap()
    }

    /// The names of all that a refusal says: nothing of the app and the API key with which the proxy claims.
    pub async fn refusal(&self, path: &str, key: &str, body: &str) -> String {
        let refusal: Value = self.post(path, key, body).await.json().await.unwrap();
        refusal.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    pub async fn said(&self, path: &str, key: &str, body: &str) -> String {
        said(self.request(path, key, body)).await
    }
}

/// The status, whether it was replayed, and the code of a problem or the body.
pub async fn said(request: reqwest::RequestBuilder) -> String {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let mut text = response.text().await.unwrap();
    if headers.get("content-type").is_some_and(|kind| kind == "application/problem+json") {
        text = serde_json::from_str::<Value>(&text).unwrap()["code"].as_str().unwrap().to_owned();
    }
    format!("{status}{} {text}", if headers.contains_key("idempotency-replayed") { " replayed" } else { "" })
}

/// A POST without a body.
pub fn posting(target: &str, headers: &[&str]) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("POST {target} HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n")
}

/// Sends these bytes on a connection of their own; returns all that is answered.
pub async fn exchange(url: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}
