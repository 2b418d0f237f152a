//! Clients of a tier that record what they see, how long each fault keeps them from it, and the check of it all.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::eventually;
use crate::recorded::{Call, Options, Report, Verb, check_files};
use crate::tier::ask::post;
use crate::tier::parts::{Parts, Spec, send};

pub const KEYS: usize = 8;
/// Fewest grants of each key, and operations done, between two faults.
const GRANTS_MIN: usize = 10;
const DONE_MIN: usize = 2;
const HANDOVERS_MIN: usize = 100;
/// The last operations before a fault, which must be known at the end.
const NOTED: usize = 4;
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long the recorders' clients may need for their last answers.
const END_WITHIN: Duration = Duration::from_secs(120);

/// The other recorder that each tier has: its holders often vanish, so that the next holder must wait for the end of the lease.
pub const VANISHING: &str = "vanishing";

/// An operation that was done: when, and its number.
type Done = (u64, u64);

#[derive(Default)]
struct Operations {
    done: Vec<Done>,
    /// The last answer that was no success.
    refusal: String,
}

pub struct Watch {
    url: String,
    has_durable: bool,
    history: PathBuf,
    operations: Arc<Mutex<Operations>>,
    operating: JoinHandle<()>,
    /// What was read of the history.
    read: Cell<u64>,
    /// Grants since the last fault began, and the last of each key before it.
    grants: RefCell<Vec<(u64, String)>>,
    began_us: Cell<u64>,
    done_before_faults: RefCell<Vec<Done>>,
    lost_operations: RefCell<Vec<(u64, u64)>>,
    lost_leases: RefCell<Vec<Call>>,
    /// The expiries that stores give cannot be compared.
    pub clocks_differ: Cell<bool>,
}

/// By the monotonic clock of the histories.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock can be read");
    u64::try_from(Duration::from(now).as_micros()).unwrap_or(u64::MAX)
}

/// Starts a recorder as a part. `{start}` in its file: each start has a history of its own.
pub fn start_recorder(parts: &Parts, name: &str, urls: &str, file: &str, args: &str) -> anyhow::Result<()> {
    let all = format!("record --urls {urls} --seconds 86400 --out {} {args}", parts.file(file).display());
    parts.start(name, Spec::new(std::env::current_exe()?, all.split(' ')))
}

impl Watch {
    /// Starts clients that take locks and operations through `url`, until [`stop`](Self::stop). Without `has_durable`, no operation is
    /// durable: a Redis that is the active engine of the locks takes none.
    pub fn start(parts: &Parts, url: &str, has_durable: bool) -> anyhow::Result<Self> {
        let history = parts.file("history");
        File::create(&history)?;
        let main = format!("--keys {KEYS} --clients 24 --ttl-ms 3000 --abandon-one-in 0");
        start_recorder(parts, "recorder", url, "history", &main)?;
        parts.set_down("recorder", true);
        let others = "--keys 4 --clients 8 --ttl-ms 1000 --abandon-one-in 20";
        start_recorder(parts, VANISHING, url, "history-vanishing-{start}", others)?;
        let operations = Arc::<Mutex<Operations>>::default();
        let operating = tokio::spawn(operate(url.to_owned(), has_durable, Arc::clone(&operations)));
        let (read, grants, began_us, clocks_differ) = Default::default();
        let (done_before_faults, lost_operations, lost_leases, url) =
            (RefCell::default(), RefCell::default(), RefCell::default(), url.to_owned());
        Ok(Self {
            url,
            has_durable,
            history,
            operations,
            operating,
            read,
            grants,
            began_us,
            done_before_faults,
            lost_operations,
            lost_leases,
            clocks_differ,
        })
    }

    /// Ends the recorders, of which these are all. They write their last lines when each of their clients has its last answer.
    pub async fn stop(&self, parts: &Parts, recorders: &[&str]) -> anyhow::Result<()> {
        self.operating.abort();
        for name in recorders {
            parts.set_down(name, true);
            send(parts.pid(name), Signal::SIGTERM);
        }
        let have_ended = async || recorders.iter().all(|name| parts.pid(name).is_none());
        ensure!(eventually(END_WITHIN, have_ended).await, "a recorder does not end");
        Ok(())
    }

    fn done(&self) -> Vec<Done> {
        lock(&self.operations).done.clone()
    }

