//! One lock, many waiters: how fast the lock passes from one to the next, and that two never hold it at once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::cpu::{Usage, Watched};
use crate::drive::REST_AFTER_ERROR;
use crate::http::{Connection, Failure, LeaseIds, Request, Target, run_id};
use crate::report::{Durations, Errors, Quantiles, merge, per_second};

const ARRIVE_EVERY: Duration = Duration::from_millis(2);
const ARRIVE_MAX: Duration = Duration::from_secs(4);

#[derive(Clone, clap::Args)]
pub struct Args {
    /// A node, as http://HOST:PORT
    #[arg(long, required_unless_present = "urls")]
    pub url: Option<String>,
    /// Several nodes of one tier; the waiters are distributed over them in turn
    #[arg(long, value_delimiter = ',', conflicts_with = "url")]
    pub urls: Vec<String>,
    /// The lock; by default one with a new random name
    #[arg(long)]
    pub key: Option<String>,
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    pub waiters: u64,
    /// How long to measure
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// How long to run before measuring
    #[arg(long, default_value_t = 2)]
    pub warmup_seconds: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub waiters: u64,
    pub nodes: usize,
    pub seconds: u64,
    pub handoffs_per_second: f64,
    /// From the answer to a release to the answer to the next acquire; zero if they overtook each other.
    pub gap_us: Quantiles,
    /// From the sending of a release to the answer to the next acquire.
    pub handoff_us: Quantiles,
    /// Hand-offs from a waiter at one node to a waiter at another, and how long they took.
    pub crossings: u64,
    pub crossing_us: Quantiles,
    /// How often the least and the most favoured waiter got the lock during the measurement.
    pub grants_min: u64,
    pub grants_max: u64,
    /// Grants seen while another waiter had not yet sent its release. Must be 0.
    pub overlaps: u64,
    /// Grants whose token was not above that of the grant before. Must be 0.
    pub tokens_not_rising: u64,
    pub errors: Errors,
}

impl Report {
    /// An error if two waiters held the lock at once, or a token did not rise.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.overlaps + self.tokens_not_rising > 0 {
            bail!("{} overlapping grants, {} tokens that did not rise", self.overlaps, self.tokens_not_rising);
        }
        Ok(())
    }
}

pub async fn run(args: &Args) -> anyhow::Result<Report> {
    Ok(run_watched(args, &Watched::default()).await?.0)
}

/// Returns also what the hand-offs cost in CPU time.
pub async fn run_watched(args: &Args, watched: &Watched) -> anyhow::Result<(Report, Usage)> {
    let urls = args.url.iter().chain(&args.urls);
    let targets = urls.map(|url| Target::parse(url)).collect::<anyhow::Result<Vec<_>>>()?;
    let run = run_id();
    let key = args.key.clone().unwrap_or_else(|| format!("bench-{run:016x}"));
    let seen = Arc::new(Mutex::new(Seen::default()));

    let mut waiters = Vec::new();
    for (number, (node, target)) in (0..args.waiters as usize).zip(targets.iter().enumerate().cycle()) {
        waiters.push(Waiter::new((node, target), run, number, &key, &seen).await?);
    }
    let begin = Instant::now();
    let every = ARRIVE_EVERY.min(ARRIVE_MAX / waiters.len() as u32);
    let from = begin + Duration::from_secs(args.warmup_seconds) + every.saturating_mul(waiters.len() as u32);
    let until = from + Duration::from_secs(args.seconds);
    let watching = watched.over(from, until);
    let mut tasks = JoinSet::new();
    for (waiter, number) in waiters.into_iter().zip(1..) {
        tasks.spawn(waiter.run(from, until));
        // If all began at once, the small differences between the nodes' clocks would group the queue by node, and few hand-offs
        // would cross nodes. Later each waiter returns to the end of the queue, so that the order remains.
        tokio::time::sleep_until((begin + every * number).into()).await;
    }

    let (mut errors, mut grants) = (Errors::new(), Vec::new());
    for tally in tasks.join_all().await {
        grants.push(tally.grants);
        merge(&mut errors, tally.errors);
    }
    let spans = watching.await.unwrap_or_default();
    let seen = seen.lock().expect("no waiter panicked");
    let report = Report {
        waiters: args.waiters,
        nodes: targets.len(),
        seconds: args.seconds,
        handoffs_per_second: per_second(seen.handoffs.len(), until - from),
        gap_us: seen.gaps.quantiles(),
        handoff_us: seen.handoffs.quantiles(),
        crossings: seen.crossings.len(),
        crossing_us: seen.crossings.quantiles(),
        grants_min: grants.iter().min().copied().unwrap_or(0),
        grants_max: grants.iter().max().copied().unwrap_or(0),
        overlaps: seen.overlaps,
        tokens_not_rising: seen.tokens_not_rising,
        errors,
    };
    Ok((report, spans))
}

/// What the waiters together have observed.
#[derive(Default)]
struct Seen {
    held: bool,
    token: u64,
    /// Of the last holder.
    node: usize,
    release_sent: Option<Instant>,
    release_answered: Option<Instant>,
    overlaps: u64,
    tokens_not_rising: u64,
    /// Of the measurement.
    handoffs: Durations,
    gaps: Durations,
    crossings: Durations,
}

/// How long a grant took after the release before it.
#[derive(Debug, PartialEq)]
struct Handoff {
    since_sent: Duration,
    since_answered: Duration,
    /// The previous holder is at another node.
    is_crossing: bool,
}

