//! An attempt at an operation, and the task that sends its heartbeats.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use reqwest::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::background::Place;
use crate::claim::{ENTER, FOR_EVER, Pending, is_forgotten, is_loss, path_of_post, record, report};
use crate::client::Client;
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Problem};
use crate::transport::{ANSWER_MAX, Failure, Pause};

/// Longest time for a report that goes on behind the caller's back.
const REPORT_MAX: Duration = Duration::from_secs(10);
/// Nodes keep no longer result, and refuse the body of a request that is much longer.
const RESULT_BYTES_MAX: usize = 64 * 1_024;
/// Nodes keep 2 KiB.
const DETAIL_CHARS_MAX: usize = 1_900;

/// What happens if the caller dies half-way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// The next caller does the work again.
    Retry,
    /// No caller does the work until a person has found out whether it was done.
    #[default]
    Block,
}

/// Why work failed. An error becomes one by `?`: the work may then be half done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed<E> {
    pub error: E,
    nothing_done: bool,
}

impl<E> Failed<E> {
    /// The work failed before it did anything: the next caller may do it, also with [`OnExpiry::Block`].
    pub fn nothing_done(error: E) -> Self {
        Self { error, nothing_done: true }
    }

    #[must_use]
    pub fn is_nothing_done(&self) -> bool {
        self.nothing_done
    }
}

impl<E> From<E> for Failed<E> {
    fn from(error: E) -> Self {
        Self { error, nothing_done: false }
    }
}

/// What is known of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AttemptState {
    /// No other attempt takes over before this moment; none at all if there is no moment.
    Running { until: Option<Moment> },
    /// Another attempt may do the work: stop. There is no problem if only the clock says so.
    Lost(Option<Problem>),
    /// The outcome was reported.
    Reported,
}

/// An attempt at an operation: the work is the caller's. Report how it ended. If the attempt is dropped, its outcome is reported
/// as failure with [`OnExpiry::Retry`], as unknown with [`OnExpiry::Block`].
#[must_use = "the attempt ends when it is dropped"]
pub struct Attempt {
    client: Client,
    id: String,
    stamp: String,
    answer: Value,
    /// What is entered of a success that no node has recorded; none if the work does not proceed in an outage.
    run: Option<Box<Map<String, Value>>>,
    /// Of a run without a claim: the claim that may have been made after all, and the place of the entry.
    unclaimed: Option<Box<(Pending, Place)>>,
    is_claimed: bool,
    on_expiry: OnExpiry,
    state: watch::Sender<AttemptState>,
    /// When the last call was sent that was answered, in ms.
    beaten: Arc<AtomicU64>,
    heart: JoinHandle<()>,
    runtime: Handle,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Attempt")
            .field("id", &self.id)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Attempt {
    pub(crate) fn keep(
        client: Client,
        sent: Moment,
        on_expiry: OnExpiry,
        run: Option<Map<String, Value>>,
        answer: &Value,
    ) -> Self {
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let (id, stamp) = (text("id"), text("stamp"));
        let left = left_of(answer);
        // With `block`, an expired attempt still keeps every other one out.
        let until = (on_expiry == OnExpiry::Retry).then(|| sent.plus(left));
        let state = watch::Sender::new(AttemptState::Running { until });
        let beaten = Arc::new(AtomicU64::new(as_ms(sent)));
        let heart = Heart {
            client: client.clone(),
            path: format!("/v1/operations/{id}/heartbeat"),
            body: json!({ "stamp": stamp }),
            sent,
            lease: left,
            until,
            state: state.clone(),
            beaten: beaten.clone(),
        };
        let heart = tokio::spawn(heart.run());
        // An outcome that is not reported blocks the operation, or lets it be done twice: it is worth some patience.
        let patience = client.patience.max(left);
        let client = client.patience(patience);
        let (answer, unclaimed, is_claimed, runtime) = (answer.clone(), None, true, Handle::current());
        let run = run.map(Box::new);
        Self { client, id, stamp, answer, run, unclaimed, is_claimed, on_expiry, state, beaten, heart, runtime }
    }

    /// A run that the gate has not answered.
    pub(crate) fn without_claim(client: Client, on_expiry: OnExpiry, claim: Pending, place: Place) -> Self {
        let (run, unclaimed, is_claimed) = (Some(Box::new(claim.entry())), Some(Box::new((claim, place))), false);
        let state = watch::Sender::new(AttemptState::Running { until: None });
        let (id, stamp, answer, beaten) = (String::new(), String::new(), Value::Null, Arc::default());
        let (heart, runtime) = (tokio::spawn(async {}), Handle::current());
        Self { client, id, stamp, answer, run, unclaimed, is_claimed, on_expiry, state, beaten, heart, runtime }
    }

    /// Whether the gate keeps other attempts out. If not, the gate did not answer, and the operation said
    /// [`OnOutage::Proceed`](crate::OnOutage::Proceed).
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.is_claimed
    }

