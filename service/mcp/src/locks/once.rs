//! The tools `begin_once`, `finish_once` and `status_of`.

use latchgate_client::{Begun, Error, Method, encode};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::{ToolAnswer, failed, refused, said};
use super::session::{Context, PER_SESSION_MAX, Session, short};

const RESOLVE: &str = include_str!("resolve.txt");

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginOnce {
    /// The kind of work, for example "send-invoice".
    pub operation: String,
    /// What identifies this piece of work, and nothing else: {"order": 42}. Not the time, nor a random number.
    pub contents: Map<String, Value>,
    /// One line for the person who must decide, if you never say how it ended.
    pub label: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishOnce {
    /// From begin_once.
    pub id: String,
    pub outcome: Outcome,
    /// With `done`: what later callers get instead of doing the work.
    pub result: Option<Map<String, Value>>,
    /// With `unknown`: what you know, for the person who must decide.
    pub detail: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done, and you have seen that.
    Done,
    /// Certainly nothing was done: it may be begun again.
    NothingDone,
    /// It may have been done: a person must find out.
    Unknown,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusOf {
    /// From begin_once, or from a refusal.
    pub id: String,
}

#[tool_router(router = once_tools, vis = "pub")]
impl Session {
    /// Ask whether work that must not be done twice may begin. Do it only if `go` is true, then call finish_once. If it was done before,
    /// within a day, the answer has its result.
    #[tool(annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false))]
    async fn begin_once(&self, Parameters(args): Parameters<BeginOnce>, context: Context) -> ToolAnswer {
        let caller = self.caller(&context)?;
        if self.held.lock().attempts.len() >= PER_SESSION_MAX {
            return Err(refused("This session has begun too many operations: finish some first."));
        }
        let label = args.label.as_deref().map_or(caller.owner, |label| short(label, 60));
        let operation = caller.client.operation(args.operation).label(label);
        let begun = context.ct.run_until_cancelled(operation.begin(&args.contents)).await;
        match begun.ok_or_else(|| refused("The call was cancelled: nothing was begun."))? {
            Ok(Begun::Go(attempt)) => {
                let id = attempt.id().to_owned();
                let words = format!("GO: do the work now, then call finish_once with id {id}.");
                self.held.lock().attempts.insert(id.clone(), attempt);
                Ok(said(words, json!({ "go": true, "id": id })))
            }
            Ok(Begun::Duplicate(before)) => {
                let mut data = json!(before.problem.fields());
                data["go"] = false.into();
                Ok(said(format!("DONE BEFORE: do not do it again. Its result: {}", before.result), data))
            }
            Err(error) => {
                let then = match error {
                    Error::InProgress(_) => "Another caller does it now: do not do it. Ask again later.",
                    Error::OutcomeUnknown(_) => RESOLVE,
                    _ => "Nothing was begun: do not do the work.",
                };
                Err(failed(&error, then))
            }
        }
    }

    /// Say how work ended that begin_once let you begin. If you are not sure that it was done, say `unknown`.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn finish_once(&self, Parameters(args): Parameters<FinishOnce>) -> ToolAnswer {
        let Some(attempt) = self.held.lock().attempts.remove(&args.id) else {
            return Err(refused("This session has not begun an operation with this id, or has finished it."));
        };
        let reported = match args.outcome {
            Outcome::Done => attempt.succeed(&args.result.map_or(Value::Null, Value::Object)).await,
            Outcome::NothingDone => attempt.fail().await,
            Outcome::Unknown => attempt.leave_unknown(args.detail.as_deref().unwrap_or("not known")).await,
        };
        let answer = reported.map_err(|error| failed(&error, &format!("It was not recorded. {RESOLVE}")))?;
        Ok(said(if args.outcome == Outcome::Unknown { RESOLVE } else { "Noted." }, answer))
    }

    /// Show what is known of an operation: whether it runs, is done, or waits for a person.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn status_of(&self, Parameters(args): Parameters<StatusOf>, context: Context) -> ToolAnswer {
        let client = self.caller(&context)?.client;
        let found = client.call(Method::GET, &format!("/v1/operations/{}", encode(&args.id)), None).await;
        let found = found.map_err(|error| failed(&error, "The state of the operation is not known."))?;
        Ok(said(format!("The operation is {}.", found["state"].as_str().unwrap_or("unknown")), found))
    }
}
