//! Answers about operations: what each outcome is to a client.

use axum::http::StatusCode;
use latchgate_core::Timestamp;
use latchgate_core::gate::{
    Canonical, Durability, Fingerprint, OnExpiry, OperationId, OperationRecord, Outcome, Phase, Posted, Report, Shelf,
    Succeeded,
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::refusals::refusal;
use crate::http::format::rfc3339;
use crate::http::problem::Problem;
use crate::runtime::operations::{PreTold, Shown};

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
    /// Claimed in one of the gate's two stores without a look into the other, because that does not answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    /// The lease of an earlier attempt passed: it may have done part of the work.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reentry: bool,
}

impl PreAnswer {
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// A go, and whether it is new.
pub struct Granted {
    pub status: StatusCode,
    pub answer: PreAnswer,
}

impl Granted {
    /// The same attempt asked before, and has it already.
    pub fn is_repeated(&self) -> bool {
        self.status == StatusCode::OK && self.answer.guarded
    }
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
    /// `fallback`: it was claimed in the second store because the first did not answer. Else `primary`.
    claimed_in: &'static str,
    /// `claimed_in` is `fallback`: what the first store knows of it is not in here yet.
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

fn kept(keep_until: Option<Timestamp>, now: Timestamp) -> Kept {
    Kept {
        expires_at: keep_until.map(rfc3339),
        retention_ms: keep_until.map(|until| until.ms_since(now)),
        permanent: keep_until.is_none(),
    }
}

/// A result is shown as the JSON that was posted.
pub fn raw(json: Option<&str>) -> Option<Box<RawValue>> {
    json.and_then(|json| RawValue::from_string(json.to_owned()).ok())
}

pub const fn report_name(report: Report) -> &'static str {
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
