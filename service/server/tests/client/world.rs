//! Nodes, clients, and runs of the commands.

use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::http::{StatusCode, Uri};
use axum::{Json, Router};
use latchgate_client::{Client, Method};
use latchgate_testkit::node::{Node, command};
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;

pub const BIN: &str = env!("CARGO_BIN_EXE_latchgate");
/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub async fn node() -> Node {
    Node::start(BIN, &[]).await
}

/// Two nodes on one database.
pub async fn two_nodes() -> (Node, Node) {
    let database = shared_database().await;
    (Node::start(BIN, &["--locks", &database]).await, Node::start(BIN, &["--locks", &database]).await)
}

pub fn client(nodes: &[&Node]) -> Client {
    // The machine may be busy.
    Client::new(nodes.iter().map(|node| node.base_url())).unwrap().patience(seconds(30))
}

pub async fn look(node: &Node, key: &str) -> Value {
    client(&[node]).call(Method::GET, &format!("/v1/locks/{key}"), None).await.unwrap()
}

pub async fn until_held(node: &Node, key: &str, held: bool) {
    until(format!("{key} held: {held}"), || async { look(node, key).await["held"] == held }).await;
}

pub async fn until_waiting(node: &Node, key: &str, waiters: u64) {
    until(format!("{waiters} waiters for {key}"), || async { look(node, key).await["waiters"] == waiters }).await;
}

pub async fn force(node: &Node, key: &str) {
    client(&[node]).call(Method::DELETE, &format!("/v1/locks/{key}"), None).await.unwrap();
}

/// Whether the process runs.
pub fn is_alive(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !matches!(rest.split_whitespace().next(), None | Some("Z" | "X")))
}

pub async fn until_gone(id: i32) {
    until(format!("process {id} is gone"), || std::future::ready(!is_alive(id))).await;
}

/// The base URL of a gateway that answers in place of a node, by the path; `None` is no answer.
pub async fn gateway(answers: impl Fn(&str) -> Option<(u16, Value)> + Clone + Send + Sync + 'static) -> String {
    let answer = async move |uri: Uri| match answers(uri.path()) {
        Some((status, body)) => (StatusCode::from_u16(status).unwrap(), Json(body)),
        None => pending().await,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

/// A node, and a directory in which commands that call it run.
pub async fn desk() -> (Node, Desk) {
    let node = node().await;
    let desk = Desk::new(&[&node]);
    (node, desk)
}

/// A directory in which commands run.
pub struct Desk {
    dir: TempDir,
    url: String,
}

impl Desk {
    pub fn new(nodes: &[&Node]) -> Self {
        Self::below(&std::env::temp_dir(), nodes)
    }

    pub fn below(directory: &Path, nodes: &[&Node]) -> Self {
        let urls: Vec<String> = nodes.iter().map(|node| node.base_url()).collect();
        Self { dir: tempfile::tempdir_in(directory).unwrap(), url: urls.join(",") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn touch(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The number in a file, once it is there.
    pub async fn number(&self, name: &str) -> i32 {
        until(format!("a number in {name}"), || std::future::ready(self.read(name).ends_with('\n'))).await;
        self.read(name).trim().parse().unwrap()
    }

    pub fn run(&self, args: &[&str]) -> Run {
        self.start(with_signals(&[&[BIN], args].concat()))
    }

    /// Runs a shell with `latchgate` in its PATH.
    pub fn shell(&self, script: &str) -> Run {
        let mut shell = with_signals(&["/bin/bash", "-c", script]);
        let bin = PathBuf::from(BIN);
        let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap());
        shell.env("PATH", path);
        self.start(shell)
    }

    fn start(&self, mut command: Command) -> Run {
        let child = command
            .env("LATCHGATE_URL", &self.url)
            // The machine may be busy.
            .env("LATCHGATE_RETRY_FOR", "30s")
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        Run { child: child.unwrap() }
    }
}

/// A command that ignores no signal, though these tests may run in the background of a script, where some are.
fn with_signals(args: &[&str]) -> Command {
    let mut command = Command::from(command("env"));
    command.arg("--default-signal").args(args);
    command
}

pub struct Run {
    pub child: Child,
}

#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()), signal).unwrap();
    }

    pub async fn ends(mut self) -> Ended {
        drop(self.child.stdin.take());
        let output = timeout(PATIENCE, self.child.wait_with_output()).await.expect("the command hangs").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Ended {
    #[track_caller]
    pub fn assert(&self, code: i32, out: &str) {
        assert_eq!((self.code, self.out.as_str()), (Some(code), out), "{}", self.err);
    }
}
