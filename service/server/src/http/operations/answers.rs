//! Answers about operations: what each outcome is to a client.

use std::time::Duration;

use axum::http::StatusCode;
use latchgate_core::Timestamp;
use latchgate_core::gate::{
    AttemptId, Canonical, Duplicate, Durability, Fingerprint, OnExpiry, OperationId, OperationRecord, Outcome, Phase,
    Posted, Report, Shelf, Succeeded, UnknownCause,
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::format::{ms, rfc3339};
use crate::http::problem::{Code, Problem};
use crate::runtime::Failure;
use crate::runtime::operations::{BatchTold, PreTold, Shown};

/// Longest advice to wait: an attempt may end long before its lease.
const RETRY_AFTER_MAX_MS: u64 = 1_000;

/// You may do it.
#[derive(Serialize, ToSchema)]
pub struct PreAnswer {
    /// The same for the same operation and contents.
    #[schema(example = "7d88c00ddeafbae02d6198a43e38f30a")]
    id: String,
    /// Proves that the attempt is yours: post the outcome with it, and keep it to yourself.
    stamp: String,
    /// Which attempt this is, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// What is left of the lease, in ms, at the time of this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    /// When the lease ends unless renewed, by the store's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// False: the store does not answer, you asked for `open`, and nobody keeps others from doing it too.
    guarded: bool,
    /// Claimed in the second store, because the first does not answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    /// The lease of an earlier attempt passed: it may have done part of the work.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reentry: bool,
}

/// A go, and whether it is new.
pub struct Granted {
    pub status: StatusCode,
    pub answer: PreAnswer,
}

#[derive(Serialize, ToSchema)]
pub struct BatchAnswer {
    /// In the order asked.
    pub items: Vec<BatchItem>,
}

#[derive(Serialize, ToSchema)]
pub struct BatchItem {
    /// What a pre of this operation alone would have been answered with: 201, or 200 if it was repeated or is not
    /// guarded.
    #[schema(example = 201)]
    status: u16,
    #[serde(flatten)]
    answer: PreAnswer,
}

/// One answer of a batch that was refused.
#[derive(Serialize)]
#[serde(untagged)]
enum RefusedItem {
    Granted(BatchItem),
    Refused(Problem),
}

#[derive(Serialize, ToSchema)]
pub struct PreviewAnswer {
    /// MD5 over app, operation and contents, each preceded by its length.
    #[schema(example = "7d88c00ddeafbae02d6198a43e38f30a")]
    id: String,
    /// SHA-256 of the same bytes.
    #[schema(example = "326d5f1705c659b11908bbfb9d0cdb99b72954f62f975e90ca8cd3464aee0169")]
    sha256: String,
    /// The contents in canonical JSON (RFC 8785), as text.
    #[schema(example = r#"{"amount":"19.90","order":42}"#)]
    canonical: String,
}

#[derive(Serialize, ToSchema)]
pub struct PostAnswer {
    id: String,
    /// `success`, `failure` or `unknown`, as reported.
    outcome: &'static str,
    attempt: u32,
    /// This attempt had reported the same before: this is a repetition.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replayed: bool,
    /// The lease had passed, but nobody had re-entered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    late: bool,
    /// The result was longer than 64 KiB and was dropped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_omitted: bool,
    #[serde(flatten)]
    kept: Kept,
    /// How many attempts that had been superseded reported a success too.
    #[serde(skip_serializing_if = "is_zero")]
    suspected_double_runs: u32,
}

/// How long a success is kept.
#[derive(Default, Serialize, ToSchema)]
pub struct Kept {
    /// Until when the success is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// What is left of that, in ms, at the time of this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<u64>,
    /// The success is remembered for ever.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    permanent: bool,
}

#[derive(Serialize, ToSchema)]
pub struct HeartbeatAnswer {
    id: String,
    attempt: u32,
    /// What is left of the lease, in ms, at the time of this answer.
    lease_ms: u64,
    lease_until: String,
    /// The lease had passed, but nobody had re-entered: it is yours again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    late: bool,
}

#[derive(Serialize, ToSchema)]
pub struct ForgetAnswer {
    id: String,
    forgotten: bool,
    /// The state it was in.
    was: &'static str,
}

/// An operation as others may see it: without its stamp and attempt id.
#[derive(Serialize, ToSchema)]
pub struct OperationAnswer {
    #[schema(example = "7d88c00ddeafbae02d6198a43e38f30a")]
    id: String,
    #[schema(example = "charge")]
    operation: String,
    /// `started`, `succeeded`, `unknown`, or `vacant`: forgotten, and shown only because a double run is suspected.
    #[schema(example = "started")]
    state: &'static str,
    attempt: u32,
    /// When the first attempt began.
    created_at: String,
    /// Of one that is started: when this attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// What is left of the lease, in ms; 0 once it has passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    /// When its end, or that it is not known, was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    /// As posted. Not in a listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    result: Option<Box<RawValue>>,
    /// The result was longer than 64 KiB and was dropped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_omitted: bool,
    #[serde(flatten)]
    kept: Kept,
    /// `retry` or `block`: what becomes of it when the lease passes.
    on_expiry: &'static str,
    /// `fast` or `durable`.
    durability: &'static str,
    /// `primary` or `fallback`: in which of the gate's stores it was claimed.
    claimed_in: &'static str,
    /// It was claimed in the second store because the first did not answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    /// How many attempts that had been superseded reported a success all the same: so often the work may have been done
    /// twice.
    suspected_double_runs: u32,
}

#[derive(Serialize, ToSchema)]
pub struct OperationsAnswer {
    pub operations: Vec<OperationAnswer>,
    /// Send it as `cursor` for the next page; absent on the last. A page may be short, or empty, before the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// # Errors
/// When it is not a go.
pub fn pre(id: OperationId, told: PreTold) -> Result<Granted, Problem> {
    match told {
        PreTold::Go { stamp, attempt, lease_ms, lease_until, reentry, repeated, degraded } => {
            let answer = PreAnswer {
                id: id.to_string(),
                stamp: stamp.to_string(),
                attempt: Some(attempt),
                lease_ms: Some(lease_ms),
                lease_until: Some(rfc3339(lease_until)),
                guarded: true,
                degraded,
                reentry,
            };
            Ok(Granted { status: if repeated { StatusCode::OK } else { StatusCode::CREATED }, answer })
        }
        PreTold::Unguarded { stamp } => {
            let answer = PreAnswer {
                id: id.to_string(),
                stamp: stamp.to_string(),
                attempt: None,
                lease_ms: None,
                lease_until: None,
                guarded: false,
                degraded: false,
                reentry: false,
            };
            Ok(Granted { status: StatusCode::OK, answer })
        }
        PreTold::Refused { outcome, waited, now } => Err(refusal(id, &outcome, Some(waited), now)),
    }
}

/// A batch of which all may go: 201 if one of them is new.
///
/// # Errors
/// When one of them may not.
pub fn batch(
    asked: &[(OperationId, Option<AttemptId>)],
    told: BatchTold,
    all_or_nothing: bool,
) -> Result<(StatusCode, BatchAnswer), Problem> {
    let worst =
        told.items.iter().filter_map(|item| item.as_ref().err()).max_by_key(|failure| severity(failure)).cloned();
    let items = asked.iter().zip(told.items).map(|((id, attempt_id), item)| match item {
        Ok(told) => pre(*id, told),
        Err(failure) => Err(unanswered(&failure, attempt_id.as_ref()).with("id", id.to_string())),
    });
    let items: Vec<_> = items.collect();
    if told.all_may_go && items.iter().all(Result::is_ok) {
        let granted: Vec<_> = items.into_iter().flatten().collect();
        let is_new = granted.iter().any(|granted| granted.status == StatusCode::CREATED);
        let answer = BatchAnswer { items: granted.into_iter().map(BatchItem::from).collect() };
        return Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, answer));
    }
    let is_refused = items.iter().any(|item| item.as_ref().is_err_and(|problem| !problem.is_transient()));
    let items: Vec<_> = items.into_iter().map(|item| refused_item(item, all_or_nothing)).collect();
    let problem = match worst {
        // Nothing speaks against the operations themselves: the same batch may pass later.
        Some(failure) if !is_refused => unanswered(&failure, None),
        _ => {
            let refused = items.iter().filter(|item| matches!(item, RefusedItem::Refused(_))).count();
            let claimed = if all_or_nothing { "nothing is claimed" } else { "the others are yours" };
            let detail = format!("{refused} of {} operations may not proceed; {claimed}.", items.len());
            Problem::new(Code::BatchRefused, detail)
        }
    };
    Err(problem.with("items", items))
}

