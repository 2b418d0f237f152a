//! Work in the background that other clients should hardly notice: long polls that wait, and leases that are renewed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::drive::{Laps, Worker};
use crate::http::{Connection, Failure, LeaseIds, Request, SEQUENCE, Target, get, post};

const HOLD_MS: u64 = 3_600_000;
/// Waiters of one lock, so that no limit of a key counts.
const WAITERS_PER_KEY: usize = 100;
const SETTLE_MAX: Duration = Duration::from_secs(120);

/// Locks that are held, with the lease id of each.
pub struct Held {
    targets: Vec<Target>,
    prefix: String,
    run: u64,
    pub count: u64,
}

impl Held {
    /// Takes so many locks.
    pub async fn take(targets: &[Target], run: u64, count: u64) -> anyhow::Result<Self> {
        let held = Self { targets: targets.to_vec(), prefix: format!("bench-{run:016x}-held-"), run, count };
        let body = |id: &str| format!(r#"{{"lease_id":"{id}","ttl_ms":{HOLD_MS}}}"#);
        held.each("acquire", body).await?;
        Ok(held)
    }

    pub async fn give_back(self) -> anyhow::Result<()> {
        self.each("release", |id| format!(r#"{{"lease_id":"{id}"}}"#)).await
    }

    /// Calls `verb` for each lock, over some connections at once.
    async fn each(&self, verb: &'static str, body: impl Fn(&str) -> String) -> anyhow::Result<()> {
        let connections = 64.min(self.count.max(1));
        let mut tasks = JoinSet::new();
        for first in 0..connections {
            let target = &self.targets[first as usize % self.targets.len()];
            let mut request = self.request(target, verb, &body(&self.ids().template()));
            let mut connection = Connection::open(target).await?;
            let count = self.count;
            tasks.spawn(async move {
                for number in (first..count).step_by(connections as usize) {
                    connection.call(verb, request.with(number, 0)).await.map_err(|failure| failure.what)?;
                }
                Ok::<(), String>(())
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<(), String>>().map_err(anyhow::Error::msg)
    }

    fn ids(&self) -> LeaseIds {
        LeaseIds::new(self.run, 0xffff)
    }

    /// A request about one of the locks; its number is the sequence.
    fn request(&self, target: &Target, verb: &str, body: &str) -> Request {
        Request::post(target, &format!("/v1/locks/{}{SEQUENCE}/{verb}", self.prefix), body)
    }
}

/// Renews held leases one after the other, each worker its own part of them.
pub struct Renewer {
    connection: Connection,
    request: Request,
    workers: u64,
    next: u64,
    first: u64,
    count: u64,
}

impl Renewer {
    pub async fn open(held: &Held, number: usize, workers: usize) -> anyhow::Result<Self> {
        let target = &held.targets[number % held.targets.len()];
        let id = held.ids().template();
        let request = held.request(target, "renew", &format!(r#"{{"lease_id":"{id}"}}"#));
        let (first, workers) = (number as u64, workers as u64);
        let connection = Connection::open(target).await?;
        Ok(Self { connection, request, workers, next: first, first, count: held.count })
    }
}

impl Worker for Renewer {
    async fn operation(&mut self, laps: &mut Laps) -> Result<(), Failure> {
        self.connection.call("renew", self.request.with(self.next, 0)).await?;
        laps.lap("renew");
        self.next += self.workers;
        if self.next >= self.count {
            self.next = self.first;
        }
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
        let locks = count.div_ceil(WAITERS_PER_KEY);
        let held = Held::take(targets, run, locks as u64).await?;
        let mut tasks = JoinSet::new();
        let failed = Arc::new(std::sync::Mutex::new(None));
        for number in 0..count {
            let target = &targets[number % targets.len()];
            let mut connection = Connection::open(target).await?;
            let id = LeaseIds::new(run, 0xfffe).text(number as u64);
            let path = format!("/v1/locks/{}{:012x}/acquire", held.prefix, number % locks);
            let request = post(target, &path, &format!(r#"{{"lease_id":"{id}","wait_ms":50000}}"#));
            let failed = failed.clone();
            tasks.spawn(async move {
                loop {
                    match connection.call("poll", request.as_bytes()).await {
                        Err(failure) if failure.what.starts_with("poll 423") => {}
                        Err(failure) => {
                            failed.lock().expect("no poll panicked").get_or_insert(failure.what);
                            return;
                        }
                        Ok(_) => return,
                    }
                }
            });
        }
        let polls = Self { tasks, held };
        polls.settle(count, &failed).await?;
        Ok(polls)
    }

    async fn settle(&self, count: usize, failed: &std::sync::Mutex<Option<String>>) -> anyhow::Result<()> {
        // Each node knows of the waiters of all.
        let target = &self.held.targets[0];
        let mut connection = Connection::open(target).await?;
        let deadline = tokio::time::Instant::now() + SETTLE_MAX;
        loop {
            let mut waiting = 0;
            for number in 0..self.held.count {
                let path = format!("/v1/locks/{}{number:012x}", self.held.prefix);
                let (_, body) = connection.send(get(target, &path).as_bytes()).await?;
                let answer: Value = serde_json::from_slice(body)?;
                waiting += answer["waiters"].as_u64().unwrap_or(0);
            }
            if let Some(what) = failed.lock().expect("no poll panicked").clone() {
                bail!("a client that should wait got: {what}");
            }
            if waiting >= count as u64 {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("only {waiting} of {count} clients wait");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn end(mut self) -> anyhow::Result<()> {
        self.tasks.shutdown().await;
        self.held.give_back().await
    }
}