    /// The operation's id; empty without a claim.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Counts the attempts at this operation.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.answer["attempt"].as_u64().unwrap_or(1)
    }

    /// All fields of the grant: `reentry`, `possibly_repeated` and so on; null without a claim.
    #[must_use]
    pub fn fields(&self) -> &Value {
        &self.answer
    }

    /// Notifies of each heartbeat and of the loss.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<AttemptState> {
        self.state.subscribe()
    }

    /// Until when no other attempt takes over; `None` if none does.
    #[must_use]
    pub fn until(&self) -> Option<Moment> {
        match &*self.state.borrow() {
            AttemptState::Running { until } => *until,
            _ => None,
        }
    }

    /// Returns when another attempt may do the work.
    pub async fn lost(&self) -> Error {
        let mut state = self.state.subscribe();
        let lost = state.wait_for(|state| matches!(state, AttemptState::Lost(_))).await;
        match lost.as_deref() {
            Ok(AttemptState::Lost(Some(problem))) => Error::AttemptLost(problem.clone()),
            _ => Error::Unreachable("no heartbeat was answered in time".to_owned()),
        }
    }

    /// The work is done: every later caller gets this result. If the future is dropped, the report goes on in the background.
    ///
    /// Without a claim it returns null at once, and the run is entered in the background: see [`Client::settled`]. With
    /// [`OnOutage::Proceed`](crate::OnOutage::Proceed) it also returns null if no node has recorded the success, or the store has lost the
    /// attempt: the success is then reported, or the run entered, in the background.
    ///
    /// # Errors
    /// [`Error::AttemptLost`] if another attempt has taken over: the work may have been done twice.
    pub async fn succeed(mut self, result: &Value) -> Result<Value, Error> {
        if result.to_string().len() > RESULT_BYTES_MAX {
            return self.succeed_without_result().await;
        }
        self.report("success", json!({ "result": result })).await
    }

    /// The work is done, and its result cannot be sent: every later caller gets `result_omitted`.
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed).
    pub async fn succeed_without_result(mut self) -> Result<Value, Error> {
        self.report("success", json!({ "result_omitted": true })).await
    }

    pub(crate) async fn succeed_with(self, result: &impl Serialize) -> Result<Value, Error> {
        match serde_json::to_value(result) {
            Ok(result) => self.succeed(&result).await,
            Err(_) => self.succeed_without_result().await,
        }
    }

    /// Nothing was done: the next caller may proceed at once.
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed).
    pub async fn fail(mut self) -> Result<Value, Error> {
        self.report("failure", json!({})).await
    }

    /// The work may be half done: no caller proceeds until a person has found out. `detail` is the evidence for that person: an exit code, the
    /// last lines, an error. At most 2 KiB of it are kept.
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed).
    pub async fn leave_unknown(mut self, detail: &str) -> Result<Value, Error> {
        let detail = self.evidence(detail);
        self.report("unknown", json!({ "detail": detail })).await
    }

    /// The work has ended with an error.
    pub(crate) async fn end<E: fmt::Display>(self, failed: &Failed<E>) -> Result<Value, Error> {
        if failed.is_nothing_done() || self.on_expiry == OnExpiry::Retry {
            return self.fail().await;
        }
        self.leave_unknown(&format!("{}: {}", std::any::type_name::<E>(), failed.error)).await
    }

    fn evidence(&self, detail: &str) -> String {
        let silent = Moment::from_millis(self.beaten.load(Ordering::Relaxed)).elapsed().as_secs();
        let detail: String = detail.chars().take(DETAIL_CHARS_MAX).collect();
        format!("{detail}\nThe last heartbeat that was answered was sent {silent} s before this report.")
    }

    async fn report(&mut self, outcome: &str, body: Value) -> Result<Value, Error> {
        self.heart.abort();
        self.state.send_replace(AttemptState::Reported);
        let Value::Object(mut body) = body else { return Ok(Value::Null) };
        let run = self.run.take().filter(|_| outcome == "success").map(|mut run| {
            run.extend(body.clone());
            Value::from(*run)
        });
        if let Some((mut claim, place)) = self.unclaimed.take().map(|unclaimed| *unclaimed) {
            // Only a success is worth an entry. After a failure, a claim in doubt is given back when it is dropped.
            claim.is_in_doubt &= outcome == "failure";
            if let Some(run) = run {
                let entering = record(self.client.clone(), ENTER.to_owned(), run, None);
                self.client.background.spawn_in(place, &self.runtime, entering);
            } else {
                tracing::warn!(outcome, "a run without a claim has not succeeded: the gate does not learn of it");
            }
            return Ok(Value::Null);
        }
        body.insert("stamp".to_owned(), self.stamp.clone().into());
        body.insert("outcome".to_owned(), outcome.into());
        let reporting = report_attempt(self.client.clone(), self.id.clone(), body.into(), run);
        self.client.background.run(&self.runtime, reporting).await
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.heart.abort();
        if let Some(unclaimed) = &mut self.unclaimed {
            unclaimed.0.is_in_doubt &= self.on_expiry == OnExpiry::Retry;
        }
        if matches!(self.state.send_replace(AttemptState::Reported), AttemptState::Reported) || !self.is_claimed() {
            return;
        }
        let body = match self.on_expiry {
            OnExpiry::Retry => json!({ "stamp": self.stamp, "outcome": "failure" }),
            OnExpiry::Block => {
                let detail = self.evidence("The attempt was dropped without a report.");
                json!({ "stamp": self.stamp, "outcome": "unknown", "detail": detail })
            }
        };
        let reporting = report_attempt(self.client.clone(), self.id.clone(), body, None);
        self.client.background.spawn(&self.runtime, async move { timeout(REPORT_MAX, reporting).await });
    }
}

