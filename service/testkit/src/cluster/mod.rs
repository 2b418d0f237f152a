//! A tier that runs until this command is ended, and a walk through one.

mod walk;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::sleep;

use crate::tier::ask::is_ok;
use crate::tier::{Kind, Plan, RECOVERY_MAX, Tier, say};

/// A part that has ended is started again within this time.
const SUPERVISE_EVERY: Duration = Duration::from_secs(3);

#[derive(Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    walk: Option<Walk>,
    #[arg(long, default_value = "cluster")]
    kind: Kind,
    /// How nginx chooses a node
    #[arg(long, value_parser = ["by_key", "round_robin"], default_value = "by_key")]
    balance: String,
    /// While it runs, a link to logs, and to `urls` with variables for a shell
    #[arg(long, env = "CLUSTER_DIR", default_value = ".cluster")]
    link: PathBuf,
    /// A built `latchgate` [default: the one beside this program]
    #[arg(long, env = "CLUSTER_BINARY", global = true)]
    binary: Option<PathBuf>,
}

#[derive(Clone, clap::Subcommand)]
enum Walk {
    /// Use a cluster through nginx, and kill parts of it
    Test,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    // Each waiter needs two connections of nginx.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let dir = tempfile::Builder::new().prefix("latchgate-cluster-").tempdir()?;
    let binary = fs::canonicalize(args.binary.clone().unwrap_or_else(crate::node::binary))?;
    let start = async |kind, settings| {
        let plan = Plan { kind, is_breakable: false, binary: &binary, balance: &args.balance, settings };
        Tier::start(&plan, dir.path(), &dir.path().join("data")).await
    };
    match args.walk {
        Some(Walk::Test) => {
            // nginx is on this machine.
            let trusted = vec![("LATCHGATE_TRUSTED_PROXIES", "127.0.0.0/8".to_owned())];
            walk::run(start(Kind::Cluster, trusted).await?).await
        }
        None => {
            let ended = crate::caller::end(u64::from(u32::MAX))?;
            tokio::select! {
                served = serve(args, start(args.kind, Vec::new())) => served,
                () = ended => Ok(()),
            }?;
            let _ = fs::remove_file(&args.link);
            say("the cluster is down, and its data is removed");
            Ok(())
        }
    }
}

async fn serve(args: &Args, start: impl Future<Output = anyhow::Result<Tier>>) -> anyhow::Result<()> {
    ensure!(!args.link.exists(), "{} is there already: a cluster runs", args.link.display());
    let _ = fs::remove_file(&args.link);
    let tier = start.await?;
    report(&tier, &args.link)?;
    loop {
        tier.parts.supervise()?;
        sleep(SUPERVISE_EVERY).await;
    }
}

fn report(tier: &Tier, link: &Path) -> anyhow::Result<()> {
    let names = tier.parts.names();
    let names = names.iter().filter(|name| name.starts_with("node") || name.starts_with("patroni") || *name == "nginx");
    let urls: Vec<(&String, String)> = names.map(|name| (name, tier.parts.url(name))).collect();
    let variable = |(name, url): &(&String, String)| format!("{}={url}\n", name.replace('-', "_").to_uppercase());
    fs::write(tier.parts.file("urls"), urls.iter().map(variable).collect::<String>())?;
    symlink(tier.parts.file(""), link)?;
    println!();
    urls.iter().for_each(|(name, url)| println!("  {name:<10} {url}"));
    println!("\nTake your first lock:\n\n  curl -f -X POST {}/v1/locks/my-lock/acquire\n", tier.url);
    println!(
        "`. {0}/urls` sets NGINX and NODE_1 to NODE_3; logs are {0}/*.log. Ctrl-C ends all, and removes the data.",
        link.display()
    );
    println!("A part that you kill is started again within {} s.", SUPERVISE_EVERY.as_secs());
    Ok(())
}

/// Until all nodes are ready, and nginx answers.
async fn until_ready(tier: &Tier) -> anyhow::Result<()> {
    let deadline = Instant::now() + RECOVERY_MAX;
    for url in tier.urls().iter().chain([&tier.url]) {
        while !is_ok(url, "/readyz").await {
            ensure!(Instant::now() < deadline, "{url} does not get ready");
            tier.parts.supervise()?;
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
