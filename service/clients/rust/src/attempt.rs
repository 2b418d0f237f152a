//! An attempt at an operation, and the task that sends its heartbeats.

use std::fmt;
use std::time::Duration;

use rand::RngExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Client;
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Problem};
use crate::lock::ms;
use crate::operation::OnExpiry;
use crate::transport::{ANSWER_MAX, Failure, Pause};

/// Longest time for a report that goes on behind the caller's back.
const REPORT_MAX: Duration = Duration::from_secs(10);

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
    on_expiry: OnExpiry,
    retention: Option<Duration>,
    state: watch::Sender<AttemptState>,
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
        lease: Duration,
        on_expiry: OnExpiry,
        retention: Option<Duration>,
        answer: &Value,
    ) -> Result<Self, Error> {
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        let (Some(id), Some(stamp)) = (text("id"), text("stamp")) else {
            return Err(Error::Invalid("the grant has no stamp".to_owned()));
        };
        let is_guarded = answer["guarded"] != false;
        let left = answer["ttl_ms"].as_u64().map_or(lease, Duration::from_millis);
        // With `block`, an expired attempt still keeps every other one out.
        let until = (is_guarded && on_expiry == OnExpiry::Retry).then(|| sent.plus(left));
        let state = watch::Sender::new(AttemptState::Running { until });
        let heart = Heart {
            client: client.clone(),
            path: format!("/v1/operations/{id}/heartbeat"),
            body: json!({ "stamp": stamp }),
            sent,
            lease: left,
            until,
            state: state.clone(),
        };
        let heart = tokio::spawn(async move {
            if is_guarded {
                heart.run().await;
            }
        });
        // An outcome that is not reported blocks the operation, or lets it be done twice: it is worth some patience.
        let patience = client.patience.max(left);
        let client = client.patience(patience);
        let (answer, runtime) = (answer.clone(), Handle::current());
        Ok(Self { client, id, stamp, answer, on_expiry, retention, state, heart, runtime })
    }

    /// The operation's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Counts the attempts at this operation.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.answer["attempt"].as_u64().unwrap_or(1)
    }

    /// All fields of the grant: `reentry`, `possibly_repeated`, `guarded` and so on.
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
    /// # Errors
    /// [`Error::AttemptLost`] if another attempt has taken over: the work may have been done twice.
    pub async fn succeed(mut self, result: &Value) -> Result<Value, Error> {
        let mut body = json!({ "stamp": self.stamp, "outcome": "success", "result": result });
        if let Some(retention) = self.retention {
            body["retention_ms"] = ms(retention).into();
        }
        self.report(body).await
    }

    /// Nothing was done: the next caller may proceed at once.
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed).
    pub async fn fail(mut self) -> Result<Value, Error> {
        let body = json!({ "stamp": self.stamp, "outcome": "failure" });
        self.report(body).await
    }

    /// The work may be half done: no caller proceeds until a person has found out.
    ///
    /// # Errors
    /// As [`succeed`](Self::succeed).
    pub async fn leave_unknown(mut self) -> Result<Value, Error> {
        let body = json!({ "stamp": self.stamp, "outcome": "unknown" });
        self.report(body).await
    }

    async fn report(&mut self, body: Value) -> Result<Value, Error> {
        self.heart.abort();
        self.state.send_replace(AttemptState::Reported);
        let reporting = report(self.client.clone(), self.id.clone(), body);
        self.client.background.run(&self.runtime, reporting).await
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.heart.abort();
        if matches!(self.state.send_replace(AttemptState::Reported), AttemptState::Reported) {
            return;
        }
        let outcome = if self.on_expiry == OnExpiry::Retry { "failure" } else { "unknown" };
        let body = json!({ "stamp": self.stamp, "outcome": outcome });
        let reporting = report(self.client.clone(), self.id.clone(), body);
        self.client.background.spawn(&self.runtime, async move { timeout(REPORT_MAX, reporting).await });
    }
}

/// Repeats the post while no node answers: a repeated post is recorded once.
pub(crate) async fn report(client: Client, id: String, body: Value) -> Result<Value, Error> {
    let path = format!("/v1/operations/{id}/post");
    let until = Moment::now().plus(client.patience);
    match client.transport.repeat(&Method::POST, &path, Some(&body), client.answer_max, until).await {
        Err(Error::Refused(problem)) if problem.code() == "operation-superseded" => Err(Error::AttemptLost(problem)),
        answer => answer,
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
        let mut pause = Pause::of_renewal(self.client.transport.nodes(), self.lease);
        let for_ever = Moment::now().plus(Duration::from_secs(u64::from(u32::MAX)));
        let until = self.until.unwrap_or(for_ever);
        while !until.has_passed() {
            let sent = Moment::now();
            let call = self.client.transport.call(&Method::POST, &self.path, Some(&self.body), answer_max);
            let failure = tokio::select! {
                answer = call => match answer {
                    Ok(answer) => {
                        self.sent = sent;
                        let left = answer["ttl_ms"].as_u64().map_or(self.lease, Duration::from_millis);
                        self.until = self.until.map(|_| sent.plus(left));
                        return Ok(());
                    }
                    Err(Failure::Decided(problem)) if [404, 409].contains(&problem.status()) => return Err(Some(problem)),
                    Err(failure) => failure,
                },
                () = sleep_until(until) => break,
            };
            if !pause.after(&failure, until).await {
                sleep_until(until).await;
            }
        }
        Err(None)
    }
}
