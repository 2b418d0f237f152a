//! `latchgate app` and `latchgate api-key`: orders to a node.

use anyhow::Context as _;
use axum::http::Method;
use latchgate_client::{Error, encode};
use latchgate_core::access::{ApiKey, Quota, Scope};
use latchgate_node::format::lasting;
use serde_json::{Value, json};

use super::node::client;
use super::print::{complain, counted, list, not_printed, print_answer, printed, println_or_exit, text, when};
use crate::config::{AppCommand, KeyCommand, KeyCreateArgs, NodeArgs, OperatorCommand};

/// # Errors
/// Says why the command was refused, or could not be carried out.
pub async fn app(args: &OperatorCommand<AppCommand>) -> anyhow::Result<()> {
    let (is_json, node) = (args.show.json, &args.show.node);
    match &args.command {
        AppCommand::Create { app } => {
            let answer = call(node, Method::POST, "/v1/admin/apps", Some(json!({ "app": app }))).await?;
            print_answer(is_json, &answer, || format!("The app {app:?} exists, and is enabled."));
        }
        AppCommand::Disable { app } => {
            let answer = call(node, Method::PATCH, &app_path(app), Some(json!({ "disabled": true }))).await?;
            print_answer(is_json, &answer, || format!("The app {app:?} is disabled: its API keys are refused."));
        }
        AppCommand::Delete { app } => {
            let answer = call(node, Method::DELETE, &app_path(app), None).await?;
            print_answer(is_json, &answer, || format!("The app {app:?} is deleted."));
        }
        AppCommand::WarnAfter { app, after } => {
            let answer = call(node, Method::PATCH, &app_path(app), Some(json!({ "warn_after_ms": after }))).await?;
            print_answer(is_json, &answer, || match after {
                Some(ms) => {
                    format!("A lock of the app {app:?} that is held for {} gets the event held_too_long.", lasting(*ms))
                }
                None => format!("However long a lock of the app {app:?} is held, it gets no event held_too_long."),
            });
        }
        AppCommand::List => {
            let answer = call(node, Method::GET, "/v1/admin/apps", None).await?;
            list(
                is_json,
                "apps",
                items(&answer["apps"]),
                &["APP", "STATE", "API KEYS", "QUOTAS", "WARN AFTER"],
                |app| {
                    let state = if app["disabled"] == true { "disabled" } else { "enabled" };
                    let warn_after = app["warn_after_ms"].as_u64().map_or_else(|| "never".to_owned(), lasting);
                    vec![
                        text(&app["app"]),
                        state.to_owned(),
                        counted(&app["api_keys"], "API key"),
                        shown(app),
                        warn_after,
                    ]
                },
            );
        }
        AppCommand::Quota { app, quotas } => {
            let answer = call(node, Method::PATCH, &app_path(app), Some(json!({ "quotas": quotas }))).await?;
            print_answer(is_json, &answer, || format!("{app}\t{}", shown(&answer)));
        }
    }
    Ok(())
}

/// The quotas that have a limit.
fn shown(app: &Value) -> String {
    let limits = Quota::ALL.map(|quota| (quota.as_str(), &app["quotas"][quota.as_str()]));
    let limits: Vec<String> =
        limits.iter().filter(|(_, limit)| !limit.is_null()).map(|(name, limit)| format!("{name} {limit}")).collect();
    if limits.is_empty() { "no quotas".to_owned() } else { limits.join(", ") }
}

/// # Errors
/// As [`app`].
pub async fn key(args: &OperatorCommand<KeyCommand>) -> anyhow::Result<()> {
    let (is_json, node) = (args.show.json, &args.show.node);
    match &args.command {
        KeyCommand::Create(key) => create(args, key).await?,
        KeyCommand::Revoke { id } => {
            let answer = call(node, Method::DELETE, &key_path(&id.to_string()), None).await?;
            print_answer(is_json, &answer, || format!("The API key {id} is revoked."));
        }
        KeyCommand::List { app } => {
            let of_app = app.as_ref().map(|app| format!("?app={}", encode(app))).unwrap_or_default();
            let answer = call(node, Method::GET, &format!("/v1/admin/api-keys{of_app}"), None).await?;
            let columns =
                ["ID", "APP", "SCOPES", "PREFIXES", "STATE", "EXPIRES", "LAST USE (HOUR)", "NAME", "CREATED BY"];
            let what = if app.is_some() { "API keys that match" } else { "API keys" };
            list(is_json, what, items(&answer["api_keys"]), &columns, |key| {
                let all = |field: &str| items(&key[field]).iter().map(text).collect::<Vec<_>>().join(",");
                let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
                let [id, app, state, name, created_by, expires_at, used_at] =
                    ["id", "app", "state", "name", "created_by", "expires_at", "used_at"]
                        .map(|field| if field.ends_with("_at") { when(&key[field]) } else { text(&key[field]) });
                let (prefixes, name, created_by) = (or(all("prefixes"), "-"), or(name, "-"), or(created_by, "-"));
                let (expires_at, used_at) = (or(expires_at, "never"), or(used_at, "never"));
                vec![id, app, all("scopes"), prefixes, state, expires_at, used_at, name, created_by]
            });
        }
        KeyCommand::Generate => println_or_exit(ApiKey::of_random(rand::random(), rand::random()).as_str()),
    }
    Ok(())
}

/// Prints the API key alone, or the answer with --json, so that a script can take it.
async fn create(args: &OperatorCommand<KeyCommand>, key: &KeyCreateArgs) -> anyhow::Result<()> {
    let node = &args.show.node;
    let scopes: Vec<&str> = key.scope.iter().map(|scope: &Scope| scope.as_str()).collect();
    let body = json!({ "app": key.app, "scopes": scopes, "prefixes": key.prefix, "name": key.name, "expires_in_ms": key.expires });
    let answer = call(node, Method::POST, "/v1/admin/api-keys", Some(body)).await?;
    let shown = if args.show.json { answer.to_string() } else { text(&answer["api_key"]) };
    if let Err(error) = printed(shown) {
        // No person has it. If it is the first one, a node refuses every call without it: so it revokes itself.
        let (id, created) = (text(&answer["id"]), text(&answer["api_key"]));
        let with_key = NodeArgs { key: node.key.clone().or(Some(created)), ..node.clone() };
        let revoked = call(&with_key, Method::DELETE, &key_path(&id), None).await;
        revoked
            .with_context(|| format!("the API key {id} could not be printed ({error}), and could not be revoked"))?;
        complain(format_args!("the API key {id} could not be printed, and is revoked"));
        not_printed(&error);
    }
    eprintln!("Keep this API key: it is not shown again. Its id is {}.", text(&answer["id"]));
    Ok(())
}

/// The answer of the node.
async fn call(node: &NodeArgs, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
    let answer = client(node)?.call(method, path, body.as_ref()).await;
    answer.map_err(|error| match error {
        Error::Unreachable(_) => anyhow::Error::new(error).context(format!("cannot call the node at {}", node.url)),
        error => error.into(),
    })
}

fn app_path(app: &str) -> String {
    format!("/v1/admin/apps/{}", encode(app))
}

fn key_path(id: &str) -> String {
    format!("/v1/admin/api-keys/{}", encode(id))
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
