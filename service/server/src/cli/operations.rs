//! `latchgate operations`: list, show, resolve, forget.

use std::collections::HashSet;

use anyhow::{Context, bail, ensure};
use latchgate_client::{Client, Error, Method, encode};
use latchgate_node::format::ms;
use serde_json::{Value, json};

use super::listing::{PAGE, in_own_app, kept, list_of};
use super::node::client;
use super::print::{complain, one_line, print_answer, text, when};
use crate::config::{NodeCommand, OperationsCommand, ShowArgs};

/// Digits of the id of an operation.
const ID_LENGTH: usize = 32;
/// How many pages of operations a command looks through at most, if it does not list them all.
pub const PAGES_MAX: usize = 40;

/// # Errors
/// As [`super::locks::locks`].
pub async fn operations(NodeCommand { command, app, show }: &NodeCommand<OperationsCommand>) -> anyhow::Result<()> {
    let client = client(&show.node)?.in_app(app.as_deref());
    let carried_out = carry_out(&client, command, app.as_deref(), show).await;
    let refusal = carried_out.as_ref().err().and_then(|error| error.downcast_ref::<Error>()?.code());
    if refusal == Some("operation-not-found") {
        let place = in_own_app(&client, app.as_deref(), show.json, false).await;
        if !place.is_empty() {
            return carried_out.context(format!("not found{place}"));
        }
    }
    carried_out
}

async fn carry_out(
    client: &Client,
    command: &OperationsCommand,
    app: Option<&str>,
    show: &ShowArgs,
) -> anyhow::Result<()> {
    match command {
        OperationsCommand::List { operation, state, older_than, suspect, undecided, limit } => {
            let older_than_ms = ms(*older_than);
            let mut filter = format!("&suspect={suspect}&older_than_ms={older_than_ms}");
            if let Some(operation) = operation {
                filter += &format!("&operation={}", encode(operation));
            }
            let states: Vec<&str> = match state {
                Some(state) => vec![state],
                None if *undecided => UNDECIDED_STATES.to_vec(),
                None => vec![""],
            };
            let is_kept = |operation: &Value| !undecided || is_undecided(operation);
            let (mut operations, _) = in_states(client, &states, &filter, is_kept, usize::MAX).await?;
            let is_filtered = *undecided || *suspect || older_than_ms > 0 || operation.is_some() || state.is_some();
            // The newest ones.
            operations.drain(..operations.len().saturating_sub(limit.unwrap_or(usize::MAX)));
            let what = if is_filtered { "operations that match" } else { "operations" };
            let place = in_own_app(client, app, show.json, !operations.is_empty()).await;
            list_of(
                show.json,
                app,
                &format!("{what}{place}"),
                &operations,
                &["SINCE", "STATE", "OPERATION", "LABEL", "ATTEMPT", "SUSPECTED DOUBLE RUNS", "ID"],
                |operation| {
                    let fields = ["operation", "label", "attempt", "suspected_double_runs", "id"];
                    let cells = fields.iter().map(|name| one_line(&operation[name]));
                    [when(&json!(since(operation))), state_of(operation)].into_iter().chain(cells).collect()
                },
            );
        }
        OperationsCommand::Show { id } => {
            let id = whole_id(client, id).await?;
            let answer = client.call(Method::GET, &format!("/v1/operations/{}", encode(&id)), None).await?;
            print_answer(show.json, &answer, || {
                let mut fields = answer.as_object().cloned().unwrap_or_default();
                fields.insert("state".to_owned(), json!(state_of(&answer)));
                let first = ["operation", "state", "label", "created_at", "started_at", "ended_at", "detail"];
                let first: Vec<(&str, Value)> =
                    first.into_iter().filter_map(|name| Some((name, fields.remove(name)?))).collect();
                let rest = fields.iter().map(|(name, value)| (name.as_str(), value.clone()));
                let lines = first.into_iter().chain(rest).map(|(name, value)| format!("{name}: {}", text(&value)));
                lines.collect::<Vec<_>>().join("\n")
            });
            if !show.json && is_undecided(&answer) {
                let of_app = app.map(|app| format!(" --app {app}")).unwrap_or_default();
                complain(format_args!(
                    "find out how it ended, then: latchgate operations resolve {id}{of_app} --succeeded --reason …, or --failed"
                ));
            }
        }
        OperationsCommand::Resolve { id, succeeded, result, reason, by, .. } => {
            let mut body = json!({ "outcome": if *succeeded { "success" } else { "failure" }, "reason": reason });
            if let Some(result) = result {
                body["result"] = serde_json::from_str(result).unwrap_or_else(|_| json!(result));
            }
            if let Some(by) = by {
                body["by"] = json!(by);
            }
            let id = whole_id(client, id).await?;
            let path = format!("/v1/operations/{}/resolve", encode(&id));
            let answer = client.call(Method::POST, &path, Some(&body)).await?;
            print_answer(show.json, &answer, || match answer["outcome"].as_str() {
                Some("success") => {
                    format!(
                        "The operation {id} has succeeded: no run begins as long as that is kept, a day unless configured otherwise."
                    )
                }
                _ => format!("The operation {id} has failed: the next run may begin."),
            });
        }
        OperationsCommand::Forget { id, force } => {
            let id = whole_id(client, id).await?;
            let path = format!("/v1/operations/{}?force={force}", encode(&id));
            let answer = client.call(Method::DELETE, &path, None).await?;
            print_answer(show.json, &answer, || {
                format!("The operation {id} is forgotten. Its state was {}.", text(&answer["was"]))
            });
        }
    }
    Ok(())
}