/// Of a batch that was refused, with `all_or_nothing` no item is claimed.
fn refused_item(item: Result<Granted, Problem>, all_or_nothing: bool) -> RefusedItem {
    match item {
        Ok(granted) if all_or_nothing => {
            let detail = "It may have gone, but another of the batch may not: nothing is claimed.";
            RefusedItem::Refused(Problem::new(Code::OperationNotClaimed, detail).with("id", granted.answer.id))
        }
        Ok(granted) => RefusedItem::Granted(granted.into()),
        Err(problem) => RefusedItem::Refused(problem),
    }
}

fn severity(failure: &Failure) -> u8 {
    match failure {
        Failure::Overloaded(_) | Failure::ShuttingDown => 0,
        Failure::StoreUnavailable(_) => 1,
        Failure::OutcomeUnknown(_) => 2,
    }
}

impl From<Granted> for BatchItem {
    fn from(granted: Granted) -> Self {
        Self { status: granted.status.as_u16(), answer: granted.answer }
    }
}

pub fn preview(fingerprint: Fingerprint, canonical: &Canonical) -> PreviewAnswer {
    PreviewAnswer {
        id: fingerprint.id.to_string(),
        sha256: fingerprint.sha256.to_string(),
        canonical: String::from_utf8_lossy(canonical.as_bytes()).into_owned(),
    }
}

