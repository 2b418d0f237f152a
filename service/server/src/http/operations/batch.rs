//! Answers to batches of pres.

use axum::http::StatusCode;
use latchgate_core::gate::{AttemptId, OperationId};
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::{Granted, PreAnswer, pre};
use super::refusals::unanswered;
use crate::http::problem::{Code, Problem};
use crate::runtime::Failure;
use crate::runtime::operations::BatchTold;

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
            let claimed = if all_or_nothing { "nothing new is claimed" } else { "the others are yours" };
            let detail = format!("{refused} of {} operations may not proceed; {claimed}.", items.len());
            Problem::new(Code::BatchRefused, detail)
        }
    };
    Err(problem.with("items", items))
}

/// Of a batch that was refused, with `all_or_nothing` no item is claimed.
fn refused_item(item: Result<Granted, Problem>, all_or_nothing: bool) -> RefusedItem {
    match item {
        // A repeated one is an earlier call's, and stays.
        Ok(granted) if all_or_nothing && !granted.is_repeated() => {
            let detail = "It may have gone, but another of the batch may not: nothing is claimed.";
            RefusedItem::Refused(Problem::new(Code::OperationNotClaimed, detail).with("id", granted.answer.id()))
        }
        Ok(granted) => RefusedItem::Granted(granted.into()),
        Err(problem) => RefusedItem::Refused(problem),
    }
}

fn severity(failure: &Failure) -> u8 {
    match failure {
        Failure::Overloaded(_) | Failure::ShuttingDown => 0,
        // No failures of the moment: they count as refusals.
        Failure::NoDurableStore | Failure::KeysApart { .. } | Failure::OnlyKeysAreWatched => 0,
        Failure::StoreUnavailable(_) => 1,
        Failure::OutcomeUnknown(_) => 2,
    }
}

impl From<Granted> for BatchItem {
    fn from(granted: Granted) -> Self {
        Self { status: granted.status.as_u16(), answer: granted.answer }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchgate_core::Timestamp;
    use latchgate_core::gate::{Duplicate, Outcome};
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::operations::{PreTold, StampText};

    fn refused(items: Vec<Result<PreTold, Failure>>) -> Value {
        let asked: Vec<_> =
            items.iter().map(|_| (OperationId::from_bytes([7; 16]), AttemptId::parse("a").ok())).collect();
        let told = BatchTold { items, all_may_go: false };
        serde_json::to_value(batch(&asked, told, true).err().expect("a refusal")).unwrap()
    }

    fn unguarded() -> PreTold {
        PreTold::Unguarded { stamp: StampText::from_text("o").unwrap() }
    }

    fn down() -> Failure {
        Failure::StoreUnavailable("a host's name".to_owned())
    }

    #[test]
    fn a_batch_that_only_the_store_stopped_may_be_sent_again() {
        let problem = refused(vec![Ok(unguarded()), Err(down()), Err(Failure::ShuttingDown)]);
        assert_eq!((&problem["status"], &problem["code"]), (&json!(503), &json!("store-unavailable")));
        let codes = [0, 1, 2].map(|index| problem["items"][index]["code"].as_str());
        assert_eq!(codes, ["operation-not-claimed", "store-unavailable", "shutting-down"].map(Some));
        assert!(!problem.to_string().contains("host"), "{problem}");
    }

    #[test]
    fn a_claim_of_a_batch_that_may_have_been_made_is_said_to_be() {
        let problem = refused(vec![Err(Failure::OutcomeUnknown(String::new())), Err(down())]);
        assert_eq!(problem["code"], "outcome-unknown");
        assert_eq!(problem["items"][0]["attempt_id"], "a");
    }

    #[test]
    fn a_batch_with_a_duplicate_is_refused_whatever_the_store_does() {
        let duplicate = Duplicate {
            attempt: 1,
            at: Timestamp::default(),
            result: Some("1e400".into()),
            result_omitted: false,
            keep_until: None,
        };
        let told = PreTold::Refused {
            outcome: Outcome::Duplicate(duplicate),
            waited: Duration::ZERO,
            now: Timestamp::default(),
        };
        let asked = [(OperationId::from_bytes([7; 16]), None), (OperationId::from_bytes([8; 16]), None)];
        let told = BatchTold { items: vec![Ok(told), Err(down())], all_may_go: false };
        let problem = serde_json::to_string(&batch(&asked, told, true).err().expect("a refusal")).unwrap();
        assert!(problem.contains("\"code\":\"batch-refused\"") && problem.contains("\"result\":1e400"), "{problem}");
    }
}
