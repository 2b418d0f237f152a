//! A tier on this machine, of real processes: stores, nodes and nginx in front. For chaos, each part has a clock that can be set, and the links
//! to the stores can break.

mod ha;
pub mod parts;
pub mod stores;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ValueEnum;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::sleep;

use self::parts::{Parts, Spec};
use self::stores::{query, redis};
pub use crate::ask;
use crate::ask::{Reply, is_ok, post};

pub const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Longest recovery of a part.
pub const RECOVERY_MAX: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Three nodes behind nginx, locks in Postgres, operations in Redis
    Cluster,
    /// A node on a file
    Sqlite,
    /// Three nodes on Postgres and Redis as a pair of engines
    Pair,
    /// As `cluster`, with three servers of Postgres under Patroni with etcd and HAProxy, and three of Redis with Sentinels
    Ha,
}

/// How a tier is started.
pub struct Plan<'a> {
    pub kind: Kind,
    /// With clocks and links.
    pub is_breakable: bool,
    pub binary: &'a Path,
    /// `by_key` or `round_robin`.
    pub balance: &'a str,
    /// Further variables of the nodes.
    pub settings: Vec<(&'static str, String)>,
}

pub struct Tier {
    pub kind: Kind,
    is_breakable: bool,
    pub parts: Parts,
    pub data: PathBuf,
    pub nodes: &'static [&'static str],
    pub stores: &'static [&'static str],
    /// The load balancer, or the only node.
    pub url: String,
}

/// Says to a person what happens now.
pub fn say(what: &str) {
    eprintln!("==> {what}");
}

/// A directory that the user of Postgres can get through.
pub fn make_dir(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o711))?)
}

impl Tier {
    /// Starts all parts in `room`, with their data in `data`.
    pub async fn start(plan: &Plan<'_>, room: &Path, data: &Path) -> anyhow::Result<Self> {
        make_dir(room)?;
        make_dir(data)?;
        let (nodes, stores): (&[&str], &[&str]) = match plan.kind {
            Kind::Sqlite => (&NODES[..1], &[]),
            Kind::Ha => (&NODES, &[]),
            Kind::Cluster | Kind::Pair => (&NODES, &["postgres", "redis"]),
        };
        let (kind, is_breakable) = (plan.kind, plan.is_breakable);
        // The output of each process is found by this path.
        let (parts, data, url) = (Parts::new(fs::canonicalize(room)?), data.to_owned(), String::new());
        let mut tier = Self { kind, is_breakable, parts, data, nodes, stores, url };
        if is_breakable {
            tier.make_clocks().await?;
        }
        if kind == Kind::Ha {
            tier.start_ha().await?;
        }
        if !stores.is_empty() {
            tier.start_postgres().await?;
            tier.start_redis().await?;
            if is_breakable {
                // The other engine of the gate.
                tier.query("create database gate").await?;
                let links = nodes.iter().flat_map(|node| stores.iter().map(|store| tier.link_of(node, store)));
                let args = ["links".to_owned()].into_iter().chain(links);
                tier.parts.start("links", Spec::new(std::env::current_exe()?, args))?;
            }
        }
        for node in nodes {
            tier.use_binary(node, plan.binary)?;
            let (locks, gate) = tier.urls_of_stores(node);
            let mut settings = vec![("LATCHGATE_LOCKS", locks)];
            settings.extend(gate.map(|gate| ("LATCHGATE_GATE", gate)));
            settings.extend(plan.settings.iter().cloned());
            settings.push(("TEST_CRASH", tier.crash_file(node).display().to_string()));
            if kind == Kind::Ha {
                settings.push(("LATCHGATE_TRUST_PROMOTION", "true".to_owned()));
            }
            tier.start_node(node, &settings).await?;
        }
        tier.url = tier.parts.url(nodes[0]);
        if kind != Kind::Sqlite {
            tier.start_nginx(plan.balance).await?;
            tier.url = tier.parts.url("nginx");
        }
        Ok(tier)
    }

    /// `--locks` and `--gate` of a node.
    fn urls_of_stores(&self, node: &str) -> (String, Option<String>) {
        let address = |store| {
            self.parts.address(&if self.is_breakable { format!("{node}-{store}") } else { String::from(store) })
        };
        match self.kind {
            Kind::Sqlite => (format!("sqlite:{}", self.data.join("latchgate.db").display()), None),
            Kind::Ha => self.urls_of_ha(node),
            Kind::Pair => {
                let postgres = format!("postgres://postgres@{}/postgres", address("postgres"));
                (format!("postgres={postgres} redis=redis://{}", address("redis")), None)
            }
            Kind::Cluster => {
                let (postgres, redis) = (format!("postgres://postgres@{}", address("postgres")), address("redis"));
                let gate = if self.is_breakable {
                    format!("redis=redis://{redis} postgres={postgres}/gate")
                } else {
                    format!("redis://{redis}")
                };
                (format!("{postgres}/postgres"), Some(gate))
            }
        }
    }

