//! A cluster on this machine that keeps running: `latchgate-testkit cluster up`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::ask::{self, is_ok};
use super::ha::{HA_STORES, HaStores};
use super::parts::Parts;
use super::stores::NODES;
use super::{fail_over, say, walk};

const ROOM_PREFIX: &str = "latchgate-cluster.";

#[derive(Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, clap::Subcommand)]
enum Command {
    /// Start those of Postgres, Redis, three nodes and nginx that do not run
    Up {
        /// How nginx chooses a node; if absent, as before, at first by key
        #[arg(long)]
        balance: Option<Balance>,
        #[command(flatten)]
        kind: KindArgs,
    },
    /// Stop all, and remove its data
    Down,
    /// Use a cluster of its own through nginx, kill parts of it, and take it down
    Test,
    /// Let Postgres fail over in a cluster of its own with asynchronous replication: nothing is granted until the hold-off ends
    FailOver,
}

#[derive(Clone, clap::Args)]
pub struct Place {
    /// A link to the data, which is in a directory under TMPDIR
    #[arg(long, env = "CLUSTER_DIR", default_value = ".cluster", global = true)]
    pub link: PathBuf,
    /// A built `latchgate` [default: the one beside this program]
    #[arg(long, env = "CLUSTER_BINARY", global = true)]
    pub binary: Option<PathBuf>,
    /// Further variables of the nodes.
    #[arg(skip)]
    settings: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Balance {
    ByKey,
    RoundRobin,
}

#[derive(Clone, Copy, clap::Args)]
struct KindArgs {
    /// Three servers of Postgres under Patroni with etcd and HAProxy, and three of Redis with Sentinels
    #[arg(long)]
    ha: bool,
    /// The same, with asynchronous replication of Postgres
    #[arg(long, conflicts_with = "ha")]
    ha_asynchronous: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Simple,
    Ha,
    HaAsynchronous,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Up { balance, kind } => {
            let kind = match kind {
                KindArgs { ha: true, .. } => Kind::Ha,
                KindArgs { ha_asynchronous: true, .. } => Kind::HaAsynchronous,
                KindArgs { .. } => Kind::Simple,
            };
            let cluster = Cluster::up(&args.place, kind, *balance).await?;
            cluster.report(&args.place)
        }
        Command::Down => Cluster::down(&args.place).await,
        Command::Test => walk::run(&args.place).await,
        Command::FailOver => fail_over::run(&args.place).await,
    }
}

pub struct Cluster {
    pub parts: Parts,
    kind: Kind,
}

impl Cluster {
    /// Starts the parts that do not run.
    pub async fn up(place: &Place, kind: Kind, balance: Option<Balance>) -> anyhow::Result<Self> {
        // Each waiter needs two connections of nginx.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let (cluster, is_new) = Self::enter(&place.link, kind).await?;
        if let Err(error) = cluster.start(place, balance).await {
            if is_new {
                cluster.remove(&place.link).await?;
            }
            return Err(error);
        }
        Ok(cluster)
    }

    /// The running cluster, or a new one. If no part runs any more, for example after a reboot, the old data is removed: other programs may have
    /// taken its ports.
    async fn enter(link: &Path, kind: Kind) -> anyhow::Result<(Self, bool)> {
        if let Some(cluster) = Self::find(link)? {
            ensure!(cluster.kind == kind, "{} is a cluster of another kind: take it down first", link.display());
            if cluster.names().iter().any(|name| cluster.parts.is_running(name)) {
                cluster.parts.read_ports();
                return Ok((cluster, false));
            }
            say("no part of the last cluster runs any more: starting a new cluster");
            cluster.remove(link).await?;
        }
        let room = fs::canonicalize(tempfile::Builder::new().prefix(ROOM_PREFIX).tempdir()?.keep())?;
        ask::output("chmod", ["711", &room.display().to_string()]).await?;
        let name = kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        fs::write(room.join("kind"), name)?;
        // Fails if another process starts a cluster at this moment.
        if let Err(error) = symlink(&room, link) {
            fs::remove_dir_all(&room)?;
            return Err(error).with_context(|| format!("{} is in the way", link.display()));
        }
        Ok((Self { parts: Parts::new(room, true), kind }, true))
    }

