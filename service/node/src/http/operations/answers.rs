//! Answers of the gate that let the client proceed.

use latchgate_core::App;
use latchgate_core::gate::{OperationId, Outcome, Report, State};

use super::records::{Expiry, describe, until};
use super::refusals::refusal;
use crate::format::{DateTime, answers, rfc3339};
use crate::gate::Reply;
use crate::http::context::Volatility;
use crate::http::problem::Problem;

answers! {
    /// The client may do the operation.
    pub struct PreAnswer {
        /// The same for the same operation and contents.
        pub id: String,
        /// Proves that the attempt is yours: post the outcome with it, and keep it secret.
        stamp: String,
        /// Which attempt this is, from 1.
        attempt: u32,
        /// What is left of the lease, in ms.
        ttl_ms: u64,
        /// When the lease ends unless renewed, by the store's clock.
        expires_at: DateTime,
        /// The lease of an earlier attempt has passed: that attempt may have done part of the work.
        reentry?: bool,
        durability?: Option<Volatility>,
        /// The store may have lost the record of an earlier attempt: the operation may have been done already.
        possibly_repeated?: bool,
        /// For how long records of operations may be missing, in ms: an operator has ended the hold-off early.
        forced_ms?: Option<u64>,
    }

    // The client may proceed.
    pub struct BatchItem {
        /// The status that a pre of this operation alone would have got: 201, or 200 if it was repeated.
        #[schema(example = 201)]
        pub status: u16,
        #[serde(flatten)]
        pub answer: PreAnswer,
    }
}

answers! {
    /// The id, and the canonical contents that it is computed from.
    pub struct PreviewAnswer {
        /// MD5 over app, operation and contents, each preceded by its length.
        pub id: String,
        /// SHA-256 of the same bytes.
        pub sha256: String,
        /// The contents in canonical JSON (RFC 8785), as text.
        #[schema(example = r#"{"amount":"19.90","order":42}"#)]
        pub canonical: String,
    }

    /// The outcome is recorded.
    pub struct PostAnswer {
        id: String,
        /// As reported.
        outcome: Report,
        attempt: u32,
        /// The same outcome had been recorded before.
        replayed?: bool,
        /// The lease had passed, but no other attempt had begun.
        late?: bool,
        /// The result was longer than 64 KiB, or could not be stored, and was dropped.
        result_omitted?: bool,
        #[serde(flatten)]
        expiry: Expiry,
        /// How many superseded attempts have posted a success, too.
        suspected_double_runs?: Option<u32>,
    }

    /// The run is entered.
    pub struct EnterAnswer {
        /// The operation may have been done more than once: another attempt has succeeded, or its outcome is unknown. It is in the list of
        /// suspected double runs. If another attempt has succeeded, its result stays.
        double_run: bool,
        #[serde(flatten)]
        entered: PostAnswer,
    }

    /// The lease now ends `ttl_ms` from now.
    pub struct HeartbeatAnswer {
        id: String,
        attempt: u32,
        /// What is left of the lease, in ms.
        ttl_ms: u64,
        expires_at: DateTime,
        /// The lease had passed, but no other attempt had begun: the operation is yours again.
        late?: bool,
    }

    /// The record is deleted.
    pub struct ForgetAnswer {
        id: String,
        /// Its state before.
        was: State,
    }
}

/// # Errors
/// When the client may not proceed.
pub fn pre(app: &App, id: OperationId, reply: Reply) -> Result<BatchItem, Problem> {
    let Outcome::Go(go) = reply.outcome else {
        let problem = refusal(id, &reply.outcome, Some(reply.waited), reply.now);
        let description = reply.record.and_then(|record| record.description);
        return Err(describe(problem, app, &reply.outcome, description.as_deref()));
    };
    let answer = PreAnswer {
        id: id.to_string(),
        stamp: go.stamp.to_string(),
        attempt: go.attempt,
        ttl_ms: go.remaining_ms,
        expires_at: rfc3339(go.lease_until),
        reentry: go.reentry,
        durability: reply.is_volatile.then_some(Volatility::Volatile),
        possibly_repeated: go.possibly_repeated,
        forced_ms: go.forced_ms,
    };
    Ok(BatchItem { status: if go.repeated { 200 } else { 201 }, answer })
}

/// # Errors
/// When the outcome was not recorded.
pub fn post(id: OperationId, Reply { outcome, now, .. }: &Reply) -> Result<PostAnswer, Problem> {
    match outcome {
        Outcome::Posted(posted) => Ok(PostAnswer {
            id: id.to_string(),
            outcome: posted.report,
            attempt: posted.attempt,
            replayed: posted.replayed,
            late: posted.late,
            result_omitted: posted.result_omitted,
            expiry: match posted.report {
                Report::Success => until(posted.keep_until, *now),
                Report::Failure | Report::Unknown => Expiry::default(),
            },
            suspected_double_runs: Some(posted.double_runs).filter(|runs| *runs > 0),
        }),
        refused => Err(refusal(id, refused, None, *now)),
    }
}

/// # Errors
/// When the run was not entered.
pub fn enter(id: OperationId, reply: &Reply) -> Result<EnterAnswer, Problem> {
    let entered = match reply.outcome {
        Outcome::Superseded { attempt, double_runs, counted } => PostAnswer {
            id: id.to_string(),
            outcome: Report::Success,
            attempt,
            replayed: !counted,
            late: false,
            result_omitted: false,
            expiry: Expiry::default(),
            suspected_double_runs: Some(double_runs),
        },
        _ => post(id, reply)?,
    };
    Ok(EnterAnswer { double_run: entered.suspected_double_runs.is_some(), entered })
}

/// # Errors
/// When the lease was not renewed.
pub fn heartbeat(id: OperationId, Reply { outcome, now, .. }: &Reply) -> Result<HeartbeatAnswer, Problem> {
    match outcome {
        Outcome::Beating { attempt, lease_until, remaining_ms, late } => Ok(HeartbeatAnswer {
            id: id.to_string(),
            attempt: *attempt,
            ttl_ms: *remaining_ms,
            expires_at: rfc3339(*lease_until),
            late: *late,
        }),
        refused => Err(refusal(id, refused, None, *now)),
    }
}

/// # Errors
/// When the record was not deleted.
pub fn forget(id: OperationId, Reply { outcome, now, .. }: &Reply) -> Result<ForgetAnswer, Problem> {
    match outcome {
        Outcome::Forgotten { was } => Ok(ForgetAnswer { id: id.to_string(), was: *was }),
        refused => Err(refusal(id, refused, None, *now)),
    }
}
