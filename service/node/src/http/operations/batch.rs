//! Answers to a batch of pres.

use latchgate_core::App;
use latchgate_core::gate::{AttemptId, OperationId};

use super::answers::{BatchItem, pre};
use super::refusals::unanswered;
use crate::format::answers;
use crate::gate::BatchReply;
use crate::http::problem::{Code, Problem, either};

answers! {
    /// All operations are yours.
    pub struct BatchAnswer {
        /// In the order of the request.
        pub items: Vec<BatchItem>,
    }
}

/// A batch whose operations may all proceed: 201 if a claim is new.
///
/// # Errors
/// When one of them may not proceed.
pub fn batch(
    app: &App,
    requested: &[(OperationId, Option<AttemptId>)],
    outcomes: BatchReply,
    all_or_nothing: bool,
) -> Result<(u16, BatchAnswer), Problem> {
    let items = requested.iter().zip(outcomes.items).map(|((id, attempt_id), item)| match item {
        Ok(outcome) => pre(app, *id, outcome),
        Err(failure) => Err(unanswered(&failure, attempt_id.as_ref()).with("id", id.to_string())),
    });
    let items: Vec<_> = items.collect();
    if outcomes.all_may_go && items.iter().all(Result::is_ok) {
        let items: Vec<_> = items.into_iter().flatten().collect();
        let status = items.iter().map(|granted| granted.status).max().unwrap_or_default();
        return Ok((status, BatchAnswer { items }));
    }
    let worst = items.iter().filter_map(|item| item.as_ref().err()).max_by_key(|problem| problem.severity());
    // Only the node or its store is the reason: the same batch may pass later.
    let transient =
        worst.filter(|problem| problem.is_transient()).map(|problem| problem.of_many(problem.detail().to_owned()));
    let items: Vec<_> = items.into_iter().map(|item| refused_item(item, all_or_nothing)).collect();
    let problem = match transient {
        Some(problem) => problem,
        None => {
            let refused = items.iter().filter(|item| item.is_err()).count();
            let claimed = if all_or_nothing { "no other is claimed" } else { "the others are yours" };
            let detail = format!("{refused} of {} operations may not proceed; {claimed}.", items.len());
            Problem::new(Code::BatchRefused, detail)
        }
    };
    Err(problem.with("items", items.iter().map(either).collect::<Vec<_>>()))
}

/// With `all_or_nothing`, a refused batch claims no item.
fn refused_item(item: Result<BatchItem, Problem>, all_or_nothing: bool) -> Result<BatchItem, Problem> {
    let granted = item?;
    // A claim of an earlier request of the same attempt remains.
    let is_repeated = granted.status == 200;
    if all_or_nothing && !is_repeated {
        let detail = "This operation could have been claimed, but another of the batch could not: nothing is claimed.";
        return Err(Problem::new(Code::OperationNotClaimed, detail).with("id", granted.answer.id));
    }
    Ok(granted)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use latchgate_core::Timestamp;
    use latchgate_core::gate::{Duplicate, Go, Outcome, Stamp};
    use serde_json::{Value, json};

    use super::*;
    use crate::failure::{CallResult, Failure};
    use crate::gate::Reply;

    fn refused(items: Vec<CallResult<Reply>>) -> String {
        let requested: Vec<_> =
            items.iter().map(|_| (OperationId::from_bytes([7; 16]), AttemptId::parse("a").ok())).collect();
        let outcomes = BatchReply { items, all_may_go: false };
        serde_json::to_string(&batch(&App::default(), &requested, outcomes, true).err().expect("a refusal")).unwrap()
    }

    fn replied(outcome: Outcome) -> CallResult<Reply> {
        Ok(Reply { outcome, now: Timestamp::default(), record: None, waited: Duration::ZERO, is_volatile: false })
    }

    fn go() -> CallResult<Reply> {
        replied(Outcome::Go(Go {
            stamp: Stamp::from_bits(1),
            attempt: 1,
            lease_until: Timestamp::default(),
            remaining_ms: 1,
            reentry: false,
            repeated: false,
            possibly_repeated: false,
            forced_ms: None,
        }))
    }

    fn down() -> Failure {
        Failure::StoreUnavailable("a host's name".to_owned())
    }

    #[test]
    fn a_batch_that_only_the_store_refused_may_be_repeated() {
        let problem: Value =
            serde_json::from_str(&refused(vec![go(), Err(down()), Err(Failure::ShuttingDown)])).unwrap();
        assert_eq!((&problem["status"], &problem["code"]), (&json!(503), &json!("store-unavailable")));
        let codes = [0, 1, 2].map(|index| problem["items"][index]["code"].as_str());
        assert_eq!(codes, ["operation-not-claimed", "store-unavailable", "shutting-down"].map(Some));
        assert!(!problem.to_string().contains("host"), "{problem}");
    }

    #[test]
    fn an_unknown_outcome_in_a_batch_is_reported() {
        let unknown = Err(Failure::OutcomeUnknown(String::new()));
        let problem: Value = serde_json::from_str(&refused(vec![unknown, Err(down())])).unwrap();
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
            resolved: None,
        };
        let problem = refused(vec![replied(Outcome::Duplicate(duplicate)), Err(down())]);
        assert!(problem.contains("\"code\":\"batch-refused\"") && problem.contains("\"result\":1e400"), "{problem}");
    }
}
