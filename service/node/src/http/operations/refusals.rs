//! Answers of the gate that do not let the client proceed.

use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{AttemptId, OperationId, Outcome, UnknownCause};

use super::records::{ResolutionAnswer, raw};
use crate::format::{ms, rfc3339};
use crate::http::problem::{Code, Problem};
use crate::locks::Failure;

/// Longest `retry_after_ms` for a running attempt: it may end long before its lease.
const RETRY_AFTER_MAX_MS: u64 = 1_000;

/// The answer to an id without a record.
pub fn not_found() -> Problem {
    Problem::new(Code::OperationNotFound, "No operation has this id, or its retention has passed.")
}

/// The answer to a pre that failed, which can be repeated with the same attempt id.
pub fn unanswered(failure: &Failure, attempt_id: Option<&AttemptId>) -> Problem {
    let repeated = attempt_id.filter(|_| matches!(failure, Failure::OutcomeUnknown(_)));
    Problem::of_failure(failure).with_some("attempt_id", repeated.map(AttemptId::as_str))
}

/// The answer for an outcome that does not let the client proceed.
pub fn refusal(id: OperationId, outcome: &Outcome, waited: Option<Duration>, now: Timestamp) -> Problem {
    let problem = |code, detail: &str| Problem::new(code, detail).with("id", id.to_string());
    let in_progress = |detail: &str, attempt: u32, lease_until, remaining_ms: u64| {
        problem(Code::OperationInProgress, detail)
            .with("attempt", attempt)
            .with("expires_at", rfc3339(lease_until))
            .with("ttl_ms", remaining_ms)
            .retry_after_ms(remaining_ms.clamp(1, RETRY_AFTER_MAX_MS))
    };
    match outcome {
        Outcome::InProgress { attempt, started_at, lease_until, remaining_ms } => {
            let detail = format!("Attempt {attempt} runs; its lease ends at {}.", rfc3339(*lease_until));
            in_progress(&detail, *attempt, *lease_until, *remaining_ms)
                .with("started_at", rfc3339(*started_at))
                .with_some("waited_ms", waited.map(ms))
        }
        Outcome::Duplicate(duplicate) => {
            let detail =
                format!("The operation succeeded at {}, in attempt {}.", rfc3339(duplicate.at), duplicate.attempt);
            let kept_until = duplicate.keep_until;
            problem(Code::OperationDuplicate, &detail)
                .with("attempt", duplicate.attempt)
                .with("at", rfc3339(duplicate.at))
                .with("result", raw(duplicate.result.as_deref()))
                .with_some("resolved", duplicate.resolved.as_deref().map(ResolutionAnswer::from))
                .with_some("result_omitted", duplicate.result_omitted.then_some(true))
                .with_some("expires_at", kept_until.map(rfc3339))
                .with_some("ttl_ms", kept_until.map(|until| until.ms_since(now)))
                .with_some("permanent", kept_until.is_none().then_some(true))
        }
        Outcome::Unknown { attempt, cause } => {
            let of_attempt = |why, at, what| {
                let detail = format!(
                    "Attempt {attempt} {what}. No attempt begins until a person has found out whether the work was done, and says so: \
                     `latchgate operations resolve {id} --succeeded --reason …`, or `--failed` (an API key needs the scope admin)."
                );
                problem(Code::OperationUnknown, &detail)
                    .with("attempt", attempt)
                    .with("why", why)
                    .with("at", rfc3339(at))
            };
            match *cause {
                UnknownCause::LeasePassed { at } => of_attempt("lease_passed", at, "let its lease pass without a post"),
                UnknownCause::Reported { at } => of_attempt("reported", at, "posted the outcome unknown"),
                UnknownCause::MayBeLost { until } => {
                    let left_ms = until.ms_since(now);
                    let detail = format!(
                        "The store may have lost the record of this operation, if there was one: it is unknown whether it was done. For \
                         {left_ms} ms more, a hold-off lets only those operations begin that may be repeated."
                    );
                    problem(Code::OperationUnknown, &detail)
                        .with("why", "record_may_be_lost")
                        .with("hold_off_ms", left_ms)
                }
            }
        }
        Outcome::IdCollision => {
            problem(Code::IdCollision, "The record with this id has other contents: their SHA-256 differ.")
        }
        Outcome::ContentsMismatch => {
            let detail = "The operation is known with another value of checked, or without one.";
            problem(Code::ContentsMismatch, detail).with("field", "checked")
        }
        Outcome::OutcomeConflict { recorded } => {
            problem(Code::OutcomeConflict, "Another outcome is recorded already, and remains.")
                .with("recorded", recorded)
        }
        Outcome::Superseded { attempt, double_runs, counted } => {
            let detail = if *counted {
                "Another attempt has taken over: the operation may have been done twice."
            } else {
                "Another attempt has taken over, or the record was deleted."
            };
            problem(Code::OperationSuperseded, detail)
                .with("attempt", attempt)
                .with("suspected_double_runs", double_runs)
        }
        Outcome::StampMismatch => problem(Code::StampMismatch, "No attempt of this operation has this stamp."),
        Outcome::NotFound => not_found().with("id", id.to_string()),
        Outcome::Ended { recorded } => {
            problem(Code::OperationEnded, "This attempt has posted its outcome.").with("recorded", recorded)
        }
        Outcome::StillStarted { attempt, lease_until, remaining_ms } => {
            let detail = format!("Attempt {attempt} may still run: only force=true deletes the record.");
            in_progress(&detail, *attempt, *lease_until, *remaining_ms)
        }
        Outcome::Go(_)
        | Outcome::Posted(_)
        | Outcome::Beating { .. }
        | Outcome::GivenBack
        | Outcome::Forgotten { .. } => {
            tracing::error!(operation.id = %id, ?outcome, "a command has an outcome that it cannot have");
            Problem::defect()
        }
    }
}
