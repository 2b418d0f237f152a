//! A client of the gate.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::Client;
use super::{GIVEN_BACK_TTL_MS, Recorder, Workload};
use crate::caller::Answer;
use crate::recorded::{Asked, Call, Outcome, Verb};

/// Operations for each key of a lock. Each is soon repeated.
const OPERATIONS_PER_KEY: u64 = 4;
/// After so many lengths of a lease, clients use other operations: some are done for good by then, or blocked.
const ROUND: u128 = 6;
/// Shorter leases of operations are refused.
const TTL_MS_MIN: u64 = 1_000;
const RETENTION_MS: std::ops::Range<u64> = 1_000..3_000;
/// Longer than a run.
const RETENTION_LONG_MS: u64 = 3_600_000;
/// One in this many attempts goes on for longer than its lease, and then posts.
const LATE_ONE_IN: u64 = 20;
/// By how much.
const LATE: Duration = Duration::from_millis(400);
/// One in this many clients without an answer does its work all the same, and enters the run.
const ENTER_ONE_IN: u64 = 5;
/// One in this many refused clients has the operation forgotten, as an operator.
const FORGET_ONE_IN: u64 = 10;
const HANG_UP_ONE_IN: u64 = 20;

/// An attempt: what names it, and what its calls have in common.
struct Attempt {
    key: String,
    id: String,
    asked: Asked,
    request: Value,
}

impl Client {
    pub(super) async fn operation(&mut self, workload: Workload) -> io::Result<()> {
        self.sequence += 1;
        if self.recorder.args.must_give_back && self.caller.one_in(HANG_UP_ONE_IN) {
            return self.leave(workload).await;
        }
        let attempt = self.attempt(workload);
        self.recorder.note_operation(&attempt.key, &attempt.request);
        let Some(answer) = self.pre(&attempt).await? else { return Ok(()) };
        let (id, stamp) = (answer.body["id"].as_str().unwrap_or_default().to_owned(), answer.body["stamp"].clone());
        self.caller.hold().await;
        if self.caller.one_in(4) {
            sleep(Duration::from_millis(self.caller.random.random_range(0..attempt.asked.ttl_ms / 2))).await;
            self.report(Verb::Heartbeat, &attempt, &id, &json!({ "stamp": stamp }), None).await?;
        }
        if self.caller.one_in(self.recorder.args.abandon_one_in) {
            return Ok(());
        }
        if self.caller.one_in(LATE_ONE_IN) {
            sleep(answer.until().saturating_duration_since(Instant::now()) + LATE).await;
        }
        self.post(attempt, &id, stamp).await
    }

    fn attempt(&mut self, workload: Workload) -> Attempt {
        let Recorder { args, started, .. } = &*self.recorder;
        let number = self.caller.random.random_range(0..args.keys * OPERATIONS_PER_KEY);
        let (round, name) = (started.elapsed().as_millis() / u128::from(args.ttl_ms) / ROUND, workload.keys());
        let durability = if number.is_multiple_of(3) { "durable" } else { "fast" };
        let key = format!("{}{name}-{durability}-{round}-{number}", self.recorder.prefix());
        let blocks = workload == Workload::Block;
        let ttl_ms = args.ttl_ms.max(TTL_MS_MIN);
        let asked = Asked { ttl_ms, wait_ms: ttl_ms / 3, blocks, ..Asked::default() };
        let id = format!("attempt-{:x}-{}-{}", self.recorder.recording.run, self.number, self.sequence);
        // A durable and a fast operation are different ones.
        let request = json!({
            "operation": format!("recorded-{durability}"), "contents": key, "attempt_id": id, "ttl_ms": asked.ttl_ms,
            "wait_ms": self.caller.random.random_range(0..=asked.wait_ms), "durability": durability,
            "on_expiry": if blocks { "block" } else { "retry" },
        });
        Attempt { key, id, asked, request }
    }

    /// Repeats the request after an unknown outcome. `None`: the attempt may not proceed.
    async fn pre(&mut self, attempt: &Attempt) -> io::Result<Option<Answer>> {
        loop {
            let wait = Duration::from_millis(attempt.asked.wait_ms);
            let answer = self.caller.call("/v1/operations/pre", &attempt.request, wait).await;
            self.record_attempt(&answer, Verb::Pre, attempt, None, answer.body["result"].as_u64())?;
            if answer.is_success() {
                return Ok(Some(answer));
            }
            if let Some(id) = answer.body["id"].as_str()
                && self.caller.one_in(FORGET_ONE_IN)
            {
                let path = format!("/v1/operations/{id}?force=true");
                let answer = self.caller.call_by("DELETE", &path, &Value::Null).await;
                self.record_attempt(&answer, Verb::Forget, attempt, None, None)?;
            }
            if answer.is_undecided() && self.caller.one_in(ENTER_ONE_IN) {
                self.enter(attempt).await?;
                return Ok(None);
            }
            self.caller.pause().await;
            if !answer.is_undecided() || self.recorder.is_over() {
                return Ok(None);
            }
        }
    }

