//! Stores that fail over by themselves: three servers of Postgres under Patroni, whose leader lock is in three members of etcd; HAProxy, which
//! leads to the primary; three servers of Redis and three Sentinels. The configurations are rendered from deploy/ha.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::process::Command;
use tokio::time::sleep;

use super::Tier;
use super::ask::{self, get, is_ok};
use super::parts::Spec;
use super::stores::{program, query, redis, render};
use crate::postgres::give_to_postgres;

/// Throw-away servers on loopback.
const PASSWORD: &str = "throw-away";
const FOLLOW_WITHIN: Duration = Duration::from_secs(180);

impl Tier {
    /// Each group needs a majority of its members to get ready, so all are started first.
    pub(super) async fn start_ha(&self) -> anyhow::Result<()> {
        let parts = &self.parts;
        let port = |name: &str| parts.port(name).to_string();
        let text = |path: &Path| path.display().to_string();
        let peers = [1, 2, 3].map(|n| format!("etcd-{n}={}", parts.url(&format!("etcd-{n}-peer")))).join(",");
        for n in 1..=3 {
            let values = [
                ("HA_ETCD_PORT", port(&format!("etcd-{n}"))),
                ("HA_ETCD_PEER_PORT", port(&format!("etcd-{n}-peer"))),
                ("HA_ETCD_CLUSTER", peers.clone()),
                ("HA_DATA", text(&self.data)),
            ];
            let name = format!("etcd-{n}");
            let conf = self.configure(&name, include_str!("../../../../deploy/ha/etcd.yml"), &values)?;
            parts.start(&name, Spec::new("etcd", ["--config-file", &conf]))?;
        }
        let master = format!("127.0.0.1 {}", port("redis-1"));
        for n in 1..=3 {
            let (name, sentinel) = (format!("redis-{n}"), format!("sentinel-{n}"));
            let replica_of = if n == 1 { String::new() } else { format!("replicaof {master}") };
            let dir = self.data.join(&name);
            fs::create_dir(&dir)?;
            let values = [("HA_REDIS_PORT", port(&name)), ("HA_REDIS_REPLICAOF", replica_of), ("HA_DATA", text(&dir))];
            let conf = self.configure(&name, include_str!("../../../../deploy/ha/redis.conf"), &values)?;
            parts.start(&name, Spec::new("redis-server", [conf]))?;
            let values =
                [("HA_SENTINEL_PORT", port(&sentinel)), ("HA_REDIS_MASTER", master.clone()), ("HA_DATA", text(&dir))];
            let conf = self.configure(&sentinel, include_str!("../../../../deploy/ha/sentinel.conf"), &values)?;
            parts.start(&sentinel, Spec::new("redis-server", [conf.as_str(), "--sentinel"]))?;
        }
        for n in 1..=3 {
            let name = format!("etcd-{n}");
            parts.until_ready(&name, async || is_ok(&parts.url(&name), "/health").await).await?;
        }
        // See deploy/ha/patroni.yml.
        let version = ask::output("patroni", ["--version"]).await?;
        let is_old = ["patroni 2.", "patroni 3.0.0", "patroni 3.0.1", "patroni 3.0.2"]
            .iter()
            .any(|old| version.starts_with(old));
        for n in 1..=3 {
            let name = format!("patroni-{n}");
            let values = [
                ("HA_POSTGRES_PORT", port(&format!("postgres-{n}"))),
                ("HA_PATRONI_PORT", port(&name)),
                ("HA_ETCD_API", if is_old { "etcd" } else { "etcd3" }.to_owned()),
                ("HA_ETCD_HOSTS", self.addresses("etcd")),
                ("HA_BIN", text(program("initdb").parent().unwrap_or(Path::new("")))),
                ("HA_DATA", text(&self.data)),
                ("HA_SYNCHRONOUS", "true".to_owned()),
            ];
            let dir = self.data.join(&name);
            fs::create_dir(&dir)?;
            give_to_postgres(&dir);
            ask::output("chmod", ["700", &text(&dir)]).await?;
            let conf = self.configure(&name, include_str!("../../../../deploy/ha/patroni.yml"), &values)?;
            parts.start(&name, Spec::new(program("patroni"), [conf]).as_postgres())?;
        }
        let mut values = vec![("HA_LISTEN", parts.address("haproxy"))];
        let names = [
            ("HA_POSTGRES_1", "HA_PATRONI_PORT_1"),
            ("HA_POSTGRES_2", "HA_PATRONI_PORT_2"),
            ("HA_POSTGRES_3", "HA_PATRONI_PORT_3"),
        ];
        for (n, (server, patroni)) in (1..).zip(names) {
            values.push((server, parts.address(&format!("postgres-{n}"))));
            values.push((patroni, port(&format!("patroni-{n}"))));
        }
        let conf = self.configure("haproxy", include_str!("../../../../deploy/ha/haproxy.cfg"), &values)?;
        parts.start("haproxy", Spec::new(program("haproxy"), ["-db", "-f", &conf]))?;
        self.until_complete().await?;
        let url = self.superuser_url("postgres");
        query(&url, &format!("create role latchgate login password '{PASSWORD}'")).await?;
        query(&url, "create database latchgate owner latchgate").await.map(drop)
    }