/// # Errors
/// When the outcome is not recorded.
pub fn post(id: OperationId, outcome: &Outcome, now: Timestamp) -> Result<PostAnswer, Problem> {
    match outcome {
        Outcome::Posted(posted) => Ok(PostAnswer {
            id: id.to_string(),
            outcome: report_name(posted.report),
            attempt: posted.attempt,
            replayed: posted.replayed,
            late: posted.late,
            result_omitted: posted.result_omitted,
            kept: kept_of(posted, now),
            suspected_double_runs: posted.double_runs,
        }),
        refused => Err(refusal(id, refused, None, now)),
    }
}

fn kept_of(posted: &Posted, now: Timestamp) -> Kept {
    match posted.report {
        Report::Success => kept(posted.keep_until, now),
        Report::Failure | Report::Unknown => Kept::default(),
    }
}

/// # Errors
/// When the lease is not renewed.
pub fn heartbeat(id: OperationId, outcome: &Outcome, now: Timestamp) -> Result<HeartbeatAnswer, Problem> {
    match outcome {
        Outcome::Beating { attempt, lease_until, remaining_ms, late } => Ok(HeartbeatAnswer {
            id: id.to_string(),
            attempt: *attempt,
            lease_ms: *remaining_ms,
            lease_until: rfc3339(*lease_until),
            late: *late,
        }),
        refused => Err(refusal(id, refused, None, now)),
    }
}

/// # Errors
/// When it is not forgotten.
pub fn forget(id: OperationId, outcome: &Outcome, now: Timestamp) -> Result<ForgetAnswer, Problem> {
    match outcome {
        Outcome::Forgotten { was } => Ok(ForgetAnswer { id: id.to_string(), forgotten: true, was: was.as_str() }),
        refused => Err(refusal(id, refused, None, now)),
    }
}

