//! A node with an operator, and clients with API keys.

use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::client::{Answer, BIN, http, send};
use crate::history::Events;

pub const LONG: Duration = Duration::from_secs(30);
/// An operator's API key in the configuration of the nodes.
pub const ADMIN: &str = "lgk_0123456789ab_c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee000033df08";
pub const OPERATOR: &[(&str, &str)] = &[("LATCHGATE_ADMIN_API_KEY", ADMIN)];

/// A node whose operator has [`ADMIN`].
pub async fn guarded(args: &[&str]) -> Node {
    Node::start_with(BIN, args, OPERATOR).await
}

/// Such a node, and its operator.
pub async fn operated() -> (Node, Caller) {
    let node = guarded(&[]).await;
    let operator = Caller::operator(&node);
    (node, operator)
}

/// Two such nodes on one database.
pub async fn two_guarded() -> (Node, Node) {
    let database = shared_database().await;
    (guarded(&["--locks", &database]).await, guarded(&["--locks", &database]).await)
}

/// A client with an API key.
#[derive(Clone)]
pub struct Caller {
    pub base_url: String,
    pub key: String,
}

impl Caller {
    pub fn new(node: &Node, key: &str) -> Self {
        Self { base_url: node.base_url(), key: key.to_owned() }
    }

    pub fn operator(node: &Node) -> Self {
        Self::new(node, ADMIN)
    }

    /// A caller with a new API key of a new app, with all scopes but admin.
    pub async fn of_app(node: &Node, app: &str) -> Self {
        Self::with(node, json!({ "app": app, "scopes": ["read", "locks", "operations"] })).await
    }

    /// A caller with a new API key. Its app is created.
    pub async fn with(node: &Node, request: Value) -> Self {
        let operator = Self::operator(node);
        if let Some(app) = request["app"].as_str() {
            operator.ok(Method::POST, "/v1/admin/apps", json!({ "app": app })).await;
        }
        let created = operator.ok(Method::POST, "/v1/admin/api-keys", request).await;
        Self::new(node, &created.text("api_key"))
    }

    /// The same API key at another node.
    pub fn at(&self, node: &Node) -> Self {
        Self::new(node, &self.key)
    }

    /// The part of the API key that is not secret.
    pub fn id(&self) -> &str {
        &self.key[4..16]
    }

    pub async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        let request = http().request(method, format!("{}{path}", self.base_url)).bearer_auth(&self.key);
        send(if body.is_null() { request } else { request.body(body.to_string()) }).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, body).await
    }

    /// Sends a request that will wait.
    pub fn waiting(&self, path: &str, body: Value) -> JoinHandle<Answer> {
        let (caller, path) = (self.clone(), path.to_owned());
        tokio::spawn(async move { caller.post(&path, body).await })
    }

    /// Fails unless the answer allows a new attempt.
    pub async fn begun(&self, body: Value) -> Answer {
        let answer = self.post("/v1/operations/pre", body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, Value::Null).await
    }

    /// Fails unless the answer is 2xx.
    pub async fn ok(&self, method: Method, path: &str, body: Value) -> Answer {
        let answer = self.call(method, path, body).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
        answer
    }

    /// What happens from now on, or after the event with this id.
    pub async fn events(&self, path: &str, after: &str) -> Events {
        let request = http().get(format!("{}{path}", self.base_url)).bearer_auth(&self.key);
        Events::of(if after.is_empty() { request } else { request.header("last-event-id", after) }).await
    }

    pub async fn acquire(&self, key: &str, body: Value) -> Answer {
        self.post(&format!("/v1/locks/{key}/acquire"), body).await
    }

    pub async fn granted(&self, key: &str) -> Answer {
        self.ok(Method::POST, &format!("/v1/locks/{key}/acquire"), json!({ "ttl_ms": 300_000 })).await
    }

    pub async fn revoke(&self, id: &str) {
        self.ok(Method::DELETE, &format!("/v1/admin/api-keys/{id}"), Value::Null).await;
    }

    pub async fn is_accepted(&self) -> bool {
        self.get("/v1/locks").await.status == 200
    }
}
