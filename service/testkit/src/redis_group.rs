//! Several Redis servers that belong together: a master with a replica and Sentinels.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Program, Server, directory, find_program};
use crate::redis::{Redis, ask};
use crate::wait::eventually;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// The name of the Sentinel's service.
const SERVICE: &str = "latchgate";

/// A master, its replica, and a Sentinel that promotes the replica when the master has not answered for half a second.
pub struct WatchedRedis {
    pub master: Redis,
    pub replica: Redis,
    /// The first one is up to date.
    sentinels: Vec<Server<Sentinel>>,
}

impl WatchedRedis {
    /// # Panics
    ///
    /// When the servers do not find each other.
    pub async fn start() -> Self {
        let (master, replica) = (Redis::start().await, Redis::start().await);
        replica.ask(&["replicaof", "127.0.0.1", &master.port().to_string()]);
        let sentinels = vec![Sentinel::start(&master).await];
        let watched = Self { master, replica, sentinels };
        let is_up = || std::future::ready(watched.is_up());
        assert!(eventually(READY_WITHIN, is_up).await, "the Sentinel did not come up:\n{}", watched.log());
        watched
    }

    /// Starts a Sentinel that is out of date: it takes the replica for the master. Returns its port.
    pub async fn add_stale_sentinel(&mut self) -> u16 {
        let stale = Sentinel::start(&self.replica).await;
        let port = stale.port();
        self.sentinels.push(stale);
        port
    }

    /// As [`url`](Self::url), with another Sentinel named first.
    pub fn url_behind(&self, port: u16) -> String {
        format!("redis+sentinel://127.0.0.1:{port},127.0.0.1:{}/{SERVICE}", self.sentinels[0].port())
    }

    /// `redis+sentinel://127.0.0.1:PORT/latchgate`
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", self.sentinels[0].port())
    }

    /// The Sentinel's log so far.
    pub fn log(&self) -> String {
        self.sentinels[0].log()
    }

    fn is_up(&self) -> bool {
        let is_linked = self.replica.ask(&["info", "replication"]).contains("master_link_status:up");
        let knows = self.sentinels[0].says("master");
        let mut lines = knows.lines();
        let replicas = lines.find(|line| line.trim() == "num-slaves").and_then(|_| lines.next());
        is_linked && replicas.map(str::trim) == Some("1")
    }
}

struct Sentinel {
    /// The port of the server that it takes for the master.
    master: u16,
}

impl Sentinel {
    async fn start(master: &Redis) -> Server<Self> {
        Server::launch(Self { master: master.port() }, directory("sentinel")).await
    }
}

impl Server<Sentinel> {
    fn says(&self, of: &str) -> String {
        ask(&format!("redis://127.0.0.1:{}", self.port()), &["sentinel", of, SERVICE])
    }
}

impl Program for Sentinel {
    const NAME: &'static str = "sentinel";

    fn command(&self, dir: &Path, port: u16) -> Command {
        let settings = dir.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n",
            dir.display(),
            self.master
        );
        fs::write(&settings, text).expect("a file can be written");
        let mut command = Command::new(find_program("redis-server", &[]));
        command.arg(&settings).arg("--sentinel");
        command
    }

    async fn is_ready(sentinel: &Server<Self>) -> bool {
        let master = sentinel.says("get-master-addr-by-name");
        master.lines().nth(1).map(str::trim) == Some(&*sentinel.program.master.to_string())
    }
}