    /// The data is not in the checkout itself: the user postgres may not have access to it, and the path of a socket must be short.
    fn find(link: &Path) -> anyhow::Result<Option<Self>> {
        let Ok(room) = fs::read_link(link) else { return Ok(None) };
        let is_ours = room.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ROOM_PREFIX));
        // The directory will be removed with its contents.
        ensure!(is_ours, "{} is not a link to a cluster", link.display());
        let kind = fs::read_to_string(room.join("kind")).unwrap_or_default();
        let kind = Kind::from_str(&kind, false).unwrap_or(Kind::Simple);
        Ok(Some(Self { parts: Parts::new(room, true), kind }))
    }

    /// In the order of their starts.
    fn names(&self) -> Vec<&'static str> {
        let stores: &[&str] = if self.kind == Kind::Simple { &["postgres", "redis"] } else { &HA_STORES };
        stores.iter().chain(&NODES).chain(&["nginx"]).copied().collect()
    }

    pub fn ha(&self) -> HaStores<'_> {
        HaStores { parts: &self.parts, is_synchronous: self.kind == Kind::Ha }
    }

    async fn start(&self, place: &Place, balance: Option<Balance>) -> anyhow::Result<()> {
        let binary = fs::canonicalize(place.binary.clone().unwrap_or_else(crate::node::binary))?;
        let (parts, names) = (&self.parts, self.names());
        let (running, missing): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| parts.is_running(name));
        // The Postgres of a killed Patroni keeps running, and the next Patroni takes it over.
        missing.iter().filter(|name| !name.starts_with("patroni")).for_each(|name| parts.sweep(name));
        if self.kind == Kind::Simple {
            let room = parts.file("");
            if missing.contains(&"postgres") {
                parts.start_postgres(&room, |spec| spec).await?;
            }
            if missing.contains(&"redis") {
                parts.start_redis(&room, |spec| spec).await?;
            }
        } else {
            self.ha().start().await?;
        }
        for node in NODES {
            if running.contains(&node) {
                // Its stores may just have been restarted.
                parts.until_ready(node, async || is_ok(&parts.url(node), "/readyz").await).await?;
                continue;
            }
            let (locks, gate) = match self.kind {
                Kind::Simple => (parts.postgres_url(), format!("redis://{}", parts.address("redis"))),
                _ => self.ha().node_urls(node),
            };
            let with = |spec: super::parts::Spec| {
                let spec = place.settings.iter().fold(spec, |spec, (name, value)| spec.env(name, *value));
                let spec = spec.env("LATCHGATE_LOCKS", &locks).env("LATCHGATE_GATE", &gate);
                if self.kind == Kind::Ha { spec.env("LATCHGATE_TRUST_PROMOTION", "true") } else { spec }
            };
            parts.start_node(node, &binary, with).await?;
        }
        let before = fs::read_to_string(parts.file("balance")).ok();
        let balance = balance.and_then(|balance| Some(balance.to_possible_value()?.get_name().to_owned()));
        let method = balance.or(before).unwrap_or_else(|| "by_key".to_owned());
        fs::write(parts.file("balance"), &method)?;
        parts.start_nginx(&method).await?;
        parts.write_ports()?;
        fs::write(parts.file("urls"), self.urls())?;
        if missing.is_empty() {
            say("the cluster was already up");
        } else if !running.is_empty() {
            say(&format!("already running: {}", running.join(" ")));
        }
        Ok(())
    }

    /// Variables for a shell.
    fn urls(&self) -> String {
        let mut lines = format!("NGINX={}\n", self.parts.url("nginx"));
        (1..=3).for_each(|n| lines += &format!("NODE_{n}={}\n", self.parts.url(&format!("node-{n}"))));
        if self.kind != Kind::Simple {
            (1..=3).for_each(|n| lines += &format!("PATRONI_{n}={}\n", self.parts.url(&format!("patroni-{n}"))));
            lines +=
                &format!("LOCKS='{}'\nSENTINEL={}\n", self.ha().node_urls("node-3").0, self.parts.port("sentinel-1"));
        }
        lines
    }

    fn report(&self, place: &Place) -> anyhow::Result<()> {
        let (parts, link) = (&self.parts, place.link.display());
        println!("\n  nginx   {}   ({})", parts.url("nginx"), fs::read_to_string(parts.file("balance"))?);
        NODES.iter().for_each(|node| println!("  {node}  {}", parts.url(node)));
        println!("\nTake your first lock through nginx:\n");
        println!("  curl -f -X POST {}/v1/locks/my-lock/acquire\n", parts.url("nginx"));
        println!("`. {link}/urls` sets NGINX and NODE_1 to NODE_3; logs are {link}/*.log.");
        if self.kind != Kind::Simple {
            println!();
            for n in 1..=3 {
                let (patroni, port) = (parts.url(&format!("patroni-{n}")), parts.port(&format!("postgres-{n}")));
                println!("  patroni-{n}  {patroni}/cluster   (Postgres: port {port})");
            }
            println!("  haproxy    {}   (the primary)", parts.address("haproxy"));
        }
        Ok(())
    }

    /// Stops what runs, and removes the data.
    pub async fn down(place: &Place) -> anyhow::Result<()> {
        let Some(cluster) = Self::find(&place.link)? else {
            say(&format!("there is no cluster in {}", place.link.display()));
            return Ok(());
        };
        cluster.remove(&place.link).await?;
        say("the cluster is down, and its data is removed");
        Ok(())
    }

    async fn remove(&self, link: &Path) -> anyhow::Result<()> {
        for name in self.names().iter().rev() {
            self.parts.stop(name).await;
        }
        let room = self.parts.file("");
        if room.exists() {
            fs::remove_dir_all(room)?;
        }
        Ok(fs::remove_file(link)?)
    }
}

impl Place {
    /// A place in a directory of its own, for a test.
    pub fn within(&self, dir: &Path, settings: &[(&'static str, &'static str)]) -> Self {
        Self { link: dir.join("cluster"), settings: settings.to_vec(), ..self.clone() }
    }
}

/// Fails unless the condition is true within `seconds`.
pub async fn until(what: &str, seconds: u64, condition: impl AsyncFn() -> bool) -> anyhow::Result<()> {
    if !crate::eventually(std::time::Duration::from_secs(seconds), || condition()).await {
        bail!("not within {seconds} s: {what}");
    }
    Ok(())
}
