//! `latchgate app` and `latchgate api-key`: orders to a node or, with `--beside-store`, beside the store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::http::Method;
use clap::Subcommand;
use latchgate_client::{Error, encode};
use latchgate_core::App;
use latchgate_core::access::{ApiKey, Quota, Scope};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::beside::{begin_record, join, start_log};
use super::node::client;
use super::print::{complain, list, not_printed, out, printed, said, text};
use crate::access::operator::{Order, OrderRefused};
use crate::access::{Access, Caller, Clock, FixedKeys};
use crate::audit::Action;
use crate::config::{AppCommand, BesideArgs, KeyCommand, KeyCreateArgs, NodeArgs, OperatorCommand};
use crate::http::Problem;
use crate::store::store_clock::StoreClock;

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// # Errors
/// Says why the command was refused, or could not be carried out.
pub async fn app(args: &OperatorCommand<AppCommand>) -> anyhow::Result<()> {
    let is_json = args.show.json;
    match &args.command {
        AppCommand::Create { app } => {
            let answer = call(args, Request::CreateApp(app)).await?;
            said(is_json, &answer, || format!("The app {app:?} is there."));
        }
        AppCommand::Disable { app } => {
            let answer = call(args, Request::ChangeApp(app, json!({ "disabled": true }))).await?;
            said(is_json, &answer, || format!("The app {app:?} is disabled: its API keys are refused."));
        }
        AppCommand::Delete { app } => {
            let answer = call(args, Request::DeleteApp(app)).await?;
            said(is_json, &answer, || format!("The app {app:?} is deleted."));
        }
        AppCommand::WarnAfter { app, after } => {
            let answer = call(args, Request::ChangeApp(app, json!({ "warn_after_ms": after }))).await?;
            said(is_json, &answer, || match after {
                Some(ms) => format!("A lock of the app {app:?} that is held for {ms} ms is a notice."),
                None => format!("How long a lock of the app {app:?} is held is no notice."),
            });
        }
        AppCommand::List => {
            let answer = call(args, Request::Apps).await?;
            list(is_json, items(&answer["apps"]), &["APP", "STATE", "API KEYS", "QUOTAS"], |app| {
                let state = if app["disabled"] == true { "disabled" } else { "enabled" };
                vec![text(&app["app"]), state.to_owned(), format!("{} API keys", app["api_keys"]), shown(app)]
            });
        }
        AppCommand::Quota { app, quotas } => {
            let answer = call(args, Request::ChangeApp(app, json!({ "quotas": quotas }))).await?;
            said(is_json, &answer, || format!("{app}\t{}", shown(&answer)));
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
    let is_json = args.show.json;
    match &args.command {
        KeyCommand::Create(key) => create(args, key).await?,
        KeyCommand::Revoke { id } => {
            let answer = call(args, Request::RevokeKey(id.to_string())).await?;
            said(is_json, &answer, || format!("The API key {id} is revoked."));
        }
        KeyCommand::List { app } => {
            let answer = call(args, Request::Keys(app.as_deref())).await?;
            let columns =
                ["ID", "APP", "SCOPES", "PREFIXES", "STATE", "EXPIRES", "USED IN THE HOUR FROM", "NAME", "CREATED BY"];
            list(is_json, items(&answer["api_keys"]), &columns, |key| {
                let all = |field: &str| items(&key[field]).iter().map(text).collect::<Vec<_>>().join(",");
                let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
                let (prefixes, name) = (or(all("prefixes"), "-"), or(text(&key["name"]), "-"));
                let (expires_at, used_at) = (or(text(&key["expires_at"]), "never"), or(text(&key["used_at"]), "never"));
                let created_by = or(text(&key["created_by"]), "-");
                let (id, app, scopes, state) =
                    (text(&key["id"]), text(&key["app"]), all("scopes"), text(&key["state"]));
                vec![id, app, scopes, prefixes, state, expires_at, used_at, name, created_by]
            });
        }
        KeyCommand::Generate => out(ApiKey::of_random(rand::random(), rand::random()).as_str()),
    }
    Ok(())
}

/// Prints the API key alone, or the answer with --json, so that a script can take it.
async fn create(args: &OperatorCommand<KeyCommand>, key: &KeyCreateArgs) -> anyhow::Result<()> {
    let scopes: Vec<&str> = key.scope.iter().map(|scope: &Scope| scope.as_str()).collect();
    let body = json!({ "app": key.app, "scopes": scopes, "prefixes": key.prefix, "name": key.name, "expires_in_ms": key.expires });
    let answer = call(args, Request::CreateKey(body)).await?;
    let shown = if args.show.json { answer.to_string() } else { text(&answer["api_key"]) };
    if let Err(error) = printed(shown) {
        // No person has it. If it is the first one, a node refuses every call without it: so it revokes itself.
        let (id, created) = (text(&answer["id"]), text(&answer["api_key"]));
        let revoked = call_with(args, Some(created), Request::RevokeKey(id.clone())).await;
        revoked
            .with_context(|| format!("the API key {id} could not be printed ({error}), and could not be revoked"))?;
        complain(format_args!("the API key {id} could not be printed, and is revoked"));
        not_printed(&error);
    }
    eprintln!("Keep this API key: it is not shown again. Its id is {}.", text(&answer["id"]));
    Ok(())
}

/// What a command asks for.
enum Request<'a> {
    Apps,
    CreateApp(&'a str),
    ChangeApp(&'a str, Value),
    DeleteApp(&'a str),
    Keys(Option<&'a str>),
    CreateKey(Value),
    RevokeKey(String),
}

impl Request<'_> {
    /// As a node takes it.
    fn over_http(&self) -> (Method, String, Option<Value>) {
        match self {
            Self::Apps => (Method::GET, "/v1/admin/apps".to_owned(), None),
            Self::CreateApp(app) => (Method::POST, "/v1/admin/apps".to_owned(), Some(json!({ "app": app }))),
            Self::ChangeApp(app, change) => {
                (Method::PATCH, format!("/v1/admin/apps/{}", encode(app)), Some(change.clone()))
            }
            Self::DeleteApp(app) => (Method::DELETE, format!("/v1/admin/apps/{}", encode(app)), None),
            Self::Keys(None) => (Method::GET, "/v1/admin/api-keys".to_owned(), None),
            Self::Keys(Some(app)) => (Method::GET, format!("/v1/admin/api-keys?app={}", encode(app)), None),
            Self::CreateKey(key) => (Method::POST, "/v1/admin/api-keys".to_owned(), Some(key.clone())),
            Self::RevokeKey(id) => (Method::DELETE, format!("/v1/admin/api-keys/{}", encode(id)), None),
        }
    }

    fn changes(&self) -> bool {
        !matches!(self, Self::Apps | Self::Keys(_))
    }

    /// Beside the store, with an audit record of what changes something.
    async fn carry_out(self, access: &Access) -> anyhow::Result<Value> {
        let (action, resource) = match &self {
            Self::Apps => return value(Ok(access.apps())),
            Self::Keys(app) => return value(access.api_keys(*app)),
            Self::CreateApp(app) => (Action::CreateApp, *app),
            Self::ChangeApp(app, _) => (Action::ChangeApp, *app),
            // Whether its locks are in use, nodes can tell.
            Self::DeleteApp(_) => bail!("an app is deleted through a node, without --beside-store"),
            Self::CreateKey(_) => (Action::CreateKey, ""),
            Self::RevokeKey(id) => (Action::RevokeKey, id.as_str()),
        };
        // An operator who can open the store can change it anyway.
        let (by, record) = (Arc::new(Caller::without_key(App::default())), begin_record(action, resource));
        let order = Order { access, by: &by, record: &record };
        let carried_out = match self {
            Self::Apps | Self::Keys(_) | Self::DeleteApp(_) => Ok(Value::Null),
            Self::CreateApp(app) => value(order.create_app(app).await.map(|(app, _)| app)),
            Self::ChangeApp(app, change) => value(order.change_app(app, serde_json::from_value(change)?).await),
            Self::CreateKey(key) => value(order.create_key(serde_json::from_value(key)?, true).await),
            Self::RevokeKey(id) => value(order.revoke_key(&id).await),
        };
        record.end(if carried_out.is_ok() { "done" } else { "refused" });
        carried_out
    }
}

fn value<T: Serialize>(answer: Result<T, OrderRefused>) -> anyhow::Result<Value> {
    let answer = answer.map_err(|refused| {
        let problem = Problem::from(refused);
        let info = problem.code().info();
        anyhow!("{} ({}, {})", problem.detail(), info.name, info.status.as_u16())
    })?;
    Ok(serde_json::to_value(answer)?)
}

/// The answer to a request that was carried out.
async fn call<C: Subcommand>(target: &OperatorCommand<C>, request: Request<'_>) -> anyhow::Result<Value> {
    call_with(target, None, request).await
}

/// With this API key if the target names none.
async fn call_with<C: Subcommand>(
    target: &OperatorCommand<C>,
    key: Option<String>,
    request: Request<'_>,
) -> anyhow::Result<Value> {
    if target.beside.beside_store {
        let access = open(&target.beside, request.changes()).await?;
        return request.carry_out(&access).await;
    }
    let (method, path, body) = request.over_http();
    let node = &target.show.node;
    let called = NodeArgs { key: node.key.clone().or(key), ..node.clone() };
    client(&called)?.call(method, &path, body.as_ref()).await.map_err(|error| match error {
        Error::Unreachable(reason) => {
            anyhow!("cannot call the node at {}: {reason}. Without a node, use --beside-store", node.places())
        }
        error => error.into(),
    })
}

/// The apps and API keys in the store.
async fn open(args: &BesideArgs, changes: bool) -> anyhow::Result<Access> {
    start_log()?;
    let engines =
        join(args, changes).await.context("cannot use the store (without --beside-store, a node is called)")?;
    let mut standing = engines.watch();
    if !matches!(timeout(PATIENCE, standing.wait_for(Option::is_some)).await, Ok(Ok(_))) {
        bail!("{}", engines.view().trouble.unwrap_or_else(|| "no engine is in use".to_owned()));
    }
    let store_clock = StoreClock::default();
    let sent = Instant::now();
    let used = engines.used()?;
    store_clock.learn(used.clock(), used.store.ping().await?, sent, Instant::now());
    let clock: Clock = Arc::new(move || store_clock.now().unwrap_or_default());
    Access::once(engines, clock, FixedKeys::default()).await
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
