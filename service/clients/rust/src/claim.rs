//! Claims that may have been made although no answer says so, and the reports of outcomes.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::runtime::Handle;

use crate::client::Client;
use crate::clock::Moment;
use crate::error::Problem;
use crate::transport::{Failure, Pause};

pub(crate) const PRE: &str = "/v1/operations/pre";
pub(crate) const ENTER: &str = "/v1/operations/enter";
const UNKNOWN: &str = "operation-unknown";
/// How long what must be recorded is repeated.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// A claim that may have been made. When it is dropped in doubt, it is given back.
#[derive(Debug)]
pub(crate) struct Pending {
    client: Client,
    pub(crate) body: Value,
    lease: Duration,
    /// An answer was lost: the claim may have been made.
    pub(crate) is_in_doubt: bool,
    runtime: Handle,
}

impl Pending {
    pub(crate) fn new(client: &Client, body: Map<String, Value>, lease: Duration) -> Self {
        Self { client: client.clone(), body: body.into(), lease, is_in_doubt: false, runtime: Handle::current() }
    }

    /// The entry of a run that begins now. If a claim of the attempt is there, the entry is its end, because both name the same attempt.
    pub(crate) fn entry(&self) -> Map<String, Value> {
        let mut entry = self.body.as_object().cloned().unwrap_or_default();
        for name in ["ttl_ms", "wait_ms", "on_expiry", "keep_contents"] {
            entry.remove(name);
        }
        let ran_at = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        entry.insert("ran_at".to_owned(), ran_at.into());
        entry
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_in_doubt {
            let giving_back = give_back(self.client.clone(), self.body.take(), self.lease);
            match self.client.background.place() {
                Some(place) => self.client.background.spawn_in(place, &self.runtime, giving_back),
                None => {
                    self.client.background.give_up();
                    tracing::error!("too many calls go on in the background: an operation may stay blocked");
                }
            }
        }
    }
}

/// Repeats a pre until a node says whether the claim was made, at most for the length of its lease. Its work has not begun: the
/// attempt is reported as a failure.
async fn give_back(client: Client, mut body: Value, lease: Duration) {
    body["wait_ms"] = 0.into();
    let until = Moment::now().plus(lease);
    let (mut pause, mut index) = (Pause::of_renewal(client.transport.nodes(), lease), client.transport.preferred());
    let answer = loop {
        match client.transport.call(&mut index, &Method::POST, PRE, Some(&body), client.answer_max).await {
            Ok(answer) => break answer,
            Err(Failure::Decided(problem)) if is_about_attempt(&problem) && problem.code() != UNKNOWN => return,
            Err(failure) => {
                // Of an operation whose outcome is unknown, this claim may be what has ended.
                let is_unknown = failure.problem().is_some_and(|problem| problem.code() == UNKNOWN);
                // A refusal for another reason says nothing: another node may know.
                if matches!(failure, Failure::Decided(_)) {
                    client.transport.avoid(&mut index);
                }
                if is_unknown || !pause.after(&failure, until).await {
                    client.background.give_up();
                    return tracing::error!("no node says whether an operation was claimed: it may stay blocked");
                }
            }
        }
    };
    if let (Some(id), Some(stamp)) = (answer["id"].as_str(), answer["stamp"].as_str()) {
        let patience = client.patience.max(lease);
        let failure = json!({ "stamp": stamp, "outcome": "failure" });
        let background = client.background.clone();
        let reported = report(&client.patience(patience), id, &failure).await;
        let is_over = match &reported {
            Ok(_) => true,
            Err(Failure::Decided(problem)) => is_loss(problem),
            Err(_) => false,
        };
        if !is_over {
            background.give_up();
            tracing::error!(?reported, "an operation was not given back: it may stay claimed");
        }
    }
}

/// Whether the answer to a repeated pre shows that no earlier call of this attempt has claimed the operation.
pub(crate) fn is_about_attempt(problem: &Problem) -> bool {
    [409, 422].contains(&problem.status())
}

/// Whether the store has no record of the attempt.
pub(crate) fn is_forgotten(problem: &Problem) -> bool {
    ["operation-not-found", "stamp-mismatch"].contains(&problem.code())
}

/// Whether the attempt no longer has the operation.
pub(crate) fn is_loss(problem: &Problem) -> bool {
    is_forgotten(problem) || ["operation-superseded", "operation-ended"].contains(&problem.code())
}

/// Repeats the post while no node answers: a repeated post is recorded once.
pub(crate) async fn report(client: &Client, id: &str, body: &Value) -> Result<Value, Failure> {
    let until = Moment::now().plus(client.patience);
    client.transport.repeat_until(&Method::POST, &path_of_post(id), Some(body), client.answer_max, until).await
}

pub(crate) fn path_of_post(id: &str) -> String {
    format!("/v1/operations/{id}/post")
}

/// Repeats the report of a success until a node has decided, or the process ends. If the node has lost the claim, `run` is entered.
pub(crate) async fn record(client: Client, mut path: String, mut success: Value, mut run: Option<Value>) {
    let for_ever = Moment::now().plus(FOR_EVER);
    let mut pause = Pause::new(1);
    let mut is_said = false;
    loop {
        let recording =
            client.transport.repeat_until(&Method::POST, &path, Some(&success), client.answer_max, for_ever);
        let failure = match recording.await {
            Ok(recorded) if recorded["double_run"] == true => {
                return tracing::warn!(operation = %recorded["id"], "a run without a claim may have been a second one");
            }
            Ok(recorded) => return tracing::info!(operation = %recorded["id"], "a success is recorded after an outage"),
            Err(failure) => failure,
        };
        if failure.problem().is_some_and(is_forgotten)
            && let Some(run) = run.take()
        {
            (path, success) = (ENTER.to_owned(), run);
            continue;
        }
        // The API key may be let in again.
        let may_pass_later = failure.problem().is_none_or(|problem| [401, 403].contains(&problem.status()));
        if !may_pass_later || !std::mem::replace(&mut is_said, true) {
            tracing::error!(?failure, path, may_pass_later, "a success is not recorded");
        }
        if !may_pass_later || !pause.after(&failure, for_ever).await {
            return client.background.give_up();
        }
    }
}