    /// Renders a template to a file; returns its path.
    fn configure(&self, name: &str, template: &str, values: &[(&str, String)]) -> anyhow::Result<String> {
        let passwords = ["HA_SUPERUSER_PASSWORD", "HA_REPLICATION_PASSWORD", "HA_REWIND_PASSWORD", "HA_REDIS_PASSWORD"];
        let common = [("HA_NAME", name), ("HA_HOST", "127.0.0.1"), ("HA_NETWORK", "127.0.0.0/8")];
        let common = common.into_iter().chain(passwords.map(|name| (name, PASSWORD)));
        let all: Vec<_> = common.map(|(name, value)| (name, value.to_owned())).chain(values.iter().cloned()).collect();
        render(&self.parts.file(&format!("{name}.conf")), template, &all)
    }

    /// `HOST:PORT,HOST:PORT,HOST:PORT` of these parts.
    fn addresses(&self, of: &str) -> String {
        [1, 2, 3].map(|n| self.parts.address(&format!("{of}-{n}"))).join(",")
    }

    /// Through HAProxy.
    pub(super) fn superuser_url(&self, database: &str) -> String {
        format!("postgres://postgres:{PASSWORD}@{}/{database}", self.parts.address("haproxy"))
    }

    /// `--locks` and `--gate` of a node. The first two find the primary through HAProxy, the third by itself.
    pub(super) fn urls_of_ha(&self, node: &str) -> (String, Option<String>) {
        let hosts = if node == "node-3" { self.addresses("postgres") } else { self.parts.address("haproxy") };
        let locks = format!("postgres://latchgate:{PASSWORD}@{hosts}/latchgate?target_session_attrs=read-write");
        (locks, Some(format!("redis+sentinel://:{PASSWORD}@{}/latchgate", self.addresses("sentinel"))))
    }

    /// Until a majority of the Sentinels knows the master, and its replicas follow it; and until the primary has two standbys that follow it, one
    /// of them synchronously. Patroni may first rewind a server that was the primary, after it has already reported it as
    /// running.
    pub async fn until_complete(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + FOLLOW_WITHIN;
        loop {
            let standbys = self.standbys().await;
            if standbys.as_ref().is_ok_and(|standbys| standbys == "2/1") && self.redis_is_complete().await {
                return Ok(());
            }
            if Instant::now() > deadline {
                let logs = [1, 2, 3].map(|n| self.parts.log(&format!("patroni-{n}"))).join("\n");
                bail!("no two standbys or replicas follow: {standbys:?}\n{logs}\n{}", self.parts.log("sentinel-1"));
            }
            self.parts.supervise()?;
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
        let file = self.data.join(format!("patroni-{n}/data/postmaster.pid"));
        fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
    }
}
