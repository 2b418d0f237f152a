//! Several Redis servers that belong together: a master with a replica and a Sentinel.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::free_port;
use crate::process::{Server, find_program, tail};
use crate::redis::Redis;
use crate::wait::eventually;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// The name of the Sentinel's service.
const SERVICE: &str = "latchgate";

/// A master, its replica, and a Sentinel that promotes the replica when the master has not answered for half a second.
pub struct WatchedRedis {
    pub master: Redis,
    pub replica: Redis,
    _sentinel: Server,
    port: u16,
    dir: TempDir,
}

impl WatchedRedis {
    /// # Panics
    ///
    /// When the servers do not find each other.
    pub async fn start() -> Self {
        let (master, replica) = (Redis::start().await, Redis::start().await);
        replica.ask(&["replicaof", "127.0.0.1", &master.port().to_string()]);
        let dir = tempfile::Builder::new().prefix("latchgate-sentinel-").tempdir().expect("a temporary directory");
        let port = free_port();
        let settings = dir.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n",
            dir.path().display(),
            master.port(),
        );
        fs::write(&settings, text).expect("a file can be written");
        let mut command = Command::new(find_program("redis-server", &[]));
        command.arg(&settings).arg("--sentinel");
        let log = dir.path().join("sentinel.log");
        let sentinel = Server::spawn(command, dir.path(), &log).expect("redis-server can be run");
        let watched = Self { master, replica, _sentinel: sentinel, port, dir };
        let is_up = || std::future::ready(watched.is_up());
        assert!(eventually(READY_WITHIN, is_up).await, "the Sentinel did not come up:\n{}", tail(&log));
        watched
    }

    /// `redis+sentinel://127.0.0.1:PORT/latchgate`
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", self.port)
    }

    /// The Sentinel's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("sentinel.log")).unwrap_or_default()
    }

    fn is_up(&self) -> bool {
        let is_linked = self.replica.ask(&["info", "replication"]).contains("master_link_status:up");
        let knows = crate::redis::ask(self.port, &["sentinel", "master", SERVICE]);
        let mut lines = knows.lines();
        let replicas = lines.find(|line| line.trim() == "num-slaves").and_then(|_| lines.next());
        is_linked && replicas.map(str::trim) == Some("1")
    }
}
