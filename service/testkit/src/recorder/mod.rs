//! Clients that take locks carefully, and record every call. The check uses only what the clients could know.

mod client;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use latchgate_bench::http::{Target, run_id};
use tokio::task::JoinSet;

use self::client::Client;
use crate::caller;
use crate::recorded::Call;

#[derive(Clone, clap::Args)]
pub struct Args {
    /// Nodes of one tier, or load balancers in front of them, as http://HOST:PORT; each call goes to a random one
    #[arg(long, value_delimiter = ',', required = true)]
    pub urls: Vec<String>,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Distributed over the keys in turn
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..))]
    pub clients: u64,
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Length of each lease, in ms. A client waits at most a third of it, so that some of the lease is left after the wait
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub ttl_ms: u64,
    /// One in this many leases is left to expire; 0: none is
    #[arg(long, default_value_t = 500)]
    pub abandon_one_in: u64,
    /// The file for the recorded calls
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Records until the time is up, or until SIGTERM or SIGINT.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    until(caller::end(args.seconds)?, args).await
}

/// Records until `end`, and then until every client has its last answer: a history without it would be incomplete.
pub async fn until(end: impl Future<Output = ()> + Send + 'static, args: &Args) -> anyhow::Result<()> {
    let targets = caller::targets(&args.urls)?;
    let lines = File::create(&args.out).with_context(|| format!("creating {}", args.out.display()))?;
    let recorder = Arc::new(Recorder {
        targets,
        run: run_id(),
        args: args.clone(),
        started: Instant::now(),
        is_over: AtomicBool::new(false),
        lines: Mutex::new(lines),
    });
    let mut clients = JoinSet::new();
    for number in 0..args.clients {
        clients.spawn(Client::new(number, &recorder).run());
    }
    let ending = tokio::spawn(async move {
        end.await;
        recorder.is_over.store(true, Ordering::Relaxed);
    });
    let ended = clients.join_all().await;
    ending.abort();
    ended.into_iter().collect::<io::Result<()>>().context("writing")
}

/// Shared by all clients.
struct Recorder {
    targets: Vec<Target>,
    run: u64,
    args: Args,
    started: Instant,
    is_over: AtomicBool,
    lines: Mutex<File>,
}

impl Recorder {
    fn us(&self, at: Instant) -> u64 {
        u64::try_from((at - self.started).as_micros()).unwrap_or(u64::MAX)
    }

    /// Written at once: scripts follow the file.
    fn write(&self, call: &Call) -> io::Result<()> {
        let mut line = serde_json::to_vec(call)?;
        line.push(b'\n');
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use axum::extract::Path;
    use axum::routing::post;
    use axum::{Json, Router};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::recorded::{self, Rule, history};

    /// A node with one lock, in memory, that admits `holders` at once.
    async fn fake_node(holders: usize) -> String {
        let (free, tokens) = (Arc::new(Semaphore::new(holders)), Arc::new(AtomicU64::new(0)));
        let freed = free.clone();
        let acquire = async move |Path(_): Path<String>, Json(body): Json<Value>| {
            free.acquire().await.unwrap().forget();
            Json(json!({ "token": 1 + tokens.fetch_add(1, Ordering::Relaxed), "ttl_ms": body["ttl_ms"] }))
        };
        let release = async move |Path(_): Path<String>| {
            freed.add_permits(1);
            Json(json!({ "still_held": 0 }))
        };
        let routes = Router::new()
            .route("/v1/locks/{key}/acquire", post(acquire))
            .route("/v1/locks/{key}/release", post(release));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, routes).await });
        url
    }

    /// Records and checks one key of a lock that admits `holders` at once.
    async fn recorded_and_checked(holders: usize) -> (recorded::Report, anyhow::Result<()>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("history");
        let urls = vec![fake_node(holders).await];
        let args = Args { urls, keys: 1, clients: 8, seconds: 1, ttl_ms: 3_000, abandon_one_in: 0, out: file.clone() };
        run(&args).await.unwrap();
        let report = recorded::check(&history::read(&file).unwrap());
        (report, history::run(&history::Args { file, handovers_min: 1 }))
    }

    #[tokio::test]
    async fn a_correct_lock_passes() {
        let (report, checked) = recorded_and_checked(1).await;
        assert!(report.grants > 10 && report.handovers > 10, "{report:?}");
        checked.unwrap();
    }

    #[tokio::test]
    async fn two_holders_at_once_are_reported() {
        let (report, checked) = recorded_and_checked(2).await;
        assert!(report.violations.iter().any(|violation| violation.rule == Rule::OneHolder), "{report:?}");
        checked.unwrap_err();
    }
}
