//! Clients that use locks and the gate carefully, and record every call. The check uses only what the clients could know. They run against
//! real processes, and against the nodes of the simulation in simulated time.

mod args;
mod client;
mod gate;
mod lease;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use latchgate_bench::http::{Target, run_id};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use self::args::{Args, Workload};
use self::client::Client;
pub use self::lease::group_limit;
use self::stream::Reader;
use crate::caller::{self, Answer, Caller};
pub use crate::caller::{Endpoint, NO_ANSWER};
use crate::recorded::{Call, Verb};
use crate::wait::eventually;

/// Until when all readers of streams must be connected, or have received the last event.
const STREAM_WITHIN: Duration = Duration::from_secs(15);
/// The length of the leases of clients that hang up, if they must be given back.
const GIVEN_BACK_TTL_MS: u64 = 600_000;
/// How long after the last expiry holders and waiters may still be shown.
const QUIET_MARGIN: Duration = Duration::from_secs(10);

/// Records until the time is up, or until SIGTERM or SIGINT.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    until(caller::end(args.seconds)?, args).await
}

/// Records until `end`, and then until every client has its last answer: a history without it would be incomplete.
pub async fn until(end: impl Future<Output = ()> + Send + 'static, args: &Args) -> anyhow::Result<()> {
    let endpoints = args.urls.iter().map(|url| Target::parse(url).map(Endpoint::new)).collect::<anyhow::Result<_>>()?;
    let lines = File::create(&args.out).with_context(|| format!("creating {}", args.out.display()))?;
    let lines = Mutex::new(lines);
    // Written at once: scripts follow the file.
    let write = move |call: &Call| {
        let mut line = serde_json::to_vec(call)?;
        line.push(b'\n');
        lines.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    };
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("reading the clock")?;
    let started_us = u64::try_from(Duration::from(now).as_micros()).unwrap_or(0);
    let recording = Recording { run: run_id(), started_us, send: Box::new(|_| ()), write: Box::new(write) };
    record(end, args, endpoints, recording).await
}

type Sink = dyn Fn(&Call) -> io::Result<()> + Send + Sync;

/// What becomes of the calls of a run.
pub struct Recording {
    /// The number that decides what clients do, and names their keys.
    pub run: u64,
    /// The start, by the clock of the history. That of a real run is the machine's monotonic one, which other recorders read, too.
    pub started_us: u64,
    /// Called with what a call asks for, before it is sent.
    pub send: Box<dyn Fn(&Call) + Send + Sync>,
    pub write: Box<Sink>,
}

/// As [`until`], with an endpoint for each URL.
pub async fn record(
    end: impl Future<Output = ()> + Send + 'static,
    args: &Args,
    endpoints: Vec<Endpoint>,
    recording: Recording,
) -> anyhow::Result<()> {
    let recorder = Arc::new(Recorder {
        endpoints,
        args: args.clone(),
        started: Instant::now(),
        recording,
        keys: Mutex::default(),
        operations: Mutex::default(),
        is_over: AtomicBool::new(false),
        streams: AtomicU64::new(0),
    });
    let mut readers = JoinSet::new();
    (0..args.readers).for_each(|number| drop(readers.spawn(Reader::new(number, &recorder).run())));
    let are_open = || recorder.streams.load(Ordering::Relaxed) >= readers.len() as u64;
    // A stream that opens later has only later events, and says so.
    let _ = eventually(STREAM_WITHIN, || std::future::ready(are_open())).await;
    let mut clients = JoinSet::new();
    for number in 0..args.clients {
        clients.spawn(Client::new(number, &recorder).run());
    }
    let shared = Arc::clone(&recorder);
    let ending = tokio::spawn(async move {
        end.await;
        shared.is_over.store(true, Ordering::Relaxed);
    });
    let ended = clients.join_all().await;
    ending.abort();
    recorder.is_over.store(true, Ordering::Relaxed);
    ended.into_iter().collect::<io::Result<()>>().context("writing")?;
    if args.until_quiet || args.readers > 0 {
        recorder.look().await.context("writing")?;
    }
    if args.until_quiet {
        recorder.try_operations().await.context("writing")?;
    }
    if args.readers > 0 {
        recorder.mark_the_end().await;
        let read = tokio::time::timeout(STREAM_WITHIN, readers.join_all()).await.unwrap_or_default();
        read.into_iter().collect::<io::Result<()>>().context("writing")?;
    }
    Ok(())
}

/// Shared by all clients.
struct Recorder {
    endpoints: Vec<Endpoint>,
    args: Args,
    started: Instant,
    recording: Recording,
    /// The keys that were used.
    keys: Mutex<BTreeSet<String>>,
    /// The operations, with the last request for each.
    operations: Mutex<BTreeMap<String, Value>>,
    is_over: AtomicBool,
    /// How many streams of events are open.
    streams: AtomicU64,
}

impl Recorder {
    /// Calls the nodes for the client with this number.
    fn caller(&self, number: u64) -> Caller {
        let seed = self.recording.run.wrapping_mul(1_000).wrapping_add(number);
        Caller::new(&self.endpoints, seed, self.args.pace)
    }

    fn prefix(&self) -> String {
        format!("recorded-{:016x}-", self.recording.run)
    }

    fn end_key(&self) -> String {
        format!("{}end", self.prefix())
    }

    fn us(&self, at: Instant) -> u64 {
        self.recording.started_us + u64::try_from((at - self.started).as_micros()).unwrap_or(u64::MAX)
    }

    /// What every call has, whatever it is about.
    fn call(&self, answer: &Answer, client: u64, verb: Verb) -> Call {
        Call {
            client,
            verb,
            url: self.args.urls[answer.node].clone(),
            sent_us: self.us(answer.sent),
            received_us: self.us(answer.received),
            status: answer.status.as_ref().ok().copied(),
            error: answer.status.as_ref().err().cloned(),
            code: answer.code().map(str::to_owned),
            is_warned: !answer.body["forced_ms"].is_null()
                || ["possibly_repeated", "double_run"].iter().any(|field| answer.body[field] == true),
            ..Call::default()
        }
    }

    fn write(&self, call: &Call) -> io::Result<()> {
        (self.recording.write)(call)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Looks at each key until it has no holders and no waiters, but no longer than leases last.
    async fn look(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(self.args.ttl_ms) + QUIET_MARGIN;
        let mut caller = self.caller(0);
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for key in keys {
            loop {
                let answer = caller.call_by("GET", &format!("/v1/locks/{key}"), &Value::Null).await;
                let (holders, waiters) = (holders(&answer.body), answer.body["waiters"].as_u64().unwrap_or(0));
                let is_quiet = answer.is_success() && holders.is_empty() && waiters == 0;
                if is_quiet || Instant::now() > deadline {
                    let call = self.call(&answer, 0, Verb::Look);
                    self.write(&Call { key, holders, waiters, ..call })?;
                    break;
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// An event after all others.
    async fn mark_the_end(&self) {
        let path = format!("/v1/locks/{}/acquire", self.end_key());
        let mut caller = self.caller(0);
        let request = json!({ "lease_id": "end", "ttl_ms": 1_000, "owner": "end" });
        for _ in 0..20 {
            if caller.call(&path, &request, Duration::ZERO).await.is_success() {
                break;
            }
            caller.pause().await;
        }
    }
}

/// The owners that an answer names as holders.
fn holders(body: &Value) -> Vec<String> {
    let holders = body["holders"].as_array().into_iter().flatten();
    holders.filter_map(|holder| holder["owner"].as_str()).map(str::to_owned).collect()
}