/// Reports the outcome of an attempt. If no node has decided, the success of a `run` is reported later; if the store has no record of the
/// attempt, the run is entered later. Then the answer is null.
async fn report_attempt(client: Client, id: String, body: Value, run: Option<Value>) -> Result<Value, Error> {
    let failure = match report(&client, &id, &body).await {
        Ok(answer) => return Ok(answer),
        Err(failure) => failure,
    };
    let later = match (&failure, run) {
        (Failure::Decided(problem), Some(run)) if is_forgotten(problem) => Some((ENTER.to_owned(), run, None)),
        (Failure::Decided(_), _) | (_, None) => None,
        (_, run) => Some((path_of_post(&id), body, run)),
    };
    if let Some((path, success, run)) = later
        && let Some(place) = client.background.place()
    {
        let recording = record(client.clone(), path, success, run);
        client.background.spawn_in(place, &Handle::current(), recording);
        return Ok(Value::Null);
    }
    match failure.into_error() {
        Error::Refused(problem) if problem.code() == "operation-superseded" => Err(Error::AttemptLost(problem)),
        error => Err(error),
    }
}

struct Heart {
    client: Client,
    path: String,
    body: Value,
    sent: Moment,
    lease: Duration,
    until: Option<Moment>,
    state: watch::Sender<AttemptState>,
    beaten: Arc<AtomicU64>,
}

/// What is left of the lease.
fn left_of(answer: &Value) -> Duration {
    Duration::from_millis(answer["ttl_ms"].as_u64().unwrap_or(0))
}

fn as_ms(moment: Moment) -> u64 {
    u64::try_from(moment.as_millis()).unwrap_or(u64::MAX)
}

impl Heart {
    async fn run(mut self) {
        loop {
            let period = (self.lease / 3).mul_f64(rand::rng().random_range(0.8..1.0));
            sleep_until(self.sent.plus(period)).await;
            let next = match self.beat().await {
                Ok(()) => AttemptState::Running { until: self.until },
                Err(problem) => AttemptState::Lost(problem),
            };
            let is_lost = matches!(next, AttemptState::Lost(_));
            self.state.send_if_modified(|state| {
                let is_running = matches!(state, AttemptState::Running { .. });
                if is_running {
                    *state = next;
                }
                is_running
            });
            if is_lost {
                return;
            }
        }
    }

    /// Repeats the heartbeat until it is answered, or another attempt may take over.
    async fn beat(&mut self) -> Result<(), Option<Problem>> {
        let answer_max = (self.lease / 6).clamp(Duration::from_millis(100), ANSWER_MAX);
        let transport = self.client.transport.clone();
        let (mut pause, mut index) = (Pause::of_renewal(transport.nodes(), self.lease), transport.preferred());
        let for_ever = Moment::now().plus(FOR_EVER);
        let until = self.until.unwrap_or(for_ever);
        while !until.has_passed() {
            let sent = Moment::now();
            let call = transport.call(&mut index, &Method::POST, &self.path, Some(&self.body), answer_max);
            let failure = tokio::select! {
                answer = call => match answer {
                    Ok(answer) => {
                        self.sent = sent;
                        self.beaten.store(as_ms(sent), Ordering::Relaxed);
                        self.until = self.until.map(|_| sent.plus(left_of(&answer)));
                        return Ok(());
                    }
                    Err(Failure::Decided(problem)) if is_loss(&problem) => return Err(Some(problem)),
                    Err(failure) => failure,
                },
                () = sleep_until(until) => break,
            };
            if matches!(failure, Failure::Decided(_)) {
                transport.avoid(&mut index);
            }
            if !pause.after(&failure, until).await {
                sleep_until(until).await;
            }
        }
        Err(None)
    }
}
