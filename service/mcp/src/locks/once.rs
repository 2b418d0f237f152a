//! The tools `begin_once`, `finish_once` and `status_of`.

use latchgate_client::{Begun, Error, Method, encode};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::{Answer, Said};
use super::session::{PER_SESSION_MAX, Session, short};

const RESOLVE: &str = "Nothing will be done again by itself: a person must find out, then run `latchgate operations resolve ID --succeeded \
                       --reason …` or `--failed`. Do not do it yourself, and do not begin it under other contents.";

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
    /// Ask whether work that must not be done twice may begin. Do it only if `go` is true, then call finish_once. If it was done before, the
    /// answer has its result.
    #[tool(annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false))]
    async fn begin_once(&self, Parameters(args): Parameters<BeginOnce>, context: RequestContext<RoleServer>) -> Answer {
        let caller = self.caller(&context)?;
        if self.held.lock().attempts.len() >= PER_SESSION_MAX {
            let words = format!("This session has begun {PER_SESSION_MAX} operations, the most: finish some first.");
            return Err(Said::refused(words));
        }
        let label = args.label.as_deref().map_or(caller.owner, |label| short(label, 60));
        let operation = caller.client.operation(args.operation).label(label);
        let begun = tokio::select! {
            begun = operation.begin(&args.contents) => begun,
            () = context.ct.cancelled() => return Err(Said::refused("The call was cancelled: nothing was begun.")),
        };
        match begun {
            Ok(Begun::Go(attempt)) => {
                let id = attempt.id().to_owned();
                let words = format!(
                    "GO: the work is yours. Do it now, then call finish_once with id {id}. If you never do, a person must decide."
                );
                self.held.lock().attempts.insert(id.clone(), attempt);
                Ok(Said(words, json!({ "go": true, "id": id })))
            }
            Ok(Begun::Duplicate(before)) => {
                let [id, at, omitted] = ["id", "at", "result_omitted"].map(|name| before.problem.field(name));
                let data = json!({ "go": false, "state": "succeeded", "id": id, "at": at, "result": before.result, "result_omitted": omitted == true });
                Ok(Said(format!("DONE BEFORE: do not do it again. Its result: {}", before.result), data))
            }
            Err(error @ Error::InProgress(_)) => Err(Said::of(
                &error,
                "Another caller does it now: do not do it. Call begin_once again later to get its result.",
            )),
            Err(error @ Error::OutcomeUnknown(_)) => Err(Said::of(&error, &format!("UNKNOWN. {RESOLVE}"))),
            Err(error) => Err(Said::of(&error, "Nothing was begun: do not do the work.")),
        }
    }

    /// Say how work ended that begin_once let you begin. If you are not sure that it was done, say `unknown`.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn finish_once(&self, Parameters(args): Parameters<FinishOnce>) -> Answer {
        let Some(attempt) = self.held.lock().attempts.remove(&args.id) else {
            return Err(Said::refused("This session has not begun an operation with this id, or has finished it."));
        };
        let reported = match args.outcome {
            Outcome::Done => attempt.succeed(&args.result.map_or(Value::Null, Value::Object)).await,
            Outcome::NothingDone => attempt.fail().await,
            Outcome::Unknown => {
                attempt.leave_unknown(args.detail.as_deref().unwrap_or("The agent does not know.")).await
            }
        };
        let answer = reported
            .map_err(|error| Said::of(&error, &format!("The outcome was not recorded, so it is unknown. {RESOLVE}")))?;
        if args.outcome == Outcome::Unknown {
            return Ok(Said(format!("Noted as UNKNOWN. {RESOLVE}"), json!({ "id": args.id, "state": "unknown" })));
        }
        Ok(Said("Noted.".to_owned(), answer))
    }

    /// Show what is known of an operation: whether it runs, is done, or waits for a person.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn status_of(&self, Parameters(args): Parameters<StatusOf>, context: RequestContext<RoleServer>) -> Answer {
        let client = self.caller(&context)?.client;
        let found = client.call(Method::GET, &format!("/v1/operations/{}", encode(&args.id)), None).await;
        let found = found.map_err(|error| Said::of(&error, "The state of the operation is not known."))?;
        Ok(Said(format!("The operation is {}.", found["state"].as_str().unwrap_or("unknown")), found))
    }
}