    /// At a store that was put back, while no node runs. `of` is `locks` or `gate`.
    pub fn order_of_hold_off(&self, binary: &Path, of: &str) -> Command {
        let postgres = format!("postgres://postgres@{}", self.parts.address("postgres"));
        let mut order = Command::new(binary);
        order.args(["engines", "hold-off", of, "--beside-store"]).env_remove("LATCHGATE_GATE");
        match self.kind {
            Kind::Sqlite => order.env("LATCHGATE_LOCKS", self.urls_of_stores(NODES[0]).0),
            _ => order.env("LATCHGATE_LOCKS", format!("{postgres}/postgres")),
        };
        if self.kind == Kind::Cluster {
            let redis = self.parts.address("redis");
            order.env("LATCHGATE_GATE", format!("redis=redis://{redis} postgres={postgres}/gate"));
        }
        order
    }

    pub fn crash_file(&self, node: &str) -> PathBuf {
        self.parts.file(&format!("{node}.crash"))
    }

    pub fn node_binary(&self, node: &str) -> PathBuf {
        self.parts.file(&format!("{node}.binary"))
    }

    /// For the node's next start.
    pub fn use_binary(&self, node: &str, binary: &Path) -> anyhow::Result<()> {
        let _ = fs::remove_file(self.node_binary(node));
        Ok(symlink(binary, self.node_binary(node))?)
    }

    fn link_of(&self, node: &str, store: &str) -> String {
        let (port, target) = (self.parts.port(&format!("{node}-{store}")), self.parts.port(store));
        format!("{port}:{target}:{}", self.link(node, store).display())
    }

    /// The file that says how the link is broken.
    pub fn link(&self, node: &str, store: &str) -> PathBuf {
        self.parts.file(&format!("link-{node}-{store}"))
    }

    async fn make_clocks(&self) -> anyhow::Result<()> {
        let source = self.parts.file("clock.c");
        fs::write(&source, include_str!("clock.c"))?;
        ask::run(
            Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(self.parts.file("clock.so")).arg(source),
        )
        .await?;
        self.stores.iter().chain(self.nodes).try_for_each(|name| self.set_clock(name, 0))
    }

    fn with_clock(&self, name: &str, spec: Spec) -> Spec {
        if !self.is_breakable {
            return spec;
        }
        let path = |name: &str| self.parts.file(name).display().to_string();
        spec.env("LD_PRELOAD", path("clock.so")).env("CHAOS_CLOCK", path(&format!("clock-{name}")))
    }

    /// Sets a part's clock ahead of this machine's. The eight bytes are written at once.
    pub fn set_clock(&self, name: &str, ms: i64) -> anyhow::Result<()> {
        let path = self.parts.file(&format!("clock-{name}"));
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        Ok(file.write_all_at(&(ms * 1_000_000).to_ne_bytes(), 0)?)
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| self.parts.url(node)).collect()
    }

    /// Of Postgres, or of its primary.
    pub fn postgres_url(&self) -> String {
        match self.kind {
            Kind::Ha => self.superuser_url("latchgate"),
            _ => format!("postgres://postgres@{}/postgres", self.parts.address("postgres")),
        }
    }

    pub async fn query(&self, statement: &str) -> anyhow::Result<String> {
        query(&self.postgres_url(), statement).await
    }

    pub async fn call(&self, path: &str, body: &Value, seconds: u64) -> Reply {
        post(&self.url, path, body, Duration::from_secs(seconds)).await
    }

    /// Until the supervisor has started a part, and it serves.
    pub async fn until_up(&self, name: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + RECOVERY_MAX;
        while self.parts.pid(name).is_none() || !self.serves(name).await {
            if Instant::now() > deadline {
                bail!("{name} does not come up:\n{}", self.parts.log(name));
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn serves(&self, name: &str) -> bool {
        match name {
            "postgres" => self.query("select 1").await.is_ok(),
            "redis" => redis(self.parts.port("redis"), &["ping"]).await.is_ok_and(|answer| answer == "PONG"),
            name if name == "nginx" || self.nodes.contains(&name) => is_ok(&self.parts.url(name), "/healthz").await,
            _ => true,
        }
    }
}
