//! Several Redis servers that belong together: a cluster, and a master with a replica and a Sentinel.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::ports::free_port;
use crate::process::{Server, find_program, tail};
use crate::redis::Redis;
use crate::wait::eventually;

const READY_WITHIN: Duration = Duration::from_secs(30);
const MASTERS: u32 = 3;
const SLOTS: u32 = 16_384;
/// The name of the Sentinel's service.
const SERVICE: &str = "latchgate";

/// A private cluster of three masters without replicas.
pub struct RedisCluster {
    pub masters: Vec<Redis>,
}

impl RedisCluster {
    /// # Panics
    ///
    /// When the cluster does not come up.
    pub async fn start() -> Self {
        let mut masters = Vec::new();
        for number in 0..MASTERS {
            let bus = free_port().to_string();
            let settings =
                [("cluster-enabled", "yes"), ("cluster-port", bus.as_str()), ("cluster-node-timeout", "2000")];
            let master = Redis::start_with(&settings).await;
            let (first, last) = (number * SLOTS / MASTERS, (number + 1) * SLOTS / MASTERS - 1);
            master.ask(&["cluster", "addslotsrange", &first.to_string(), &last.to_string()]);
            master.ask(&["cluster", "set-config-epoch", &(number + 1).to_string()]);
            if let Some(known) = masters.first() {
                let known: &Redis = known;
                let port = master.port().to_string();
                known.ask(&["cluster", "meet", "127.0.0.1", &port, &bus]);
            }
            masters.push(master);
        }
        let cluster = Self { masters };
        let is_up = || std::future::ready(cluster.masters.iter().all(knows_all));
        assert!(eventually(READY_WITHIN, is_up).await, "the cluster did not come up:\n{}", cluster.masters[0].log());
        cluster
    }

    /// `redis+cluster://127.0.0.1:PORT,…`
    pub fn url(&self) -> String {
        let servers: Vec<String> = self.masters.iter().map(|master| format!("127.0.0.1:{}", master.port())).collect();
        format!("redis+cluster://{}", servers.join(","))
    }
}

fn knows_all(master: &Redis) -> bool {
    let slots = master.ask(&["cluster", "nodes"]);
    master.ask(&["cluster", "info"]).contains("cluster_state:ok")
        && slots.lines().filter(|line| line.contains("connected ") && line.contains('-')).count() == MASTERS as usize
}

/// The URL of a cluster that all tests of a process share: choose keys that no other test uses.
pub async fn shared_cluster() -> String {
    static SHARED: OnceCell<RedisCluster> = OnceCell::const_new();
    SHARED.get_or_init(RedisCluster::start).await.url()
}

/// A master, its replica, and a Sentinel that promotes the replica when the master has not answered for half a second.
pub struct WatchedRedis {
    pub master: Redis,
    pub replica: Redis,
    sentinel: Server,
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
        let watched = Self { master, replica, sentinel, port, dir };
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

    /// Stops the Sentinel, so that no replica is promoted any more.
    pub fn stop_watching(&mut self) {
        self.sentinel.kill9();
    }

    fn is_up(&self) -> bool {
        let is_linked = self.replica.ask(&["info", "replication"]).contains("master_link_status:up");
        let knows = crate::redis::ask(self.port, &["sentinel", "master", SERVICE]);
        let mut lines = knows.lines();
        let replicas = lines.find(|line| line.trim() == "num-slaves").and_then(|_| lines.next());
        is_linked && replicas.map(str::trim) == Some("1")
    }
}
