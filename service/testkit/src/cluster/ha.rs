//! Stores that fail over by themselves: three servers of Postgres under Patroni, whose leader lock is in three members of etcd; HAProxy, which
//! leads to the primary; three servers of Redis and three Sentinels. The configurations are rendered from deploy/ha.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use nix::sys::signal::Signal;
use tokio::process::Command;
use tokio::time::sleep;

use super::ask::{self, get, is_ok};
use super::parts::{Parts, Spec};
use super::stores::{postgres_program, query, redis, render, system_program};
use crate::postgres::give_to_postgres;
use crate::process::find_program;

/// Throw-away servers on loopback.
const PASSWORD: &str = "throw-away";
const FOLLOW_WITHIN: Duration = Duration::from_secs(180);

/// The parts, in the order of their starts.
pub const HA_STORES: [&str; 13] = [
    "etcd-1",
    "etcd-2",
    "etcd-3",
    "patroni-1",
    "patroni-2",
    "patroni-3",
    "haproxy",
    "redis-1",
    "redis-2",
    "redis-3",
    "sentinel-1",
    "sentinel-2",
    "sentinel-3",
];

/// The stores of a cluster, which may be running already.
pub struct HaStores<'a> {
    pub parts: &'a Parts,
    /// A commit is acknowledged when a standby has it.
    pub is_synchronous: bool,
}

