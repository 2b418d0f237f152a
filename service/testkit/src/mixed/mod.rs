//! Clients that use everything at once: modes, permits, priorities, multilocks, tickets, and the gate. Some hang up while they wait,
//! some vanish with what they hold. The load behind `scripts/chaos.sh`.

mod client;
mod holders;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::ensure;
use latchgate_bench::http::{Target, run_id};
use serde::Serialize;
use tokio::task::JoinSet;

use self::client::Client;
use self::holders::Holders;
use crate::caller;

#[derive(Clone, clap::Args)]
pub struct Args {
    /// Nodes of one tier, or load balancers in front of them, as http://HOST:PORT; each call goes to a random one
    #[arg(long, value_delimiter = ',', required = true)]
    pub urls: Vec<String>,
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..))]
    pub clients: u64,
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Length of each lease, in ms
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub ttl_ms: u64,
}

/// What the clients have seen.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Leases and permissions of the gate that were granted.
    pub granted: u64,
    /// Answers by kind of call, status and code: `acquire 423 wait-timeout`.
    pub answers: BTreeMap<String, u64>,
    pub violations: Vec<String>,
}

impl Report {
    /// # Errors
    /// When a lock or an operation had holders that exclude each other, or nothing was granted.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.violations.is_empty(), "{}", self.violations.join("\n"));
        ensure!(self.granted > 0, "nothing was granted");
        Ok(())
    }
}

/// Runs until the time is up, or until SIGTERM or SIGINT.
pub async fn run(args: &Args) -> anyhow::Result<Report> {
    let (targets, end) = (caller::targets(&args.urls)?, caller::end(args.seconds)?);
    let shared = Arc::new(Shared {
        targets,
        run: run_id(),
        args: args.clone(),
        is_over: AtomicBool::new(false),
        holders: Holders::default(),
        answers: Mutex::default(),
    });
    let mut clients = JoinSet::new();
    for number in 0..args.clients {
        clients.spawn(Client::new(number, &shared).run());
    }
    end.await;
    shared.is_over.store(true, Ordering::Relaxed);
    clients.join_all().await;
    let answers = std::mem::take(&mut *shared.answers.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Report { granted: shared.holders.entered(), answers, violations: shared.holders.violations() })
}

/// Shared by all clients.
struct Shared {
    targets: Vec<Target>,
    run: u64,
    args: Args,
    is_over: AtomicBool,
    holders: Holders,
    answers: Mutex<BTreeMap<String, u64>>,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn count(&self, answer: String) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner).entry(answer).or_default() += 1;
    }
}
