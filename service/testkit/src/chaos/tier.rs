//! A target: its parts, each with a clock that can be set, and links to its stores that can break; and an operator.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::process::Command;
use tokio::time::sleep;

use super::Args;
use super::watch::{VANISHING, Watch, start_recorder};
use crate::cluster::ask::{self, Reply, get, is_ok, post};
use crate::cluster::ha::HaStores;
use crate::cluster::parts::{Parts, Spec, send};
use crate::cluster::stores::{NODES, query};

/// Longest recovery after a fault. The bounds of the faults are checked afterwards.
pub const RECOVERY_MAX: Duration = Duration::from_secs(90);
/// Leases last for 3 s at most, and end up to 0.2 s late.
const HOLD_OFF_ENOUGH: Duration = Duration::from_millis(3_500);
const MIXED: &str = "mixed";
/// Recorders that some faults kill.
pub const OTHER_CLIENTS: [&str; 2] = [VANISHING, MIXED];
pub const SOON: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// Three nodes behind nginx, locks in Postgres, operations in Redis
    Cluster,
    /// A node on a file
    Sqlite,
    /// Three nodes on Postgres and Redis as a pair of engines
    Pair,
    /// The stores of `make cluster-ha`
    Ha,
}

impl Target {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

pub struct Tier {
    pub target: Target,
    pub parts: Parts,
    pub data: PathBuf,
    pub binary: PathBuf,
    pub nodes: &'static [&'static str],
    pub stores: &'static [&'static str],
    /// The load balancer, or the only node.
    pub url: String,
    watch: Option<Watch>,
    /// Leases and keys that were written by a clock that was ahead stay for as long.
    pub clocks_jumped: Cell<bool>,
}

impl Tier {
    /// Starts all parts in `room`. With `upgrade`, the nodes are of this release.
    pub async fn start(
        target: Target,
        args: &Args,
        room: PathBuf,
        data: &Path,
        upgrade: Option<&Path>,
    ) -> anyhow::Result<Self> {
        fs::create_dir(&room)?;
        let data = data.join(target.name());
        fs::create_dir(&data)?;
        for dir in [&room, &data] {
            ask::output("chmod", ["711", &dir.display().to_string()]).await?;
        }
        let (nodes, stores): (&[&str], &[&str]) = match target {
            Target::Sqlite => (&NODES[..1], &[]),
            Target::Ha => (&NODES, &[]),
            Target::Cluster | Target::Pair => (&NODES, &["postgres", "redis"]),
        };
        let parts = Parts::new(room, false);
        let (binary, clocks_jumped) = (args.binary(), Cell::new(false));
        let mut tier =
            Self { target, parts, data, binary, nodes, stores, url: String::new(), watch: None, clocks_jumped };
        if let Err(error) = tier.start_parts(args, upgrade).await {
            tier.parts.stop_all().await;
            return Err(error);
        }
        Ok(tier)
    }

