//! What an outcome other than "you may proceed" is to a client.

use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{AttemptId, Duplicate, OperationId, Outcome, UnknownCause};

use super::answers::{raw, report_name};
use crate::http::format::{ms, rfc3339};
use crate::http::problem::{Code, Problem};
use crate::runtime::Failure;

/// Longest advice to wait: an attempt may end long before its lease.
const RETRY_AFTER_MAX_MS: u64 = 1_000;

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
pub fn refusal(id: OperationId, outcome: &Outcome, waited: Option<Duration>, now: Timestamp) -> Problem {
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

fn retry_after_ms(remaining_ms: u64) -> u64 {
    remaining_ms.clamp(1, RETRY_AFTER_MAX_MS)
}
