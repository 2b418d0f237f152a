//! Redis: a private server per test, or the shared one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::free_port;
use crate::process::{Server, answers, find_program, tail};
use crate::wait::eventually;

/// Names the shared server by its URL.
pub const SHARED_ENV: &str = "LATCHGATE_TEST_REDIS";

const READY_WITHIN: Duration = Duration::from_secs(30);
const START_TRIES: usize = 5;

/// A private Redis on a loopback port, with a directory that is removed with it.
pub struct Redis {
    server: Server,
    world: World,
}

impl Redis {
    /// Starts a server that appends every write to a synced file, so that [`kill9`](Self::kill9) loses no acknowledged write, and
    /// that takes no snapshots.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with more settings, as in redis.conf: `&[("appendonly", "no")]`. They win over the defaults.
    pub async fn start_with(settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::Builder::new().prefix("latchgate-redis-").tempdir().expect("a temporary directory");
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let mut world = World { dir, port: 0, settings };
        for _ in 0..START_TRIES {
            world.port = free_port();
            let mut server = world.spawn();
            if world.becomes_ready(&mut server).await {
                return Self { server, world };
            }
        }
        panic!("Redis did not start:\n{}", tail(&world.log()));
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.world.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.world.port
    }

    /// The server's answer to a command, as `redis-cli` prints it.
    pub fn ask(&self, command: &[&str]) -> String {
        ask(self.world.port, command)
    }

    /// Returns when a replica has acknowledged all that this server has written by now. `WAIT` would say so only on the connection that has
    /// written it: on another one it waits for nothing.
    ///
    /// # Panics
    ///
    /// When no replica does so in time.
    pub async fn replicated(&self) {
        let number = |info: &str, before: &str| -> Option<u64> {
            let digits = info.split(before).nth(1)?.split(|letter: char| !letter.is_ascii_digit()).next()?;
            digits.parse().ok()
        };
        let info = || self.ask(&["info", "replication"]);
        let written = number(&info(), "master_repl_offset:");
        let is_acknowledged = || async { number(&info(), "state=online,offset=") >= written };
        assert!(written.is_some() && eventually(READY_WITHIN, is_acknowledged).await, "{}", info());
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.world.log()).unwrap_or_default()
    }

    /// Kills the server; returns when it has ended.
    pub fn kill9(&mut self) {
        self.server.kill9();
    }

    /// Starts a server that was killed, on the same port and directory; returns when it has loaded its data.
    pub async fn start_again(&mut self) {
        assert!(self.server.exited().is_some(), "start_again: Redis still runs");
        self.server = self.world.spawn();
        let ready = self.world.becomes_ready(&mut self.server).await;
        assert!(ready, "Redis did not start again:\n{}", tail(&self.world.log()));
    }

    /// Stops the server (SIGSTOP): its connections stay open and it does not answer.
    pub fn pause(&mut self) {
        self.server.pause();
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) {
        self.server.resume();
    }
}

/// The URL of the server that `make test` has started. All tests of a run share it: choose keys that no other test uses.
///
/// # Panics
///
/// When `LATCHGATE_TEST_REDIS` is not set.
pub fn shared_url() -> String {
    std::env::var(SHARED_ENV).unwrap_or_else(|_| {
        panic!("{SHARED_ENV} is not set: run the tests with `make test`, which starts the servers they need")
    })
}

/// The answer of the server at this port of 127.0.0.1 to a command; empty if there is no server.
pub(crate) fn ask(port: u16, command: &[&str]) -> String {
    let mut asking = Command::new(find_program("redis-cli", &[]));
    let answer = asking.args(["-p", &port.to_string()]).args(command).output().expect("redis-cli can be run");
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

/// The part of a server that outlives its processes.
struct World {
    dir: TempDir,
    port: u16,
    settings: Vec<(String, String)>,
}

impl World {
    fn spawn(&self) -> Server {
        let mut redis = Command::new(find_program("redis-server", &[]));
        let port = self.port.to_string();
        let dir = self.dir.path().display().to_string();
        let defaults = [
            ("port", port.as_str()),
            ("bind", "127.0.0.1"),
            ("dir", &dir),
            ("save", ""),
            ("appendonly", "yes"),
            ("appendfsync", "always"),
        ];
        let extra = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in defaults.into_iter().chain(extra) {
            redis.arg(format!("--{name}")).arg(value);
        }
        Server::spawn(redis, self.dir.path(), &self.log()).expect("redis-server can be run")
    }

    /// While the server loads its data, it answers `-LOADING`.
    async fn becomes_ready(&self, server: &mut Server) -> bool {
        server.becomes_ready(READY_WITHIN, || answers(self.port, "PING\r\n", "+PONG")).await
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("redis.log")
    }
}
