//! A client of several nodes, for clients that record what they see: each call goes to a random node.

use std::time::{Duration, Instant};

use latchgate_bench::http::{Connection, Target, get, post};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

const PAUSE_MAX: Duration = Duration::from_millis(100);
const HOLD_MAX: Duration = Duration::from_millis(20);
/// How long a client waits for an answer, in addition to `wait_ms`.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Caller {
    /// Each with its connection, opened by the first call.
    nodes: Vec<(Target, Option<Connection>)>,
}

pub(crate) struct Answer {
    /// The node's index.
    pub node: usize,
    pub sent: Instant,
    /// When the answer arrived or the call failed.
    pub received: Instant,
    /// Or the error, if there was no answer.
    pub status: Result<u16, String>,
    pub body: Value,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        matches!(self.status, Ok(200..300))
    }

    /// Neither success nor refusal: the call must be repeated.
    pub fn is_undecided(&self) -> bool {
        matches!(self.status, Err(_) | Ok(500..))
    }

    pub fn code(&self) -> Option<&str> {
        self.body["code"].as_str()
    }

    /// Until when the client may rely on the lease, counted from before the request.
    pub fn until(&self) -> Instant {
        self.sent + Duration::from_millis(self.body["ttl_ms"].as_u64().unwrap_or(0))
    }
}

impl Caller {
    pub fn new(targets: &[Target]) -> Self {
        Self { nodes: targets.iter().map(|target| (target.clone(), None)).collect() }
    }

    pub async fn call(&mut self, path: &str, body: &Value, wait: Duration) -> Answer {
        self.send(|target| post(target, path, &body.to_string()), wait + PATIENCE).await
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.send(|target| get(target, path), PATIENCE).await
    }

    /// Closes the connection after a random time, perhaps before there is an answer.
    pub async fn hang_up(&mut self, path: &str, body: &Value) -> Answer {
        self.nodes.iter_mut().for_each(|node| node.1 = None);
        let answer = self.send(|target| post(target, path, &body.to_string()), PAUSE_MAX.mul_f64(rand::random())).await;
        self.nodes[answer.node].1 = None;
        answer
    }

    async fn send(&mut self, request: impl Fn(&Target) -> String, patience: Duration) -> Answer {
        let node = rand::random_range(0..self.nodes.len());
        let sent = Instant::now();
        let answered = timeout(patience, self.exchange(node, &request(&self.nodes[node].0))).await;
        let received = Instant::now();
        let (status, body) = match answered.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            Ok((status, body)) => (Ok(status), body),
            Err(error) => {
                self.nodes[node].1 = None;
                (Err(error), Value::Null)
            }
        };
        Answer { node, sent, received, status, body }
    }

    async fn exchange(&mut self, node: usize, request: &str) -> Result<(u16, Value), String> {
        let (target, connection) = &mut self.nodes[node];
        let connection = match connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(target).await.map_err(|error| format!("{error:#}"))?),
        };
        let (status, body) = connection.send(request.as_bytes()).await.map_err(|error| error.to_string())?;
        Ok((status, serde_json::from_slice(body).unwrap_or_default()))
    }
}

/// The end of a run: after so many seconds, or at SIGTERM or SIGINT.
pub(crate) fn end(seconds: u64) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
            () = sleep(Duration::from_secs(seconds)) => {}
        }
    })
}

/// Never, if `count` is 0.
pub(crate) fn one_in(count: u64) -> bool {
    count > 0 && rand::random_range(0..count) == 0
}

/// Between two calls about a held lock.
pub(crate) async fn hold() {
    sleep(HOLD_MAX.mul_f64(rand::random())).await;
}

/// Of random length, so that clients that fail together do not return together.
pub(crate) async fn pause() {
    sleep(PAUSE_MAX.mul_f64(rand::random())).await;
}