    /// Does the work without a claim, and enters the run until that is answered or the client dies.
    async fn enter(&mut self, attempt: &Attempt) -> io::Result<()> {
        let asked = Asked { outcome: Outcome::Success, retention_ms: RETENTION_LONG_MS, ..attempt.asked.clone() };
        let attempt =
            &Attempt { key: attempt.key.clone(), id: attempt.id.clone(), asked, request: attempt.request.clone() };
        let (request, result) = (&attempt.request, Some(self.number << 32 | self.sequence));
        let body = json!({
            "operation": request["operation"], "contents": request["contents"], "durability": request["durability"],
            "attempt_id": attempt.id, "ran_at": "2001-01-01T00:00:00Z", "result": result,
            "retention_ms": RETENTION_LONG_MS,
        });
        while !self.caller.one_in(20) {
            let answer = self.caller.call("/v1/operations/enter", &body, Duration::ZERO).await;
            self.record_attempt(&answer, Verb::Enter, attempt, None, result)?;
            if !answer.is_undecided() {
                break;
            }
            self.caller.pause().await;
        }
        Ok(())
    }

    /// Hangs up before the answer, mostly, and never comes back.
    async fn leave(&mut self, workload: Workload) -> io::Result<()> {
        let mut attempt = self.attempt(workload);
        attempt.key = format!("{}left-{}-{}", self.recorder.prefix(), self.number, self.sequence);
        attempt.asked.ttl_ms = GIVEN_BACK_TTL_MS;
        attempt.request["contents"] = json!(attempt.key);
        attempt.request["ttl_ms"] = json!(GIVEN_BACK_TTL_MS);
        let answer = self.caller.hang_up("/v1/operations/pre", &attempt.request).await;
        self.record_attempt(&answer, Verb::Pre, &attempt, None, None)?;
        if answer.status.is_err() {
            self.recorder.note_operation(&attempt.key, &attempt.request);
        }
        if !answer.is_success() {
            self.caller.pause().await;
            return Ok(());
        }
        let id = answer.body["id"].as_str().unwrap_or_default().to_owned();
        attempt.asked.outcome = Outcome::Failure;
        self.insist(&attempt, &id, &json!({ "stamp": answer.body["stamp"], "outcome": "failure" }), None).await
    }

    /// Repeats the report until it is answered.
    async fn post(&mut self, mut attempt: Attempt, id: &str, stamp: Value) -> io::Result<()> {
        let mut report = json!({ "stamp": stamp, "outcome": "failure" });
        let mut result = None;
        attempt.asked.outcome = Outcome::Failure;
        if self.caller.one_in(2) {
            attempt.asked.outcome = Outcome::Success;
            let short = self.caller.random.random_range(RETENTION_MS);
            attempt.asked.retention_ms = *self.caller.one_of(&[short, short, RETENTION_LONG_MS]);
            result = Some(self.number << 32 | self.sequence);
            report["outcome"] = json!("success");
            report["retention_ms"] = json!(attempt.asked.retention_ms);
            report["result"] = json!(result);
        } else if self.caller.one_in(5) {
            attempt.asked.outcome = Outcome::Unknown;
            report["outcome"] = json!("unknown");
        }
        self.insist(&attempt, id, &report, result).await?;
        // Some change their mind.
        if self.caller.one_in(10) {
            attempt.asked.outcome = Outcome::Failure;
            self.insist(&attempt, id, &json!({ "stamp": stamp, "outcome": "failure" }), None).await?;
        }
        if self.caller.one_in(10) {
            self.report(Verb::Heartbeat, &attempt, id, &json!({ "stamp": stamp }), None).await?;
        }
        Ok(())
    }

    async fn insist(&mut self, attempt: &Attempt, id: &str, body: &Value, result: Option<u64>) -> io::Result<()> {
        for _ in 0..100 {
            let answer = self.report(Verb::Post, attempt, id, body, result).await?;
            if !answer.is_undecided() {
                break;
            }
            self.caller.pause().await;
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
        let call = self.recorder.call(answer, self.number, verb);
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

impl Recorder {
    fn note_operation(&self, key: &str, request: &Value) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.insert(key.to_owned(), request.clone());
    }

    /// Tries each operation once more: what was done is known, and what a client has left may begin.
    pub(super) async fn try_operations(&self) -> io::Result<()> {
        let mut caller = self.caller(0);
        let operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (number, (key, mut request)) in operations.into_iter().enumerate() {
            let (id, wait_ms) = (format!("attempt-last-{number}"), 2 * self.args.ttl_ms.max(TTL_MS_MIN));
            request["attempt_id"] = json!(id);
            request["wait_ms"] = json!(wait_ms);
            request["ttl_ms"] = json!(TTL_MS_MIN);
            let answer = caller.call("/v1/operations/pre", &request, Duration::from_millis(wait_ms)).await;
            let body = &answer.body;
            let call = Call {
                key,
                lease_id: id,
                ttl_ms: body["ttl_ms"].as_u64().filter(|_| answer.is_success()),
                attempt: body["attempt"].as_u64(),
                stamp: body["stamp"].as_str().map(str::to_owned),
                result: body["result"].as_u64(),
                ..self.call(&answer, 0, Verb::Pre)
            };
            self.write(&call)?;
            let is_started = answer.code() == Some("operation-in-progress");
            let look = Call { verb: Verb::Look, waiters: u64::from(is_started), ..call };
            if self.args.must_give_back {
                self.write(&Call { status: Some(200), ..look })?;
            }
        }
        Ok(())
    }
}
