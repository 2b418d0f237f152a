//! The `latchgate` binary as a child process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use crate::ask::is_ok;
pub use crate::process::NotReady;
use crate::process::{Program, Server, directory};

/// Names the binary that [`binary`] returns.
const BINARY_ENV: &str = "LATCHGATE_BIN";

/// One node: `latchgate serve --listen 127.0.0.1:PORT …`. Its directory is its working directory: a relative `sqlite:` path lies there.
///
/// It gets none of the test's `LATCHGATE_…` variables nor its `DATABASE_URL`.
pub type Node = Server<NodeServer>;

pub struct NodeServer {
    bin: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Node {
    /// Starts `bin` with `args` after `serve --listen …`; returns when `GET /readyz` says 200.
    ///
    /// # Panics
    ///
    /// When it ends or does not get ready.
    pub async fn start(bin: impl AsRef<Path>, args: &[&str]) -> Self {
        Self::start_with(bin, args, &[]).await
    }

    /// As [`start`](Self::start), with more environment variables.
    pub async fn start_with(bin: impl AsRef<Path>, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::launch(NodeServer::new(bin.as_ref(), args, env), directory("node")).await
    }

    /// As [`start_with`](Self::start_with), for a node that is expected to refuse its configuration.
    pub async fn try_start(bin: impl AsRef<Path>, args: &[&str], env: &[(&str, &str)]) -> Result<Self, NotReady> {
        Self::try_launch(NodeServer::new(bin.as_ref(), args, env), directory("node")).await
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Sends SIGTERM to the node; returns at once.
    pub fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
    }

    /// Sends SIGHUP to the node; returns at once.
    pub fn hang_up(&mut self) {
        self.signal(Signal::SIGHUP);
    }
}

impl NodeServer {
    fn new(bin: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        // Without a provider, a test's `reqwest::Client::new()` panics: the features of reqwest that the clients need are on.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The node runs in its own directory, where a relative path would mean something else.
        let bin = fs::canonicalize(bin).unwrap_or_else(|error| panic!("{}: {error}", bin.display()));
        let args = args.iter().map(ToString::to_string).collect();
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Self { bin, args, env }
    }
}

impl Program for NodeServer {
    const NAME: &'static str = "node";

    fn command(&self, _: &Path, port: u16) -> Command {
        let mut node = command(&self.bin);
        // The default is too short for a test beside much other work.
        if !self.args.iter().any(|arg| arg == "--store-timeout") {
            node.env("LATCHGATE_STORE_TIMEOUT", "3s");
        }
        node.args(["serve", "--listen", &format!("127.0.0.1:{port}")]).args(&self.args);
        node.envs(self.env.iter().map(|(name, value)| (name, value)));
        node
    }

    async fn is_ready(node: &Node) -> bool {
        if node.program.args.iter().any(|arg| arg == "--tls-cert") {
            return node.new_log().contains("listens on https://");
        }
        is_ok(&node.base_url(), "/readyz").await
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
