//! A thin client, and short functions to start nodes.

use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::until;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

pub const BIN: &str = env!("CARGO_BIN_EXE_latchgate");

/// A node with its own SQLite file.
pub async fn embedded() -> Node {
    Node::start(BIN, &[]).await
}

/// A node on `database`.
pub async fn on_postgres(database: &str) -> Node {
    Node::start(BIN, &["--locks", database]).await
}

/// A database, and a node on it.
pub async fn on_database() -> (String, Node) {
    let database = shared_database().await;
    let node = on_postgres(&database).await;
    (database, node)
}

/// Two nodes on one database.
pub async fn two_nodes() -> (Node, Node) {
    let database = shared_database().await;
    (on_postgres(&database).await, on_postgres(&database).await)
}

pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
    pub headers: reqwest::header::HeaderMap,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_else(|| panic!("no {field} in {}", self.body)).to_owned()
    }

    pub fn token(&self) -> u64 {
        self.body["token"].as_u64().unwrap_or_else(|| panic!("no token in {}", self.body))
    }

    /// Fails unless the answer is this problem, with all fields.
    pub fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code()), (status, code), "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["type"], format!("/errors/{code}"));
        assert_eq!(self.body["status"], status);
        assert!(self.body["title"].is_string() && self.body["detail"].is_string(), "{}", self.body);
        assert!(self.headers.contains_key("x-request-id"));
        crate::described::check(&self.body);
    }

    /// Fails unless the request was refused because of this field.
    pub fn assert_names(&self, field: &str) {
        self.assert_problem(400, "invalid-request");
        assert_eq!(self.body["field"], field, "{}", self.body);
    }
}

/// Without the authorities that the system trusts: to read them is most of the time of a short request.
pub fn http() -> Client {
    Client::builder().tls_certs_only([]).build().unwrap()
}

pub async fn send(request: reqwest::RequestBuilder) -> Answer {
    try_send(request).await.expect("an answer")
}

pub async fn try_send(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await?;
    Ok(Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
}

/// Posts a body as `curl -d` does: with the content type of a form.
pub async fn post(url: String, body: impl Into<reqwest::Body>) -> Answer {
    send(http().post(url).header("content-type", "application/x-www-form-urlencoded").body(body)).await
}

pub async fn get(node: &Node, path: &str) -> Answer {
    send(http().get(format!("{}{path}", node.base_url()))).await
}

pub async fn acquire(node: &Node, key: &str, body: Value) -> Answer {
    post(format!("{}/v1/locks/{key}/acquire", node.base_url()), body.to_string()).await
}

/// Fails unless the lock is granted.
pub async fn granted(node: &Node, key: &str, body: Value) -> Answer {
    let answer = acquire(node, key, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

pub async fn renew(node: &Node, key: &str, lease_id: &str) -> Answer {
    post(format!("{}/v1/locks/{key}/renew", node.base_url()), json!({ "lease_id": lease_id }).to_string()).await
}

pub async fn release(node: &Node, key: &str, lease_id: &str) -> Answer {
    post(format!("{}/v1/locks/{key}/release", node.base_url()), json!({ "lease_id": lease_id }).to_string()).await
}

pub async fn inspect(node: &Node, key: &str) -> Value {
    get(node, &format!("/v1/locks/{key}")).await.body
}

/// Runs a command of the binary until it ends.
pub async fn latchgate(args: &[&str]) -> std::process::Output {
    run(args, &[]).await
}

pub async fn run(args: &[&str], env: &[(&str, &str)]) -> std::process::Output {
    let mut command = tokio::process::Command::from(latchgate_testkit::node::command(BIN));
    let output = command.args(args).envs(env.iter().copied()).kill_on_drop(true).output();
    tokio::time::timeout(Duration::from_secs(60), output).await.expect("the command hangs").unwrap()
}

/// Sends a request with any method, path and body.
pub async fn sent(node: &Node, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    send(http().request(method, format!("{}{path}", node.base_url())).body(body)).await
}

/// Sends a request with any method and path. GET and DELETE take no body.
pub async fn request(node: &Node, method: Method, path: &str, body: Value) -> Answer {
    let takes_none = method == Method::GET || method == Method::DELETE;
    sent(node, method, path, if takes_none { String::new() } else { body.to_string() }).await
}

/// `renew`, `revoke`, `fence` and so on.
pub async fn verb(node: &Node, key: &str, verb: &str, body: Value) -> Answer {
    request(node, Method::POST, &format!("/v1/locks/{key}/{verb}"), body).await
}

/// `acquire` of many keys, or `renew` or `release` of many leases.
pub async fn many(node: &Node, verb: &str, body: Value) -> Answer {
    let of = if verb == "acquire" { "multilocks" } else { "leases" };
    request(node, Method::POST, &format!("/v1/{of}/{verb}"), body).await
}

/// The leases of a multilock.
pub fn leases(lease_id: &str, keys: &[&str]) -> Value {
    let leases: Value = keys.iter().map(|key| json!({ "key": key, "lease_id": lease_id })).collect();
    json!({ "leases": leases })
}

/// Sends an acquire that will wait.
pub fn waiting(node: &Node, key: &str, body: Value) -> tokio::task::JoinHandle<Answer> {
    let url = format!("{}/v1/locks/{key}/acquire", node.base_url());
    tokio::spawn(async move { post(url, body.to_string()).await })
}

pub async fn until_waiting(node: &Node, key: &str, waiters: u64) {
    until(format!("{waiters} waiters for {key}"), || async { inspect(node, key).await["waiters"] == waiters }).await;
}

pub async fn pre(node: &Node, body: Value) -> Answer {
    post(format!("{}/v1/operations/pre", node.base_url()), body.to_string()).await
}

/// Fails unless the answer allows a new attempt.
pub async fn begun(node: &Node, body: Value) -> Answer {
    let answer = pre(node, body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer
}

/// Posts the end of the attempt that `go` began: `body` without the stamp.
pub async fn report(node: &Node, go: &Answer, mut body: Value) -> Answer {
    body["stamp"] = go.body["stamp"].clone();
    post(format!("{}/v1/operations/{}/post", node.base_url(), go.text("id")), body.to_string()).await
}

/// Renews the lease of the attempt that `go` began: `body` without the stamp.
pub async fn beat(node: &Node, go: &Answer, mut body: Value) -> Answer {
    body["stamp"] = go.body["stamp"].clone();
    post(format!("{}/v1/operations/{}/heartbeat", node.base_url(), go.text("id")), body.to_string()).await
}

pub async fn inspect_operation(node: &Node, id: &str) -> Answer {
    get(node, &format!("/v1/operations/{id}")).await
}

pub async fn forget(node: &Node, id: &str, query: &str) -> Answer {
    send(http().delete(format!("{}/v1/operations/{id}{query}", node.base_url()))).await
}
