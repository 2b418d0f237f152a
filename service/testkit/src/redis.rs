//! Redis: a private server per test, or the shared one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Program, Server, directory, find_program};
use crate::wait::eventually;

/// Names the shared server by its URL.
const SHARED_ENV: &str = "LATCHGATE_TEST_REDIS";

const REPLICATED_WITHIN: Duration = Duration::from_secs(30);

/// A private Redis.
pub type Redis = Server<RedisServer>;

/// Its settings, as in redis.conf.
pub struct RedisServer(Vec<(String, String)>);

impl Redis {
    /// Starts a server that appends every write to a synced file, so that [`kill9`](Self::kill9) loses no acknowledged write, and
    /// that takes no snapshots.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with more settings: `&[("appendonly", "no")]`. They win over the defaults.
    pub async fn start_with(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Self::launch(RedisServer(settings), directory("redis")).await
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The server's answer to a command, as `redis-cli` prints it.
    pub fn ask(&self, command: &[&str]) -> String {
        ask(&self.url(), command)
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
        assert!(written.is_some() && eventually(REPLICATED_WITHIN, is_acknowledged).await, "{}", info());
    }
}

impl Program for RedisServer {
    const NAME: &'static str = "redis";

    fn command(&self, dir: &Path, port: u16) -> Command {
        let mut redis = Command::new(find_program("redis-server", &[]));
        redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir);
        redis.args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        for (name, value) in &self.0 {
            redis.arg(format!("--{name}")).arg(value);
        }
        redis
    }

    /// While the server loads its data, it answers `LOADING`.
    async fn is_ready(redis: &Redis) -> bool {
        redis.ask(&["ping"]).trim() == "PONG"
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

/// What the server with this URL answers to a command, as `redis-cli` prints it; nothing if there is no server.
///
/// # Panics
///
/// When there is no `redis-cli`.
pub fn ask(url: &str, command: &[&str]) -> String {
    let mut asking = Command::new(find_program("redis-cli", &[]));
    let answer = asking.args(["-u", url]).args(command).output().expect("redis-cli can be run");
    String::from_utf8_lossy(&answer.stdout).into_owned()
}
