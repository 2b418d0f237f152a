//! The tools `begin_once`, `finish_once` and `status_of`.

use latchgate_client::{Begun, Error, Method, encode};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use super::answers::{Answer, Said};
use super::session::{PER_SESSION_MAX, Session, short};
use super::tools::{BeginOnce, Caller, FinishOnce, Outcome, StatusOf};

const RESOLVE: &str = "Nothing will be done again by itself: a person must find out, then run `latchgate operations resolve ID --succeeded \
                       --reason …` or `--failed`. Do not do it yourself, and do not begin it under other contents.";

impl Session {
    pub async fn begin_once(&self, args: BeginOnce, context: RequestContext<RoleServer>) -> Answer {
        let caller = Caller::of(self, &context)?;
        if self.held.lock().attempts.len() >= PER_SESSION_MAX {
            return Err(Said::refused(format!("This session has begun {PER_SESSION_MAX} operations, which is the most: finish some first.")));
        }
        let label = args.label.as_deref().map_or_else(|| self.owner(&caller.program), |label| short(label, 60));
        let operation = caller.client.operation(args.operation).label(label);
        let begun = tokio::select! {
            begun = operation.begin(&args.contents) => begun,
            () = context.ct.cancelled() => return Err(Said::refused("The call was cancelled: nothing was begun.")),
        };
        match begun {
            Ok(Begun::Go(attempt)) => {
                let id = attempt.id().to_owned();
                let words = format!("GO: the work is yours. Do it now, then call finish_once with id {id}. If you never do, a person must decide.");
                self.held.lock().attempts.insert(id.clone(), attempt);
                Ok(Said::new(words, json!({ "go": true, "id": id })))
            }
            Ok(Begun::Duplicate(before)) => {
                let problem = &before.problem;
                let data = json!({ "go": false, "state": "succeeded", "id": problem.field("id"), "at": problem.field("at"),
                                   "result": before.result, "result_omitted": problem.field("result_omitted") == true });
                Ok(Said::new(format!("DONE BEFORE: do not do it again. Its result: {}", before.result), data))
            }
            Err(error @ Error::InProgress(_)) => {
                Err(Said::of(&error, "Another caller does it now: do not do it. Ask again with begin_once later to get its result."))
            }
            Err(error @ Error::OutcomeUnknown(_)) => Err(Said::of(&error, &format!("UNKNOWN. {RESOLVE}"))),
            Err(error) => Err(Said::of(&error, "Nothing was begun: do not do the work.")),
        }
    }

    pub async fn finish_once(&self, args: FinishOnce) -> Answer {
        let Some(attempt) = self.held.lock().attempts.remove(&args.id) else {
            return Err(Said::refused("This session has not begun an operation with this id, or has finished it."));
        };
        let reported = match args.outcome {
            Outcome::Done => attempt.succeed(&args.result.map_or(Value::Null, Value::Object)).await,
            Outcome::NothingDone => attempt.fail().await,
            Outcome::Unknown => attempt.leave_unknown(args.detail.as_deref().unwrap_or("The agent does not know.")).await,
        };
        match reported {
            Ok(_) if args.outcome == Outcome::Unknown => {
                Ok(Said::new(format!("Noted as UNKNOWN. {RESOLVE}"), json!({ "id": args.id, "state": "unknown" })))
            }
            Ok(answer) => {
                let data = json!({ "id": args.id, "state": answer["state"], "result_omitted": answer["result_omitted"] == true });
                Ok(Said::new("Noted.", data))
            }
            Err(error) => Err(Said::of(&error, &format!("The outcome was not recorded, so it is unknown. {RESOLVE}"))),
        }
    }

    pub async fn status_of(&self, args: StatusOf, context: RequestContext<RoleServer>) -> Answer {
        let client = Caller::of(self, &context)?.client;
        let found = client.call(Method::GET, &format!("/v1/operations/{}", encode(&args.id)), None).await;
        let found = found.map_err(|error| Said::of(&error, "The state of the operation is not known."))?;
        Ok(Said::new(format!("The operation is {}.", found["state"].as_str().unwrap_or("unknown")), found))
    }
}
