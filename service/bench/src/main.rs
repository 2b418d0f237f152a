//! Load for a service, and what `make bench` and `make bench-peers` need beside it.

mod delay;
mod floor;
mod load;

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use latchgate_bench::cpu::Watched;
use latchgate_bench::http::Target;
use latchgate_bench::pairs::{Pair, Post};
use latchgate_bench::work::{self, Settings};

#[derive(Parser)]
#[command(name = "latchgate-bench", version, about = "Load for Latchgate, and servers and clients for comparisons")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Load(load::LoadArgs),
    /// Serve the floor: the same routes, with handlers that only parse and answer
    FloorServer {
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7079")]
        listen: SocketAddr,
    },
    /// Pass connections on to a server, and delay its answers
    DelayProxy(delay::Args),
    /// Make pairs of POSTs, and print a JSON line, with failed calls in `errors`. Paths and bodies may contain {run}, {worker},
    /// {sequence}, {key}, {id}, and those of the second POST {.FIELD}, a text of the first answer
    Pairs(PairsArgs),
}

#[derive(Args)]
struct PairsArgs {
    #[arg(long)]
    url: String,
    #[arg(long = "api-key")]
    key: Option<String>,
    #[arg(long, default_value_t = 128)]
    connections: usize,
    /// In seconds
    #[arg(long, default_value_t = 4.0)]
    duration: f64,
    /// In seconds
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Pairs per second in an open loop
    #[arg(long)]
    rate: Option<f64>,
    /// A new {key} for each pair; otherwise each connection has one
    #[arg(long)]
    fresh: bool,
    /// After each pair that succeeds
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Path, body, and optionally the answer, where a 2xx status does not mean success
    #[arg(long, num_args = 2..=3, required = true, value_names = ["PATH", "BODY"])]
    acquire: Vec<String>,
    #[arg(long, num_args = 2..=3, value_names = ["PATH", "BODY"])]
    release: Vec<String>,
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    node_pid: Vec<u32>,
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    store_pid: Vec<u32>,
}

impl PairsArgs {
    fn pair(&self) -> Pair {
        let post = |name, words: &[String]| match words {
            [path, body, rest @ ..] => Some(Post { answer: rest.first().cloned(), ..Post::new(name, path, body) }),
            _ => None,
        };
        let none = Post::new("acquire", "/", "");
        Pair {
            first: post("acquire", &self.acquire).unwrap_or(none),
            second: post("release", &self.release),
            is_fresh: self.fresh,
            pause: Duration::from_millis(self.pause_ms),
        }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        Ok(Settings {
            targets: vec![Target::with_key(&self.url, self.key.as_deref())?],
            connections: self.connections,
            warmup: Duration::try_from_secs_f64(self.warmup)?,
            measured: Duration::try_from_secs_f64(self.duration)?,
            rate: self.rate,
            watched: Watched { node: self.node_pid.clone(), store: self.store_pid.clone() },
            ..Settings::default()
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Load(args) => load::run(&args).await,
        Command::FloorServer { listen } => floor::serve(listen).await,
        Command::DelayProxy(args) => delay::run(&args),
        Command::Pairs(args) => {
            let report = work::pairs(&args.pair(), &args.settings()?).await?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
    }
}
