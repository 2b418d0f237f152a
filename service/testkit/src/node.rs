//! The `latchgate` binary as a child process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::ports::free_port;
use crate::process::{Server, answers, tail};

/// Names the binary that [`binary`] returns.
pub const BINARY_ENV: &str = "LATCHGATE_BIN";

const READY_WITHIN: Duration = Duration::from_secs(20);
const START_TRIES: usize = 5;

/// One node: `latchgate serve --listen 127.0.0.1:PORT …` in a directory of its own, removed with it.
///
/// It gets none of the test's `LATCHGATE_…` variables nor its `DATABASE_URL`. When a test panics, the end of its log
/// follows the panic.
pub struct Node {
    server: Server,
    world: World,
}

/// Why a node did not get ready.
#[derive(Debug)]
pub struct NotReady {
    /// How it ended; `None` if it ran on without being ready.
    pub status: Option<ExitStatus>,
    /// The end of its output.
    pub log: String,
}

impl Node {
    /// Starts `bin` with `args` after `serve --listen …`; returns when `GET /readyz` says 200.
    ///
    /// # Panics
    ///
    /// When it ends or is not ready within 20 s.
    pub async fn start(bin: impl AsRef<Path>, args: &[&str]) -> Self {
        Self::start_with(bin, args, &[]).await
    }

    /// As [`start`](Self::start), with more environment variables.
    pub async fn start_with(bin: impl AsRef<Path>, args: &[&str], env: &[(&str, &str)]) -> Self {
        match Self::try_start(bin, args, env).await {
            Ok(node) => node,
            Err(NotReady { status, log }) => panic!("the node did not get ready ({status:?}):\n{log}"),
        }
    }

    /// As [`start_with`](Self::start_with), for a node that is expected to refuse its configuration.
    pub async fn try_start(bin: impl AsRef<Path>, args: &[&str], env: &[(&str, &str)]) -> Result<Self, NotReady> {
        // Without a provider, a test's `reqwest::Client::new()` panics: the features of reqwest that the clients need are on.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut world = World::create(bin.as_ref(), args, env);
        let mut tries = START_TRIES;
        loop {
            world.port = free_port();
            let mut server = world.spawn();
            if world.becomes_ready(&mut server).await {
                return Ok(Self { server, world });
            }
            tries -= 1;
            let log = tail(&world.log());
            // Another process may have taken the free port meanwhile.
            if tries == 0 || !log.contains("already listens there") {
                return Err(NotReady { status: server.exited(), log });
            }
            let _ = fs::remove_file(world.log());
        }
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.world.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.world.port
    }

    /// The node's working directory, which outlives its restarts: a relative `sqlite:` path lies here.
    pub fn dir(&self) -> &Path {
        self.world.dir.path()
    }

    /// The output of the node so far, over all its restarts.
    pub fn log(&self) -> String {
        fs::read(self.world.log()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Kills the node; returns when it has ended.
    pub fn kill9(&mut self) {
        self.server.kill9();
    }

    /// Sends SIGTERM to the node; returns at once.
    pub fn terminate(&mut self) {
        self.server.signal(Signal::SIGTERM);
    }

    /// Waits for the end of the node; `None` if it still runs after `timeout`.
    pub async fn wait_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        self.server.wait_exit(timeout).await
    }

    /// Sends SIGHUP to the node; returns at once.
    pub fn hang_up(&mut self) {
        self.server.signal(Signal::SIGHUP);
    }

    /// Stops the node (SIGSTOP): its connections stay open and it does not answer.
    pub fn pause(&mut self) {
        self.server.pause();
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) {
        self.server.resume();
    }

    /// Starts a node that has ended, with the same arguments, port and directory; returns when it is ready.
    ///
    /// # Panics
    ///
    /// When it still runs, or is not ready within 20 s.
    pub async fn start_again(&mut self) {
        assert!(self.server.exited().is_some(), "start_again: the node still runs");
        self.server = self.world.spawn();
        let ready = self.world.becomes_ready(&mut self.server).await;
        assert!(ready, "the node did not get ready again:\n{}", tail(&self.world.log()));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the node on port {}:\n{}\n---", self.world.port, tail(&self.world.log()));
        }
    }
}

/// A command of the `latchgate` binary that gets none of the test's `LATCHGATE_…` variables nor its `DATABASE_URL`: the binary
/// refuses variables that it does not know, such as the test's `LATCHGATE_TEST_…`.
pub fn command(bin: impl AsRef<Path>) -> Command {
    let mut command = Command::new(bin.as_ref());
    // The stores of tests are new, unless a test says otherwise.
    command.env("LATCHGATE_NEW", "true");
    for (name, _) in std::env::vars_os() {
        if name == "DATABASE_URL" || name.to_string_lossy().starts_with("LATCHGATE_") {
            command.env_remove(name);
        }
    }
    command
}

/// The binary named by `LATCHGATE_BIN`, else the one in the target directory that this test was built into. Tests of the
/// `latchgate` package have the better `env!("CARGO_BIN_EXE_latchgate")`, which cargo keeps up to date.
///
/// # Panics
///
/// When there is neither.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os(BINARY_ENV) {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let found = test.ancestors().skip(1).take(3).map(|dir| dir.join("latchgate")).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("no `latchgate` binary near {}: build it, or name it in {BINARY_ENV}", test.display())
    })
}

/// The part of a node that outlives its processes.
struct World {
    dir: TempDir,
    port: u16,
    bin: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Where in the log the running process has begun.
    log_start: usize,
}

impl World {
    fn create(bin: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let dir = tempfile::Builder::new().prefix("latchgate-node-").tempdir().expect("a temporary directory");
        // The node runs in its own directory, where a relative path would mean something else.
        let bin = fs::canonicalize(bin).unwrap_or_else(|error| panic!("{}: {error}", bin.display()));
        let args = args.iter().map(ToString::to_string).collect();
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Self { dir, port: 0, bin, args, env, log_start: 0 }
    }

    fn spawn(&mut self) -> Server {
        self.log_start = fs::read(self.log()).map_or(0, |log| log.len());
        let mut node = command(&self.bin);
        node.args(["serve", "--listen", &format!("127.0.0.1:{}", self.port)]).args(&self.args);
        node.envs(self.env.iter().map(|(name, value)| (name, value)));
        Server::spawn(node, self.dir.path(), &self.log()).expect("the latchgate binary can be run")
    }

    async fn becomes_ready(&self, server: &mut Server) -> bool {
        server.becomes_ready(READY_WITHIN, || self.is_ready()).await
    }

    async fn is_ready(&self) -> bool {
        if self.args.iter().any(|arg| arg == "--tls-cert") {
            let log = fs::read(self.log()).unwrap_or_default();
            return String::from_utf8_lossy(log.get(self.log_start..).unwrap_or_default())
                .contains("listens on https://");
        }
        let request = "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        answers(self.port, request, "HTTP/1.1 200").await
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("node.log")
    }
}