impl HaStores<'_> {
    pub async fn start(&self) -> anyhow::Result<()> {
        let parts = self.parts;
        // Each group needs a majority of its members to get ready, so all are started first.
        let numbers = || 1..=3;
        let servers = parts.file("servers");
        fs::create_dir_all(&servers)?;
        let text = |path: &Path| path.display().to_string();
        let own = |name: &str, value: String| (name.to_owned(), value);
        for n in numbers() {
            let peers = numbers().map(|n| format!("etcd-{n}=http://{}", parts.address(&format!("etcd-{n}-peer"))));
            let values = [
                own("HA_ETCD_PORT", parts.port(&format!("etcd-{n}")).to_string()),
                own("HA_ETCD_PEER_PORT", parts.port(&format!("etcd-{n}-peer")).to_string()),
                own("HA_ETCD_CLUSTER", peers.collect::<Vec<_>>().join(",")),
                own("HA_DATA", text(&parts.file(""))),
            ];
            let conf =
                self.configure(&format!("etcd-{n}"), "yml", include_str!("../../../../deploy/ha/etcd.yml"), &values)?;
            self.start_missing(&format!("etcd-{n}"), Spec::new(find_program("etcd", &[]), ["--config-file", &conf]))?;
        }
        let master = format!("127.0.0.1 {}", parts.port("redis-1"));
        for n in numbers() {
            let replica_of = if n == 1 { String::new() } else { format!("replicaof {master}") };
            let values = [
                own("HA_REDIS_PORT", parts.port(&format!("redis-{n}")).to_string()),
                own("HA_REDIS_REPLICAOF", replica_of),
            ];
            self.start_redis(&format!("redis-{n}"), include_str!("../../../../deploy/ha/redis.conf"), &values, &[])?;
        }
        for n in numbers() {
            let values = [
                own("HA_SENTINEL_PORT", parts.port(&format!("sentinel-{n}")).to_string()),
                own("HA_REDIS_MASTER", master.clone()),
            ];
            let template = include_str!("../../../../deploy/ha/sentinel.conf");
            self.start_redis(&format!("sentinel-{n}"), template, &values, &["--sentinel"])?;
        }
        for n in numbers() {
            let name = format!("etcd-{n}");
            parts.until_ready(&name, async || is_ok(&parts.url(&name), "/health").await).await?;
        }
        let version = ask::output("patroni", ["--version"]).await?;
        for n in numbers() {
            let name = format!("patroni-{n}");
            let values = [
                own("HA_POSTGRES_PORT", parts.port(&format!("postgres-{n}")).to_string()),
                own("HA_PATRONI_PORT", parts.port(&name).to_string()),
                // See deploy/ha/patroni.yml.
                own("HA_ETCD_API", if is_before_3_0_3(&version) { "etcd" } else { "etcd3" }.to_owned()),
                own("HA_ETCD_HOSTS", self.addresses("etcd")),
                own("HA_BIN", text(postgres_program("initdb").parent().unwrap_or(Path::new("")))),
                own("HA_DATA", text(&servers)),
                own("HA_SYNCHRONOUS", self.is_synchronous.to_string()),
            ];
            let dir = servers.join(&name);
            fs::create_dir_all(&dir)?;
            give_to_postgres(&dir);
            ask::output("chmod", ["700", &text(&dir)]).await?;
            let conf = self.configure(&name, "yml", include_str!("../../../../deploy/ha/patroni.yml"), &values)?;
            self.start_missing(&name, Spec::new(find_program("patroni", &[]), [conf]).as_postgres(Signal::SIGTERM))?;
        }
        let mut values = vec![own("HA_LISTEN", parts.address("haproxy"))];
        for n in numbers() {
            values.push(own(&format!("HA_POSTGRES_{n}"), parts.address(&format!("postgres-{n}"))));
            values.push(own(&format!("HA_PATRONI_PORT_{n}"), parts.port(&format!("patroni-{n}")).to_string()));
        }
        let conf = self.configure("haproxy", "cfg", include_str!("../../../../deploy/ha/haproxy.cfg"), &values)?;
        self.start_missing("haproxy", Spec::new(system_program("haproxy"), ["-db", "-f", &conf]))?;
        self.until_complete(async || Ok(())).await?;
        self.make_database().await
    }

    fn start_missing(&self, name: &str, spec: Spec) -> anyhow::Result<()> {
        if self.parts.is_running(name) { Ok(()) } else { self.parts.start(name, spec) }
    }

    /// Renders a template to a file; returns its path.
    fn configure(
        &self,
        name: &str,
        ending: &str,
        template: &str,
        values: &[(String, String)],
    ) -> anyhow::Result<String> {
        let path = self.parts.file(&format!("{name}.{ending}"));
        fs::write(&path, self.rendered(name, template, values))?;
        Ok(path.display().to_string())
    }

    fn rendered(&self, name: &str, template: &str, values: &[(String, String)]) -> String {
        let mut all: Vec<(&str, String)> = values.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let passwords = ["SUPERUSER", "REPLICATION", "REWIND", "REDIS"].map(|of| format!("HA_{of}_PASSWORD"));
        all.extend(passwords.iter().map(|name| (name.as_str(), PASSWORD.to_owned())));
        all.extend(
            [("HA_NAME", name), ("HA_HOST", "127.0.0.1"), ("HA_NETWORK", "127.0.0.0/8")]
                .map(|(name, value)| (name, value.to_owned())),
        );
        render(template, &all)
    }

    /// Redis and the Sentinels write to the rendered file, so it is rendered once.
    fn start_redis(
        &self,
        name: &str,
        template: &str,
        values: &[(String, String)],
        args: &[&str],
    ) -> anyhow::Result<()> {
        let dir = self.parts.file(name);
        fs::create_dir_all(&dir)?;
        let conf = dir.join(if args.is_empty() { "redis.conf" } else { "sentinel.conf" });
        if !conf.exists() {
            let values: Vec<_> =
                values.iter().cloned().chain([("HA_DATA".to_owned(), dir.display().to_string())]).collect();
            fs::write(&conf, self.rendered(name, template, &values))?;
        }
        let conf = conf.display().to_string();
        self.start_missing(
            name,
            Spec::new(find_program("redis-server", &[]), [conf.as_str()].iter().chain(args).copied()),
        )
    }

    /// `HOST:PORT,HOST:PORT,HOST:PORT` of these parts.
    fn addresses(&self, of: &str) -> String {
        [1, 2, 3].map(|n| self.parts.address(&format!("{of}-{n}"))).join(",")
    }

    /// Through HAProxy.
    pub fn superuser_url(&self, database: &str) -> String {
        format!("postgres://postgres:{PASSWORD}@{}/{database}", self.parts.address("haproxy"))
    }

    /// `--locks` and `--gate` of a node. The first two find the primary through HAProxy, the third by itself.
    pub fn node_urls(&self, node: &str) -> (String, String) {
        let hosts = if node == "node-3" { self.addresses("postgres") } else { self.parts.address("haproxy") };
        let locks = format!("postgres://latchgate:{PASSWORD}@{hosts}/latchgate?target_session_attrs=read-write");
        (locks, format!("redis+sentinel://:{PASSWORD}@{}/latchgate", self.addresses("sentinel")))
    }

    /// Until a majority of the Sentinels knows the master, and its replicas follow it; and until the primary has two standbys that follow it, in
    /// synchronous mode one of them synchronously. Patroni may first rewind a server that was the primary, after it has already reported it as
    /// running. Calls `attend` meanwhile.
    pub async fn until_complete(&self, attend: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let deadline = Instant::now() + FOLLOW_WITHIN;
        let wanted = if self.is_synchronous { "2/1" } else { "2/0" };
        loop {
            let standbys = self.standbys().await;
            if standbys.as_ref().is_ok_and(|standbys| standbys == wanted) && self.redis_is_complete().await {
                return Ok(());
            }
            if Instant::now() > deadline {
                let logs = [1, 2, 3].map(|n| self.parts.log(&format!("patroni-{n}"))).join("\n");
                bail!("no two standbys or replicas follow: {standbys:?}\n{logs}\n{}", self.parts.log("sentinel-1"));
            }
            attend().await?;
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// How many standbys follow the primary, and how many of them synchronously.
    async fn standbys(&self) -> anyhow::Result<String> {
        let statement = "select count(*) || '/' || count(*) filter (where sync_state in ('sync', 'quorum'))
            from pg_stat_replication where state = 'streaming' and application_name like 'patroni-%'";
        query(&self.superuser_url("postgres"), statement).await
    }

    async fn redis_is_complete(&self) -> bool {
        for n in 1..=3 {
            let quorum = redis(self.parts.port(&format!("sentinel-{n}")), &["sentinel", "ckquorum", "latchgate"]).await;
            if !quorum.is_ok_and(|answer| answer.starts_with("OK 3 ")) {
                return false;
            }
        }
        let Some(master) = self.redis_master().await else { return false };
        let mut asking = Command::new("redis-cli");
        asking.env("REDISCLI_AUTH", PASSWORD).args(["-p", &master.to_string(), "info", "replication"]);
        ask::run(&mut asking).await.is_ok_and(|info| info.lines().any(|line| line.trim() == "min_slaves_good_slaves:2"))
    }

    /// The port of the master, as the Sentinels know it.
    pub async fn redis_master(&self) -> Option<u16> {
        let ask = ["sentinel", "get-master-addr-by-name", "latchgate"];
        redis(self.parts.port("sentinel-1"), &ask).await.ok()?.lines().last()?.trim().parse().ok()
    }

    async fn make_database(&self) -> anyhow::Result<()> {
        let url = self.superuser_url("postgres");
        if query(&url, "select count(*) from pg_database where datname = 'latchgate'").await? == "0" {
            query(&url, &format!("create role latchgate login password '{PASSWORD}'")).await?;
            query(&url, "create database latchgate owner latchgate").await?;
        }
        Ok(())
    }

    /// The number of the first server whose Patroni says that it has this role: `primary`, `synchronous`.
    pub async fn with_role(&self, role: &str) -> Option<u32> {
        for n in 1..=3 {
            let url = self.parts.url(&format!("patroni-{n}"));
            if get(&url, &format!("/{role}"), Duration::from_millis(500)).await.status == 200 {
                return Some(n);
            }
        }
        None
    }

    /// The postmaster of a server.
    pub fn postmaster(&self, n: u32) -> Option<u32> {
        let file = self.parts.file(&format!("servers/patroni-{n}/data/postmaster.pid"));
        fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
    }
}

fn is_before_3_0_3(version: &str) -> bool {
    let numbers: Vec<u32> =
        version.trim_start_matches("patroni ").split('.').map_while(|part| part.parse().ok()).collect();
    numbers < vec![3, 0, 3]
}