impl Seen {
    /// `None` for the very first grant.
    fn granted(&mut self, node: usize, token: u64, now: Instant) -> Option<Handoff> {
        self.overlaps += u64::from(self.held);
        self.tokens_not_rising += u64::from(token <= self.token);
        self.held = true;
        self.token = token;
        let is_crossing = std::mem::replace(&mut self.node, node) != node;
        let since_sent = now - self.release_sent?;
        let since_answered = self.release_answered.map_or(Duration::ZERO, |answered| now - answered);
        Some(Handoff { since_sent, since_answered, is_crossing })
    }

    fn add(&mut self, Handoff { since_sent, since_answered, is_crossing }: &Handoff) {
        self.handoffs.add(*since_sent);
        self.gaps.add(*since_answered);
        if *is_crossing {
            self.crossings.add(*since_sent);
        }
    }

    /// Called before the release is sent: a grant after that is no overlap.
    fn releasing(&mut self, now: Instant) {
        self.held = false;
        self.release_sent = Some(now);
        self.release_answered = None;
    }

    fn released(&mut self, token: u64, now: Instant) {
        // Otherwise the answer to the next acquire has overtaken this one.
        if token == self.token && !self.held {
            self.release_answered = Some(now);
        }
    }
}

#[derive(Default)]
struct Tally {
    grants: u64,
    errors: Errors,
}

struct Waiter {
    node: usize,
    connection: Connection,
    acquire: Request,
    release: Request,
    seen: Arc<Mutex<Seen>>,
    tally: Tally,
}

impl Waiter {
    async fn new(
        (node, target): (usize, &Target),
        run: u64,
        number: usize,
        key: &str,
        seen: &Arc<Mutex<Seen>>,
    ) -> anyhow::Result<Self> {
        let id = LeaseIds::new(run, number).template();
        let acquire = format!(r#"{{"lease_id":"{id}","owner":"bench-{number}","ttl_ms":30000,"wait_ms":50000}}"#);
        Ok(Self {
            node,
            connection: Connection::open(target).await?,
            acquire: Request::post(target, &format!("/v1/locks/{key}/acquire"), &acquire),
            release: Request::post(target, &format!("/v1/locks/{key}/release"), &format!(r#"{{"lease_id":"{id}"}}"#)),
            seen: seen.clone(),
            tally: Tally::default(),
        })
    }

    async fn run(mut self, from: Instant, until: Instant) -> Tally {
        let mut sequence = 0;
        loop {
            // The end of the run may cut a wait short, but not a release: the lock would stay held for the rest of its lease.
            let acquire = self.acquire(sequence, from, until);
            let failure = match tokio::time::timeout_at(until.into(), acquire).await {
                Err(_) => return self.tally,
                Ok(Ok(token)) => {
                    sequence += 1;
                    self.release(sequence - 1, token).await.err()
                }
                Ok(Err(failure)) => {
                    sequence += u64::from(!failure.outcome_unknown);
                    Some(failure)
                }
            };
            if let Some(Failure { what, .. }) = failure {
                *self.tally.errors.entry(what).or_default() += 1;
                tokio::time::sleep(REST_AFTER_ERROR).await;
            }
        }
    }

    async fn acquire(&mut self, sequence: u64, from: Instant, until: Instant) -> Result<u64, Failure> {
        #[derive(Deserialize)]
        struct Grant {
            token: u64,
        }
        let body = self.connection.call("acquire", self.acquire.with(sequence, 0)).await?;
        let now = Instant::now();
        let Grant { token } = serde_json::from_slice(body)
            .map_err(|error| Failure { what: format!("acquire 2xx: {error}"), outcome_unknown: false })?;
        let mut seen = self.seen.lock().expect("no waiter panicked");
        let handoff = seen.granted(self.node, token, now);
        if let Some(handoff) = handoff.filter(|_| (from..until).contains(&now)) {
            seen.add(&handoff);
            self.tally.grants += 1;
        }
        Ok(token)
    }

    async fn release(&mut self, sequence: u64, token: u64) -> Result<(), Failure> {
        let request = self.release.with(sequence, 0);
        self.seen.lock().expect("no waiter panicked").releasing(Instant::now());
        self.connection.call("release", request).await?;
        self.seen.lock().expect("no waiter panicked").released(token, Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_does_not_rise_is_reported() {
        let mut seen = Seen::default();
        for token in [5, 6, 6] {
            seen.granted(0, token, Instant::now());
            seen.releasing(Instant::now());
        }
        assert_eq!((seen.overlaps, seen.tokens_not_rising), (0, 1));
    }

    #[test]
    fn a_release_answered_after_the_next_grant_leaves_no_gap() {
        let mut seen = Seen::default();
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        seen.granted(0, 1, start);
        seen.releasing(after(10));
        let crossed = seen.granted(1, 2, after(15));
        seen.released(1, after(16));
        let ms = Duration::from_millis;
        assert_eq!(crossed, Some(Handoff { since_sent: ms(5), since_answered: ms(0), is_crossing: true }));
        seen.releasing(after(20));
        seen.released(2, after(22));
        assert_eq!(
            seen.granted(1, 3, after(25)),
            Some(Handoff { since_sent: ms(5), since_answered: ms(3), is_crossing: false })
        );
    }
}
