//! A client of several nodes, for clients that record what they see: each call goes to a random node.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use latchgate_bench::http::{Connection, Target, post};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

const PAUSE_MAX: Duration = Duration::from_millis(100);
const HOLD_MAX: Duration = Duration::from_millis(20);
/// How long a client waits for an answer, in addition to `wait_ms`.
const PATIENCE: Duration = Duration::from_secs(10);

/// The error of a call whose client has waited long enough.
pub const NO_ANSWER: &str = "no answer in time";

/// A connection to a node, by TCP or in memory.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type Connecting = BoxFuture<'static, io::Result<BoxedStream>>;
type BoxedStream = Box<dyn Stream>;

/// A node as clients reach it.
#[derive(Clone)]
pub struct Endpoint {
    pub target: Target,
    pub connect: Arc<dyn Fn() -> Connecting + Send + Sync>,
}

impl Endpoint {
    /// Over the network.
    pub fn new(target: Target) -> Self {
        let connected = target.clone();
        let connect = move || {
            let target = connected.clone();
            async move { Ok(Box::new(target.connect().await?) as BoxedStream) }.boxed()
        };
        Self { target, connect: Arc::new(connect) }
    }

    /// In this process. `connect` makes a connection and returns its end of the client.
    ///
    /// # Panics
    /// When `name` is no name of a host.
    pub fn in_process(name: &str, connect: impl Fn() -> DuplexStream + Send + Sync + 'static) -> Self {
        let connect = move || ready(Ok(Box::new(connect()) as BoxedStream)).boxed();
        Self { target: Target::parse(&format!("http://{name}:80")).expect("a name"), connect: Arc::new(connect) }
    }
}

pub(crate) struct Caller {
    /// Each with its connection, opened by the first call.
    nodes: Vec<(Endpoint, Option<Connection<BoxedStream>>)>,
    pub random: StdRng,
    /// How much longer than usual it pauses.
    pace: u32,
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
    pub fn new(nodes: &[Endpoint], seed: u64, pace: u32) -> Self {
        let nodes = nodes.iter().map(|node| (node.clone(), None)).collect();
        Self { nodes, random: StdRng::seed_from_u64(seed), pace }
    }

    pub async fn call(&mut self, path: &str, body: &Value, wait: Duration) -> Answer {
        self.send(|target| post(target, path, &body.to_string()), wait + PATIENCE).await
    }

    /// With a method of HTTP that is not POST.
    pub async fn call_by(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(|target| post(target, path, &body).replacen("POST", method, 1), PATIENCE).await
    }

    /// Closes the connection after a random time, perhaps before there is an answer.
    pub async fn hang_up(&mut self, path: &str, body: &Value) -> Answer {
        let longest = Duration::from_millis(*self.one_of(&[3, 30, 200, 2_000]));
        let patience = self.at_most(longest);
        let answer = self.send(|target| post(target, path, &body.to_string()), patience).await;
        let status = answer.status.map_err(|error| if error == NO_ANSWER { "hung up".to_owned() } else { error });
        Answer { status, ..answer }
    }

    /// If the call is dropped, or fails, its connection is closed.
    async fn send(&mut self, request: impl Fn(&Target) -> String, patience: Duration) -> Answer {
        let node = self.random.random_range(0..self.nodes.len());
        let sent = Instant::now();
        let answered = timeout(patience, self.exchange(node, &request(&self.nodes[node].0.target))).await;
        let received = Instant::now();
        let (status, body) = match answered.unwrap_or_else(|_| Err(NO_ANSWER.to_owned())) {
            Ok((status, body)) => (Ok(status), body),
            Err(error) => (Err(error), Value::Null),
        };
        Answer { node, sent, received, status, body }
    }

    async fn exchange(&mut self, node: usize, request: &str) -> Result<(u16, Value), String> {
        let (endpoint, open) = &mut self.nodes[node];
        let mut connection = match open.take() {
            Some(connection) => connection,
            None => {
                let stream = (endpoint.connect)().await.map_err(|error| error.to_string())?;
                Connection::over(stream, &endpoint.target)
            }
        };
        let (status, body) = connection.send(request.as_bytes()).await.map_err(|error| error.to_string())?;
        let body = serde_json::from_slice(body).unwrap_or_default();
        *open = Some(connection);
        Ok((status, body))
    }

    /// Never, if `count` is 0.
    pub fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.random.random_range(0..count) == 0
    }

    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.random.random_range(0..choices.len())]
    }

    fn at_most(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.random.random())
    }

    /// Between two calls about a held lock.
    pub async fn hold(&mut self) {
        sleep(self.at_most(HOLD_MAX * self.pace)).await;
    }

    /// Of random length, so that clients that fail together do not return together.
    pub async fn pause(&mut self) {
        sleep(self.at_most(PAUSE_MAX * self.pace)).await;
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