/// A record whole.
pub fn operation(shown: &Shown) -> OperationAnswer {
    let answer = listed(shown);
    match &shown.record.phase {
        Phase::Succeeded(Succeeded { result, .. }) => OperationAnswer { result: raw(result.as_deref()), ..answer },
        _ => answer,
    }
}

/// A record without its result: a page of those would be large.
pub fn listed(shown: &Shown) -> OperationAnswer {
    let Shown { id, record, now } = shown;
    let mut answer = unended(*id, record);
    match &record.phase {
        Phase::Started(started) => {
            answer.started_at = Some(rfc3339(started.at));
            answer.lease_until = Some(rfc3339(started.lease_until));
            answer.lease_ms = Some(started.lease_until.ms_since(*now));
        }
        Phase::Succeeded(succeeded) => {
            answer.ended_at = Some(rfc3339(succeeded.at));
            answer.result_omitted = succeeded.result_omitted;
            answer.kept = kept(succeeded.keep_until, *now);
        }
        Phase::Unknown { at, .. } => answer.ended_at = Some(rfc3339(*at)),
        Phase::Vacant { .. } => {}
    }
    answer
}

/// What is the same in every phase.
fn unended(id: OperationId, record: &OperationRecord) -> OperationAnswer {
    OperationAnswer {
        id: id.to_string(),
        operation: record.operation.as_str().to_owned(),
        state: record.state().as_str(),
        attempt: record.attempt,
        created_at: rfc3339(record.created_at),
        started_at: None,
        lease_until: None,
        lease_ms: None,
        ended_at: None,
        result: None,
        result_omitted: false,
        kept: Kept::default(),
        on_expiry: match record.on_expiry {
            OnExpiry::Retry => "retry",
            OnExpiry::Block => "block",
        },
        durability: match record.durability {
            Durability::Fast => "fast",
            Durability::Durable => "durable",
        },
        claimed_in: match record.claimed_in {
            Shelf::Primary => "primary",
            Shelf::Fallback => "fallback",
        },
        degraded: record.claimed_in == Shelf::Fallback,
        suspected_double_runs: record.double_runs,
    }
}

/// What there is to say to an id that names nothing.
pub fn not_found() -> Problem {
    Problem::new(Code::OperationNotFound, "No operation has this id, or its time is over.")
}

/// What a failure of the runtime is to a client. A claim can be asked for again by its attempt id.
pub fn unanswered(failure: &Failure, attempt_id: Option<&AttemptId>) -> Problem {
    let Failure::OutcomeUnknown(_) = failure else { return Problem::of_failure(failure) };
    let problem = |detail| Problem::new(Code::OutcomeUnknown, detail).retry_after_ms(RETRY_AFTER_MAX_MS);
    match attempt_id {
        Some(attempt_id) => {
            problem("The store did not say whether it committed: repeat the request with this attempt_id.")
                .with("attempt_id", attempt_id.as_str())
        }
        None => problem("The store did not say whether it committed: repeat the request."),
    }
}