    /// Reads on in the history.
    fn follow(&self) -> anyhow::Result<()> {
        let mut file = File::open(&self.history)?;
        file.seek(SeekFrom::Start(self.read.get()))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.read.set(self.read.get() + whole as u64);
        let is_grant = |line: &&str| line.contains(r#""verb":"acquire""#) && line.contains(r#""status":200"#);
        for line in String::from_utf8_lossy(&text[..whole]).lines().filter(is_grant) {
            let call: Call = serde_json::from_str(line).context("the history")?;
            self.grants.borrow_mut().push((call.received_us, call.key));
        }
        Ok(())
    }

    /// Waits until all keys are granted and operations succeed again. Calls `attend` meanwhile.
    pub async fn until_as_before(
        &self,
        after: &str,
        within: Duration,
        parts: &Parts,
        attend: impl AsyncFn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.follow()?;
        let (known, done, deadline) = (self.grants.borrow().len(), self.done().len(), Instant::now() + within);
        loop {
            self.follow()?;
            let mut times = BTreeMap::<_, usize>::new();
            self.grants.borrow()[known..].iter().for_each(|(_, key)| *times.entry(key.clone()).or_default() += 1);
            let (granted, done) =
                (times.values().filter(|times| **times >= GRANTS_MIN).count(), self.done().len() - done);
            if granted == KEYS && done >= DONE_MIN {
                return Ok(());
            }
            if parts.pid("recorder").is_none() {
                bail!("the recorder has ended: {}", parts.log("recorder"));
            }
            if Instant::now() > deadline {
                let refusal = &lock(&self.operations).refusal;
                bail!(
                    "after {after}: {granted} of {KEYS} keys granted and {done} operations done within {within:?}; {refusal}"
                );
            }
            attend().await?;
            sleep(POLL_EVERY).await;
        }
    }

    pub fn begin_fault(&self) -> anyhow::Result<()> {
        self.follow()?;
        let mut grants = self.grants.borrow_mut();
        let last: BTreeMap<String, u64> = grants.drain(..).map(|(at, key)| (key, at)).collect();
        grants.extend(last.into_iter().map(|(key, at)| (at, key)));
        self.began_us.set(now_us());
        self.note_operations();
        Ok(())
    }

    /// The last that were done must still be known at the end.
    pub fn note_operations(&self) {
        self.done_before_faults.borrow_mut().extend(self.done().into_iter().rev().take(NOTED));
    }

    /// The longest times since then without a grant of one of the keys, and without an operation done.
    pub fn end_fault(&self) -> anyhow::Result<(Duration, Duration)> {
        self.follow()?;
        let grants = self.grants.borrow().clone();
        let done = self.done().into_iter().map(|(at, _)| (at, String::new())).collect();
        let from = self.began_us.get();
        Ok((longest_gap(grants, from), longest_gap(done, from)))
    }

    /// Stores have lost what they acknowledged since then.
    pub fn declare_loss(&self, from_us: u64) {
        self.lose_leases(from_us);
        self.lose_operations(from_us);
    }

    pub fn lose_operations(&self, from_us: u64) {
        self.lost_operations.borrow_mut().push((from_us, now_us()));
    }

    /// A client that held a lease then may have learned that it had lost the lease.
    pub fn lose_leases(&self, from_us: u64) {
        let call = Call { verb: Verb::Lose, sent_us: from_us, received_us: now_us() + 10_000, ..Call::default() };
        self.lost_leases.borrow_mut().push(call);
    }

    /// Fails if a lock or an operation broke a promise.
    pub async fn check(&self) -> anyhow::Result<Report> {
        let lost = self.history.with_file_name("lost-leases");
        let mut file = File::create(&lost)?;
        for call in self.lost_leases.borrow().iter() {
            writeln!(file, "{}", serde_json::to_string(call)?)?;
        }
        let mut sum = Report::default();
        for entry in self.history.parent().context("a directory")?.read_dir()? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("history")) {
                continue;
            }
            let is_main = path == self.history;
            // Some faults kill the other clients.
            let options = Options { clocks_differ: self.clocks_differ.get(), killed: !is_main };
            without_half_a_line(&path)?;
            let seen = check_files(&[path.clone(), lost.clone()], &options, if is_main { HANDOVERS_MIN } else { 0 })
                .with_context(|| format!("the recorded history shows a broken promise: {}", path.display()))?;
            sum.calls += seen.calls;
            sum.grants += seen.grants;
            sum.handovers += seen.handovers;
            sum.attempts += seen.attempts;
            sum.events += seen.events;
            sum.unknown_outcomes += seen.unknown_outcomes;
        }
        self.operations_are_known().await?;
        Ok(sum)
    }

    /// Operations that were done before a fault are still known, if no store has lost that time.
    async fn operations_are_known(&self) -> anyhow::Result<()> {
        let is_lost = |at: u64| self.lost_operations.borrow().iter().any(|(from, to)| (*from..=*to).contains(&at));
        let noted = self.done_before_faults.borrow().clone();
        for (_, number) in noted.into_iter().filter(|(at, _)| !is_lost(*at)) {
            let reply =
                post(&self.url, "/v1/operations/pre", &operation(number, self.has_durable), Duration::from_secs(20))
                    .await;
            if reply.body["code"] != "operation-duplicate" {
                bail!("operation {number} was done, but can be done again: {reply:?}");
            }
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.operating.abort();
    }
}