    async fn start_parts(&mut self, args: &Args, upgrade: Option<&Path>) -> anyhow::Result<()> {
        let source = self.parts.file("clock.c");
        fs::write(&source, include_str!("clock.c"))?;
        let so = self.parts.file("clock.so");
        ask::run(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&so).arg(&source)).await?;
        let parts = &self.parts;
        for name in self.stores.iter().chain(self.nodes) {
            self.set_clock(name, 0)?;
        }
        if self.target == Target::Ha {
            self.ha().start().await?;
        }
        if !self.stores.is_empty() {
            parts.start_postgres(&self.data, |spec| self.with_clock("postgres", spec)).await?;
            parts.start_redis(&self.data, |spec| self.with_clock("redis", spec)).await?;
            let mut links = vec!["links".to_owned()];
            for (node, store) in self.nodes.iter().flat_map(|node| self.stores.iter().map(move |store| (node, store))) {
                let link = parts.port(&format!("{node}-{store}"));
                links.push(format!("{link}:{}:{}", parts.port(store), self.link(node, store).display()));
            }
            parts.start("links", Spec::new(std::env::current_exe()?, links))?;
        }
        if self.target == Target::Cluster {
            // The other engine of the gate.
            self.query("create database gate").await?;
        }
        for node in self.nodes {
            let settings = self.settings(node, args.is_long());
            self.use_binary(node, upgrade.unwrap_or(&self.binary))?;
            let with =
                |spec| settings.iter().fold(self.with_clock(node, spec), |spec, (name, value)| spec.env(name, value));
            parts.start_node(node, &self.node_binary(node), with).await?;
        }
        self.url = parts.url(self.nodes[0]);
        if self.target != Target::Sqlite {
            parts.start_nginx("by_key").await?;
            self.url = parts.url("nginx");
        }
        self.watch = Some(Watch::start(parts, &self.url)?);
        if self.target == Target::Pair {
            self.watch().clocks_differ();
        }
        let mut mix = "shared,permits,rates,multilock,tickets,reentrant,revoke,hang-up".to_owned();
        if upgrade.is_none() {
            // Old nodes beside new ones may exceed the limits of groups.
            mix += ",groups";
        }
        if self.target != Target::Ha {
            // See the fault `master`.
            mix += ",gate,gate,gate";
        }
        let urls = [self.url.clone()].into_iter().chain(self.urls()).collect::<Vec<_>>().join(",");
        let mixed = format!("--keys 4 --clients 12 --ttl-ms 2000 --abandon-one-in 20 --readers 2 --mix {mix}");
        start_recorder(parts, MIXED, &urls, "history-mixed-{start}", &mixed)?;
        self.watch().until_as_before("the start", RECOVERY_MAX, parts, async || Ok(())).await
    }

    /// Variables of a node.
    fn settings(&self, node: &str, is_long: bool) -> Vec<(&'static str, String)> {
        let link = |store: &str| format!("127.0.0.1:{}", self.parts.port(&format!("{node}-{store}")));
        let (locks, gate) = match self.target {
            Target::Sqlite => (format!("sqlite:{}", self.data.join("latchgate.db").display()), None),
            Target::Pair => {
                let postgres = format!("postgres://postgres@{}/postgres", link("postgres"));
                (format!("postgres={postgres} redis=redis://{}", link("redis")), None)
            }
            Target::Cluster => {
                let postgres = format!("postgres://postgres@{}", link("postgres"));
                let gate = format!("redis=redis://{} postgres={postgres}/gate", link("redis"));
                (format!("{postgres}/postgres"), Some(gate))
            }
            Target::Ha => {
                let (locks, gate) = self.ha().node_urls(node);
                (locks, Some(gate))
            }
        };
        // Hold-offs last as long.
        let mut settings =
            vec![("LATCHGATE_TTL_MAX", "60s".to_owned()), ("LATCHGATE_OPERATION_TTL_MAX", "60s".to_owned())];
        settings.push(("LATCHGATE_LOCKS", locks));
        settings.extend(gate.map(|gate| ("LATCHGATE_GATE", gate)));
        settings.push(("TEST_CRASH", self.crash_file(node).display().to_string()));
        if self.target == Target::Ha {
            settings.push(("LATCHGATE_TRUST_PROMOTION", "true".to_owned()));
        }
        if is_long {
            // The least that nodes accept, so that the collection has work.
            let retentions = ["LATCHGATE_IDLE_RETENTION", "LATCHGATE_HISTORY_RETENTION"];
            settings.extend(retentions.map(|name| (name, "60s".to_owned())));
        }
        settings
    }

    pub fn crash_file(&self, node: &str) -> PathBuf {
        self.parts.file(&format!("{node}.crash"))
    }

    pub fn link(&self, node: &str, store: &str) -> PathBuf {
        self.parts.file(&format!("link-{node}-{store}"))
    }

    fn node_binary(&self, node: &str) -> PathBuf {
        self.parts.file(&format!("{node}.binary"))
    }

    /// For the node's next start.
    pub fn use_binary(&self, node: &str, binary: &Path) -> anyhow::Result<()> {
        let _ = fs::remove_file(self.node_binary(node));
        Ok(symlink(binary, self.node_binary(node))?)
    }

    pub fn watch(&self) -> &Watch {
        self.watch.as_ref().expect("the tier has started")
    }

    pub fn ha(&self) -> HaStores<'_> {
        HaStores { parts: &self.parts, is_synchronous: true }
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| self.parts.url(node)).collect()
    }

    fn with_clock(&self, name: &str, spec: Spec) -> Spec {
        let path = |name: &str| self.parts.file(name).display().to_string();
        spec.env("LD_PRELOAD", path("clock.so")).env("CHAOS_CLOCK", path(&format!("clock-{name}")))
    }

    /// Sets a part's clock ahead of this machine's. The eight bytes are written at once.
    pub fn set_clock(&self, name: &str, ms: i64) -> anyhow::Result<()> {
        let file =
            File::options().create(true).truncate(false).write(true).open(self.parts.file(&format!("clock-{name}")))?;
        Ok(file.write_all_at(&(ms * 1_000_000).to_ne_bytes(), 0)?)
    }

    pub async fn query(&self, statement: &str) -> anyhow::Result<String> {
        let url =
            if self.target == Target::Ha { self.ha().superuser_url("latchgate") } else { self.parts.postgres_url() };
        query(&url, statement).await
    }

    pub async fn call(&self, path: &str, body: &serde_json::Value, seconds: u64) -> Reply {
        post(&self.url, path, body, Duration::from_secs(seconds)).await
    }

    /// Kills a part, and keeps it from being started again, until [`let_up`](Self::let_up).
    pub async fn keep_down(&self, name: &str) {
        self.parts.forbid(name);
        send(self.parts.processes(name), Signal::SIGKILL);
        self.parts.end(name, Some(Signal::SIGKILL)).await;
    }

    pub async fn let_up(&self, name: &str) -> anyhow::Result<()> {
        self.parts.allow(name);
        self.until_up(name).await
    }

    /// Until the supervisor has started it, and it serves.
    pub async fn until_up(&self, name: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + RECOVERY_MAX;
        while !(self.parts.is_running(name) && self.serves(name).await) {
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
            "redis" => self.parts.redis_answers().await,
            "nginx" => is_ok(&self.url, "/healthz").await,
            node if self.nodes.contains(&node) => is_ok(&self.parts.url(node), "/healthz").await,
            _ => true,
        }
    }

    pub async fn restart(&self, name: &str) -> anyhow::Result<()> {
        self.parts.end(name, None).await;
        self.until_up(name).await
    }

    pub async fn without_other_clients(&self) {
        for name in OTHER_CLIENTS {
            self.parts.forbid(name);
            send(self.parts.pid(name), Signal::SIGTERM);
        }
        while OTHER_CLIENTS.iter().any(|name| self.parts.is_running(name)) {
            sleep(SOON).await;
        }
        sleep(HOLD_OFF_ENOUGH).await;
    }

    pub fn with_other_clients(&self) {
        OTHER_CLIENTS.iter().for_each(|name| self.parts.allow(name));
    }

    /// For how long no lock is granted, as one of the nodes says.
    async fn hold_off_ms(&self) -> u64 {
        for url in self.urls() {
            let reply = get(&url, "/v1/admin/engines", Duration::from_secs(2)).await;
            if reply.is_success() {
                return reply.body["locks"]["hold_off_ms"].as_u64().unwrap_or(0);
            }
        }
        0
    }

    pub async fn order_end_of_hold_off(&self) -> bool {
        if self.hold_off_ms().await == 0 {
            return true;
        }
        self.call("/v1/admin/hold-off", &json!({ "for_ms": 0 }), 5).await;
        false
    }

    /// Ends it when no lease that was lost can be live.
    pub async fn end_hold_off(&self) {
        sleep(HOLD_OFF_ENOUGH).await;
        while !self.order_end_of_hold_off().await {
            sleep(SOON).await;
        }
    }

    /// At a store that was put back, while no node runs.
    pub async fn order_hold_offs(&self) -> anyhow::Result<()> {
        for of in ["locks", "gate"] {
            let locks = match self.target {
                Target::Sqlite => format!("sqlite:{}", self.data.join("latchgate.db").display()),
                _ => self.parts.postgres_url(),
            };
            let mut order = Command::new(&self.binary);
            order
                .args(["engines", "hold-off", of, "--beside-store"])
                .env("LATCHGATE_LOCKS", locks)
                .env_remove("LATCHGATE_GATE");
            if self.target == Target::Cluster {
                let (redis, postgres) = (self.parts.address("redis"), self.parts.address("postgres"));
                order.env(
                    "LATCHGATE_GATE",
                    format!("redis=redis://{redis} postgres=postgres://postgres@{postgres}/gate"),
                );
            }
            ask::run(&mut order).await.context("no hold-off can be ordered")?;
        }
        Ok(())
    }

    pub async fn active_engine(&self) -> Option<String> {
        let reply = get(&self.url, "/v1/admin/engines", Duration::from_secs(5)).await;
        reply.body["locks"]["active"].as_str().map(str::to_owned)
    }

    /// Whether the switch was done. `of` is `locks` or `gate`.
    pub async fn order_switch(&self, of: &str, engine: &str, is_stopped: bool) -> anyhow::Result<bool> {
        let mut order = json!({ "engine": engine });
        if is_stopped {
            order["stopped"] = json!(true);
        }
        let reply = self.call(&format!("/v1/admin/engines/{of}"), &order, 60).await;
        let log = self.parts.file("switches.log");
        let before = fs::read_to_string(&log).unwrap_or_default();
        fs::write(&log, format!("{before}{} {order} {} {}\n", super::watch::now_us(), reply.status, reply.text))?;
        Ok(reply.is_success())
    }
}
