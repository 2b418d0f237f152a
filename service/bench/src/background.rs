//! Work in the background that other clients should hardly notice: long polls that wait, and leases that are held and renewed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{anyhow, ensure};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::drive::{Laps, Worker};
use crate::http::{Connection, Failure, Request, SEQUENCE, Target, get, lease_id, lease_id_template, post};

const HOLD_MS: u64 = 300_000;
/// Waiters of one lock, so that no limit of a key counts.
const WAITERS_PER_KEY: usize = 100;
const SETTLE_MAX: Duration = Duration::from_secs(120);

/// Locks that are held.
pub struct Held {
    targets: Vec<Target>,
    run: u64,
    count: u64,
}

impl Held {
    /// Takes so many locks.
    pub async fn take(targets: &[Target], run: u64, count: u64) -> anyhow::Result<Self> {
        let held = Self { targets: targets.to_vec(), run, count };
        held.each("acquire", &format!(r#","ttl_ms":{HOLD_MS}"#)).await?;
        Ok(held)
    }

    pub async fn give_back(self) -> anyhow::Result<()> {
        self.each("release", "").await
    }

    /// Calls `verb` for each lock, over some connections at once.
    async fn each(&self, verb: &'static str, fields: &str) -> anyhow::Result<()> {
        let connections = 64.min(self.count.max(1));
        let mut tasks = JoinSet::new();
        for first in 0..connections {
            let (mut connection, mut request) = self.open(first as usize, verb, fields).await?;
            let count = self.count;
            tasks.spawn(async move {
                for number in (first..count).step_by(connections as usize) {
                    connection.call(verb, request.with(number, 0)).await.map_err(|failure| anyhow!(failure.what))?;
                }
                Ok(())
            });
        }
        tasks.join_all().await.into_iter().collect()
    }

    /// The path of one lock; its number is in place of [`SEQUENCE`].
    fn path(&self) -> String {
        format!("/v1/locks/bench-{:016x}-held-{SEQUENCE}", self.run)
    }

    /// A connection, and a request about one of the locks, whose number is the sequence.
    async fn open(&self, number: usize, verb: &str, fields: &str) -> anyhow::Result<(Connection, Request)> {
        let target = &self.targets[number % self.targets.len()];
        let body = format!(r#"{{"lease_id":"{}"{fields}}}"#, lease_id_template(self.run, 0xffff));
        Ok((Connection::open(target).await?, Request::post(target, &format!("{}/{verb}", self.path()), &body)))
    }
}

/// Renews held leases one after the other, each worker its own part of them.
pub struct Renewer {
    connection: Connection,
    request: Request,
    first: u64,
    workers: u64,
    count: u64,
}

impl Renewer {
    /// There are at most as many workers as leases.
    pub async fn open(held: &Held, number: usize, workers: usize) -> anyhow::Result<Self> {
        let (connection, request) = held.open(number, "renew", "").await?;
        Ok(Self { connection, request, first: number as u64, workers: workers as u64, count: held.count })
    }
}

impl Worker for Renewer {
    async fn operation(&mut self, sequence: u64, laps: &mut Laps) -> Result<(), Failure> {
        let own = (self.count - self.first).div_ceil(self.workers);
        let lease = self.first + sequence % own * self.workers;
        self.connection.call("renew", self.request.with(lease, 0)).await?;
        laps.lap("renew");
        Ok(())
    }
}

/// Clients that wait for locks which they do not get.
pub struct Polls {
    tasks: JoinSet<()>,
    held: Held,
}

impl Polls {
    /// Returns when all of them wait.
    pub async fn begin(targets: &[Target], run: u64, count: usize) -> anyhow::Result<Self> {
        let held = Held::take(targets, run, count.div_ceil(WAITERS_PER_KEY) as u64).await?;
        let (mut tasks, failed) = (JoinSet::new(), Arc::new(Mutex::new(None)));
        for number in 0..count {
            let target = &targets[number % targets.len()];
            let mut connection = Connection::open(target).await?;
            let path = held.path().replace(SEQUENCE, &format!("{:012x}", number as u64 % held.count));
            let body = format!(r#"{{"lease_id":"{}","wait_ms":50000}}"#, lease_id(run, 0xfffe, number as u64));
            let request = post(target, &format!("{path}/acquire"), &body);
            let failed = failed.clone();
            tasks.spawn(async move {
                let what = loop {
                    match connection.call("poll", request.as_bytes()).await {
                        Err(failure) if failure.what.starts_with("poll 423") => {}
                        Err(failure) => break failure.what,
                        Ok(_) => break "the lock".to_owned(),
                    }
                };
                failed.lock().expect("no poll panicked").get_or_insert(what);
            });
        }
        let polls = Self { tasks, held };
        polls.settle(count as u64, &failed).await?;
        Ok(polls)
    }

    async fn settle(&self, count: u64, failed: &Mutex<Option<String>>) -> anyhow::Result<()> {
        // Each node knows of the waiters of all.
        let target = &self.held.targets[0];
        let mut connection = Connection::open(target).await?;
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            let mut waiting = 0;
            for number in 0..self.held.count {
                let path = self.held.path().replace(SEQUENCE, &format!("{number:012x}"));
                let answer = connection.call("get", get(target, &path).as_bytes()).await;
                let answer: Value = serde_json::from_slice(answer.map_err(|failure| anyhow!(failure.what))?)?;
                waiting += answer["waiters"].as_u64().unwrap_or(0);
            }
            let failed = failed.lock().expect("no poll panicked").clone();
            ensure!(failed.is_none(), "a client that should wait got: {}", failed.unwrap_or_default());
            if waiting >= count {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "only {waiting} of {count} clients wait");
            sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn end(mut self) -> anyhow::Result<()> {
        self.tasks.shutdown().await;
        self.held.give_back().await
    }
}