/// What an outcome is to a client that may not go on.
fn refusal(id: OperationId, outcome: &Outcome, waited: Option<Duration>, now: Timestamp) -> Problem {
    let problem = |code, detail: String| Problem::new(code, detail).with("id", id.to_string());
    match outcome {
        Outcome::InProgress { attempt, started_at, lease_until, remaining_ms } => {
            let detail = format!("Attempt {attempt} is doing it, until {} at the latest.", rfc3339(*lease_until));
            let problem = problem(Code::OperationInProgress, detail)
                .with("attempt", attempt)
                .with("started_at", rfc3339(*started_at))
                .with("lease_until", rfc3339(*lease_until))
                .with("remaining_ms", remaining_ms)
                .retry_after_ms(retry_after_ms(*remaining_ms));
            match waited {
                Some(waited) => problem.with("waited_ms", ms(waited)),
                None => problem,
            }
        }
        Outcome::Duplicate(duplicate) => {
            let detail = format!("It succeeded at {}, in attempt {}.", rfc3339(duplicate.at), duplicate.attempt);
            with_result(problem(Code::OperationDuplicate, detail), duplicate, now)
        }
        Outcome::Unknown { attempt, cause } => {
            let (why, at, detail) = match cause {
                UnknownCause::LeasePassed { at } => ("lease_passed", at, "let its lease pass without a post"),
                UnknownCause::Reported { at } => ("reported", at, "reported that it does not know how it ended"),
            };
            problem(Code::OperationUnknown, format!("Attempt {attempt} {detail}."))
                .with("attempt", attempt)
                .with("why", why)
                .with("at", rfc3339(*at))
        }
        Outcome::IdCollision => {
            problem(Code::IdCollision, "The operation of this id has other contents: their SHA-256 differ.".to_owned())
        }
        Outcome::ContentsMismatch => {
            let detail = "The operation is known with another checked, or with none.";
            problem(Code::ContentsMismatch, detail.to_owned()).with("field", "checked")
        }
        Outcome::OutcomeConflict { recorded } => {
            let recorded = report_name(*recorded);
            problem(Code::OutcomeConflict, format!("This attempt has reported {recorded} before; that stands."))
                .with("recorded", recorded)
        }
        Outcome::Superseded { attempt, double_runs, counted } => {
            let detail = if *counted {
                "Another attempt has taken over: the work may have been done twice."
            } else {
                "Another attempt has taken over, or the operation was forgotten."
            };
            problem(Code::OperationSuperseded, detail.to_owned())
                .with("attempt", attempt)
                .with("suspected_double_runs", double_runs)
        }
        Outcome::StampMismatch => {
            problem(Code::StampMismatch, "No attempt of this operation has this stamp.".to_owned())
        }
        Outcome::NotFound => not_found().with("id", id.to_string()),
        Outcome::Ended { recorded } => {
            let recorded = report_name(*recorded);
            problem(Code::OperationEnded, format!("This attempt has reported {recorded}.")).with("recorded", recorded)
        }
        Outcome::StillStarted { attempt, lease_until, remaining_ms } => {
            let detail = format!("Attempt {attempt} may still be at it: only force=true forgets it.");
            problem(Code::OperationInProgress, detail)
                .with("attempt", attempt)
                .with("lease_until", rfc3339(*lease_until))
                .with("remaining_ms", remaining_ms)
                .retry_after_ms(retry_after_ms(*remaining_ms))
        }
        Outcome::Go(_)
        | Outcome::Posted(_)
        | Outcome::Beating { .. }
        | Outcome::Forgotten { .. }
        | Outcome::Carried { .. } => {
            tracing::error!(operation.id = %id, ?outcome, "an outcome came as the answer to another question");
            Problem::new(Code::InternalError, "The gate answered another question than was asked.")
        }
    }
}

fn with_result(problem: Problem, duplicate: &Duplicate, now: Timestamp) -> Problem {
    let problem = problem
        .with("attempt", duplicate.attempt)
        .with("at", rfc3339(duplicate.at))
        .with("result", raw(duplicate.result.as_deref()));
    let problem = if duplicate.result_omitted { problem.with("result_omitted", true) } else { problem };
    match duplicate.keep_until {
        Some(until) => problem.with("expires_at", rfc3339(until)).with("retention_ms", until.ms_since(now)),
        None => problem.with("permanent", true),
    }
}

fn kept(keep_until: Option<Timestamp>, now: Timestamp) -> Kept {
    Kept {
        expires_at: keep_until.map(rfc3339),
        retention_ms: keep_until.map(|until| until.ms_since(now)),
        permanent: keep_until.is_none(),
    }
}

fn retry_after_ms(remaining_ms: u64) -> u64 {
    remaining_ms.clamp(1, RETRY_AFTER_MAX_MS)
}

/// A result is shown as the JSON that was posted.
fn raw(json: Option<&str>) -> Option<Box<RawValue>> {
    json.and_then(|json| RawValue::from_string(json.to_owned()).ok())
}

const fn report_name(report: Report) -> &'static str {
    match report {
        Report::Success => "success",
        Report::Failure => "failure",
        Report::Unknown => "unknown",
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