/// The state that is shown: an attempt whose lease has ended is not under way any more. Filters and JSON have its state as it is stored.
fn state_of(operation: &Value) -> String {
    let has_expired = operation["state"] == "started" && operation["ttl_ms"] == 0;
    if has_expired { "started, lease expired".to_owned() } else { text(&operation["state"]) }
}

/// The states of operations that may be undecided, in the order in which an operation has them: between two lists none is missed.
pub const UNDECIDED_STATES: [&str; 2] = ["started", "unknown"];

fn operations_path(state: &str, filter: &str) -> String {
    let state = if state.is_empty() { String::new() } else { format!("&state={}", encode(state)) };
    format!("/v1/operations?limit={PAGE}{state}{filter}")
}

/// What is kept of the operations in these states, the oldest first; and whether these are all.
pub async fn in_states(
    client: &Client,
    states: &[&str],
    filter: &str,
    is_kept: impl Fn(&Value) -> bool,
    pages_max: usize,
) -> Result<(Vec<Value>, bool), Error> {
    let (mut found, mut is_all) = (Vec::new(), true);
    for state in states {
        let path = operations_path(state, filter);
        let (operations, is_whole) = kept(client, &path, "operations", &is_kept, usize::MAX, pages_max).await?;
        found.extend(operations);
        is_all &= is_whole;
    }
    let mut names = HashSet::new();
    found.retain(|operation| names.insert((text(&operation["app"]), text(&operation["id"]))));
    found.sort_by_key(since);
    Ok((found, is_all))
}

/// Whether a person must find out how the operation has ended.
pub fn is_undecided(operation: &Value) -> bool {
    let has_passed = operation["ttl_ms"] == 0 && operation["on_expiry"] == "block";
    operation["state"] == "unknown" || (operation["state"] == "started" && has_passed)
}

/// The id of the one operation whose id begins so.
async fn whole_id(client: &Client, beginning: &str) -> anyhow::Result<String> {
    ensure!(!beginning.is_empty(), "the id is empty: `latchgate operations list` shows the ids");
    let is_hex = beginning.bytes().all(|byte| byte.is_ascii_hexdigit());
    if beginning.len() >= ID_LENGTH || !is_hex {
        return Ok(beginning.to_owned());
    }
    let begins = beginning.to_lowercase();
    let begins_so = |operation: &Value| operation["id"].as_str().is_some_and(|id| id.starts_with(&begins));
    let path = operations_path("", "");
    let (found, is_all) = kept(client, &path, "operations", begins_so, 2, PAGES_MAX).await?;
    let mut found: Vec<String> = found.iter().map(|operation| text(&operation["id"])).collect();
    // A store may have listed one twice.
    found.dedup();
    match &found[..] {
        [first, other, ..] => bail!("the ids of several operations begin with {beginning}: {first}, {other}"),
        _ if !is_all => bail!("there are too many operations to look for {beginning}: give the whole id"),
        [id] => Ok(id.clone()),
        // The node says that there is none.
        [] => Ok(beginning.to_owned()),
    }
}

/// When the present state of an operation began.
pub fn since(operation: &Value) -> String {
    let at = ["ended_at", "started_at", "created_at"].iter().find_map(|name| operation[name].as_str());
    at.unwrap_or_default().to_owned()
}
