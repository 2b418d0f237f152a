//! Several Redis servers that belong together: a master with a replica and Sentinels.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::free_port;
use crate::process::{Server, find_program};
use crate::redis::Redis;
use crate::wait::eventually;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// The name of the Sentinel's service.
const SERVICE: &str = "latchgate";

/// A master, its replica, and a Sentinel that promotes the replica when the master has not answered for half a second.
pub struct WatchedRedis {
    pub master: Redis,
    pub replica: Redis,
    sentinels: Vec<Server>,
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
        let (sentinel, port) = sentinel_of(master.port(), dir.path(), "sentinel");
        let watched = Self { master, replica, sentinels: vec![sentinel], port, dir };
        let is_up = || std::future::ready(watched.is_up());
        assert!(eventually(READY_WITHIN, is_up).await, "the Sentinel did not come up:\n{}", watched.log());
        watched
    }

    /// Starts a Sentinel that is out of date: it takes the replica for the master. Returns its port.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub async fn add_stale_sentinel(&mut self) -> u16 {
        let (sentinel, port) = sentinel_of(self.replica.port(), self.dir.path(), "stale");
        self.sentinels.push(sentinel);
        let replica = self.replica.port().to_string();
        let ask = ["sentinel", "get-master-addr-by-name", SERVICE];
        let names =
            || std::future::ready(crate::redis::ask(port, &ask).lines().nth(1).map(str::trim) == Some(&*replica));
        assert!(eventually(READY_WITHIN, names).await, "the second Sentinel did not come up");
        port
    }

    /// As [`url`](Self::url), with another Sentinel named first.
    pub fn url_behind(&self, port: u16) -> String {
        format!("redis+sentinel://127.0.0.1:{port},127.0.0.1:{}/{SERVICE}", self.port)
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

/// A Sentinel that takes the server at a port for the master, and its own port.
fn sentinel_of(master: u16, dir: &Path, name: &str) -> (Server, u16) {
    let (port, settings) = (free_port(), dir.join(format!("{name}.conf")));
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n",
        dir.display(),
    );
    fs::write(&settings, text).expect("a file can be written");
    let mut command = Command::new(find_program("redis-server", &[]));
    command.arg(&settings).arg("--sentinel");
    let sentinel = Server::spawn(command, dir, &dir.join(format!("{name}.log"))).expect("redis-server can be run");
    (sentinel, port)
}