/// A client that was killed may have left half a line.
fn without_half_a_line(path: &Path) -> anyhow::Result<()> {
    let text = fs::read(path)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok(File::options().write(true).open(path)?.set_len(whole as u64)?)
}

/// The longest time between two moments of the same name, the second of which is behind `from`.
fn longest_gap(mut moments: Vec<(u64, String)>, from: u64) -> Duration {
    moments.sort_unstable();
    let (mut last, mut longest) = (HashMap::new(), 0);
    for (at, name) in moments {
        let before = last.insert(name, at);
        longest = longest.max(before.filter(|_| at > from).map_or(0, |before| at - before));
    }
    Duration::from_micros(longest)
}

fn lock(operations: &Mutex<Operations>) -> MutexGuard<'_, Operations> {
    operations.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does one operation after the other through the gate, and repeats each call until it succeeds.
async fn operate(url: String, has_durable: bool, operations: Arc<Mutex<Operations>>) {
    let call = async |path: &str, body: &Value| {
        let reply = post(&url, path, body, Duration::from_secs(5)).await;
        if !matches!(reply.status, 200..300) {
            lock(&operations).refusal = format!("{path} {body}: {} {}", reply.status, reply.text);
            sleep(Duration::from_millis(50)).await;
        }
        reply
    };
    'next: for number in 1_u64.. {
        let mut request = operation(number, has_durable);
        request["attempt_id"] = json!(format!("attempt-{number}"));
        let claim = loop {
            let reply = call("/v1/operations/pre", &request).await;
            if matches!(reply.status, 200..300) && reply.body["id"].is_string() {
                break reply.body;
            }
        };
        let path = format!("/v1/operations/{}/post", claim["id"].as_str().unwrap_or_default());
        loop {
            match call(&path, &json!({ "stamp": claim["stamp"], "outcome": "success" })).await.status {
                200 => break,
                // The claim was lost, in a way that was declared.
                404 | 409 => continue 'next,
                _ => {}
            }
        }
        lock(&operations).done.push((now_us(), number));
        sleep(Duration::from_millis(50)).await;
    }
}

/// Redis may lose the fast ones.
fn operation(number: u64, has_durable: bool) -> Value {
    let durability = if has_durable && !number.is_multiple_of(2) { "durable" } else { "fast" };
    json!({
        "operation": "charge", "contents": { "order": number }, "durability": durability, "on_expiry": "retry", "ttl_ms": 3_000,
    })
}

/// For a person.
pub fn summary(seen: &Report) -> String {
    format!(
        "{} grants, {} hand-overs, {} attempts, {} events, {} unknown outcomes: no rule broken",
        seen.grants, seen.handovers, seen.attempts, seen.events, seen.unknown_outcomes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_from_the_last_success_before_to_the_first_after() {
        let moments = |all: &[(u64, &str)]| all.iter().map(|(at, key)| (*at, (*key).to_owned())).collect::<Vec<_>>();
        let us = Duration::from_micros;
        assert_eq!(longest_gap(moments(&[(1, "a"), (9, "b"), (50, "b"), (20, "a")]), 10), us(41));
        assert_eq!(longest_gap(moments(&[(1, "a"), (9, "a"), (12, "a")]), 10), us(3), "a gap before the fault");
        assert_eq!(longest_gap(moments(&[(20, "a")]), 10), us(0));
    }
}
