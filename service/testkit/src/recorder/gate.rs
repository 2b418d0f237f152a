//! A client of the gate.

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::Workload;
use super::client::Client;
use crate::caller::{Answer, hold, one_in, pause};
use crate::recorded::{Asked, Call, Outcome, Verb};

/// Operations for each key of a lock. Each is soon repeated.
const OPERATIONS_PER_KEY: u64 = 4;
const RETENTION_MS: std::ops::Range<u64> = 1_000..3_000;
/// One in this many attempts goes on for longer than its lease, and then posts.
const LATE_ONE_IN: u64 = 30;
/// By how much.
const LATE: Duration = Duration::from_millis(400);

/// An attempt: what names it, and what its calls have in common.
struct Attempt {
    key: String,
    id: String,
    asked: Asked,
}

impl Client {
    pub(super) async fn operation(&mut self, workload: Workload) -> io::Result<()> {
        self.sequence += 1;
        let (attempt, request) = self.attempt(workload);
        let Some(answer) = self.pre(&attempt, &request).await? else { return Ok(()) };
        let (id, stamp) = (answer.body["id"].as_str().unwrap_or_default().to_owned(), answer.body["stamp"].clone());
        hold().await;
        if one_in(4) {
            self.report(Verb::Heartbeat, &attempt, &id, &json!({ "stamp": stamp }), None).await?;
        }
        if !attempt.asked.blocks && one_in(self.recorder.args.abandon_one_in) {
            return Ok(());
        }
        if !attempt.asked.blocks && one_in(LATE_ONE_IN) {
            sleep(answer.until().saturating_duration_since(Instant::now()) + LATE).await;
        }
        self.post(attempt, &id, stamp).await
    }

    fn attempt(&self, workload: Workload) -> (Attempt, Value) {
        let number = rand::random_range(0..self.recorder.args.keys * OPERATIONS_PER_KEY);
        let durability = if number.is_multiple_of(3) { "durable" } else { "fast" };
        let (name, blocks) = (workload.keys(), workload == Workload::Block);
        let key = format!("{}{name}-{durability}-{number}", self.recorder.prefix());
        let asked = Asked {
            ttl_ms: self.recorder.args.ttl_ms,
            wait_ms: self.recorder.args.ttl_ms / 3,
            blocks,
            ..Asked::default()
        };
        let id = format!("attempt-{:x}-{}-{}", self.recorder.run, self.number, self.sequence);
        // A durable and a fast operation are different ones.
        let request = json!({
            "operation": format!("recorded-{durability}"), "contents": key, "attempt_id": id, "ttl_ms": asked.ttl_ms,
            "wait_ms": rand::random_range(0..=asked.wait_ms), "durability": durability,
            "on_expiry": if blocks { "block" } else { "retry" },
        });
        (Attempt { key, id, asked }, request)
    }

    /// Repeats the request after an unknown outcome. `None`: the attempt may not proceed.
    async fn pre(&mut self, attempt: &Attempt, request: &Value) -> io::Result<Option<Answer>> {
        loop {
            let wait = Duration::from_millis(attempt.asked.wait_ms);
            let answer = self.caller.call("/v1/operations/pre", request, wait).await;
            self.record_attempt(&answer, Verb::Pre, attempt, None, answer.body["result"].as_u64())?;
            if answer.is_success() {
                return Ok(Some(answer));
            }
            pause().await;
            // An operation that blocks must not be left behind.
            if !answer.is_undecided() || self.recorder.is_over() && !attempt.asked.blocks {
                return Ok(None);
            }
        }
    }

    /// Repeats the report until it is answered.
    async fn post(&mut self, mut attempt: Attempt, id: &str, stamp: Value) -> io::Result<()> {
        let mut report = json!({ "stamp": stamp, "outcome": "failure" });
        let mut result = None;
        attempt.asked.outcome = Outcome::Failure;
        if one_in(2) {
            attempt.asked.outcome = Outcome::Success;
            attempt.asked.retention_ms = rand::random_range(RETENTION_MS);
            result = Some(self.number << 32 | self.sequence);
            report["outcome"] = json!("success");
            report["retention_ms"] = json!(attempt.asked.retention_ms);
            report["result"] = json!(result);
        }
        for _ in 0..100 {
            let answer = self.report(Verb::Post, &attempt, id, &report, result).await?;
            if !answer.is_undecided() {
                break;
            }
            pause().await;
        }
        Ok(())
    }

    async fn report(
        &mut self,
        verb: Verb,
        attempt: &Attempt,
        id: &str,
        body: &Value,
        result: Option<u64>,
    ) -> io::Result<Answer> {
        let what = if verb == Verb::Post { "post" } else { "heartbeat" };
        let answer = self.caller.call(&format!("/v1/operations/{id}/{what}"), body, Duration::ZERO).await;
        self.record_attempt(&answer, verb, attempt, body["stamp"].as_str(), result)?;
        Ok(answer)
    }

    fn record_attempt(
        &self,
        answer: &Answer,
        verb: Verb,
        attempt: &Attempt,
        stamp: Option<&str>,
        result: Option<u64>,
    ) -> io::Result<()> {
        let call = self.recorder.call(answer, self.number, self.app, verb);
        let stamp = stamp.or_else(|| answer.body["stamp"].as_str()).map(str::to_owned);
        self.recorder.write(&Call {
            key: attempt.key.clone(),
            lease_id: attempt.id.clone(),
            asked: attempt.asked.clone(),
            ttl_ms: answer.body["ttl_ms"].as_u64().filter(|_| answer.is_success()),
            attempt: answer.body["attempt"].as_u64(),
            stamp,
            result,
            ..call
        })
    }
}
