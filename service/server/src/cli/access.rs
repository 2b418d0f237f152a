//! `latchgate app` and `latchgate key`: requests to a node or, without one, to the same endpoints beside the store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use latchgate_client::{Error, encode};
use latchgate_core::access::{ApiKey, Quota, Scope};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::hold_off::join;
use super::node::client;
use super::print::{list, said, text};
use crate::access::{Access, Clock, FixedKeys};
use crate::config::{AppArgs, AppCommand, AppQuotaArgs, KeyArgs, KeyCommand, KeyCreateArgs, NodeArgs, ViaArgs};
use crate::http::beside_the_store;
use crate::observe::logs::{self, LogFormat};
use crate::store::store_clock::StoreClock;

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
const TTL_MS_MAX: u64 = 3_600_000;

/// # Errors
/// Says why the command was refused, or could not be carried out.
pub async fn app(args: &AppArgs) -> anyhow::Result<()> {
    match &args.command {
        AppCommand::Create(args) => {
            let answer = call(&args.via, Method::POST, "/v1/admin/apps", Some(json!({ "app": args.app }))).await?;
            said(args.via.json, &answer, || format!("The app {:?} is there.", args.app));
        }
        AppCommand::Disable(args) => {
            let path = format!("/v1/admin/apps/{}/disable", encode(&args.app));
            let answer = call(&args.via, Method::POST, &path, None).await?;
            said(args.via.json, &answer, || format!("The app {:?} is disabled: its API keys are refused.", args.app));
        }
        AppCommand::WarnAfter(args) => {
            let path = format!("/v1/admin/apps/{}/warn-after", encode(&args.app));
            let body = json!({ "warn_after_ms": args.after });
            let answer = call(&args.via, Method::PUT, &path, Some(body)).await?;
            said(args.via.json, &answer, || match args.after {
                Some(ms) => format!("A lock of the app {:?} that is held for {ms} ms is a notice.", args.app),
                None => format!("How long a lock of the app {:?} is held is no notice.", args.app),
            });
        }
        AppCommand::List(via) => {
            let answer = call(via, Method::GET, "/v1/admin/apps", None).await?;
            list(via.json, items(&answer["apps"]), &["APP", "STATE", "API KEYS", "QUOTAS"], |app| {
                let state = if app["disabled"] == true { "disabled" } else { "enabled" };
                vec![text(&app["app"]), state.to_owned(), format!("{} API keys", app["api_keys"]), quotas(app)]
            });
        }
        AppCommand::Quota(args) => {
            let path = format!("/v1/admin/apps/{}/quotas", encode(&args.app));
            let app = call(&args.via, Method::POST, &path, Some(changed_quotas(args))).await?;
            said(args.via.json, &app, || format!("{}\t{}", args.app, quotas(&app)));
        }
    }
    Ok(())
}

fn changed_quotas(args: &AppQuotaArgs) -> Value {
    let named = [
        ("requests_per_second", args.requests_per_second),
        ("waiters", args.waiters),
        ("leases", args.leases),
        ("operations", args.operations),
        ("event_streams", args.event_streams),
    ];
    let named = named.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), json!(limit?.0))));
    Value::Object(named.collect())
}

/// Those that have a limit.
fn quotas(app: &Value) -> String {
    let limits = Quota::ALL.map(|quota| (quota.as_str(), &app["quotas"][quota.as_str()]));
    let limits: Vec<String> =
        limits.iter().filter(|(_, limit)| !limit.is_null()).map(|(name, limit)| format!("{name} {limit}")).collect();
    if limits.is_empty() { "no quotas".to_owned() } else { limits.join(", ") }
}

/// # Errors
/// As [`app`].
pub async fn key(args: &KeyArgs) -> anyhow::Result<()> {
    match &args.command {
        KeyCommand::Create(args) => create(args).await?,
        KeyCommand::Revoke(args) => {
            let answer = call(&args.via, Method::DELETE, &format!("/v1/admin/keys/{}", args.id), None).await?;
            said(args.via.json, &answer, || format!("The API key {} is revoked.", args.id));
        }
        KeyCommand::List(args) => {
            let query = args.app.as_ref().map(|app| format!("?app={}", encode(app))).unwrap_or_default();
            let answer = call(&args.via, Method::GET, &format!("/v1/admin/keys{query}"), None).await?;
            let columns = ["ID", "APP", "SCOPES", "PREFIXES", "STATE", "LAST USED"];
            list(args.via.json, items(&answer["keys"]), &columns, |key| {
                let all = |field: &str| items(&key[field]).iter().map(text).collect::<Vec<_>>().join(",");
                let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
                let (prefixes, used_at) = (or_dash(all("prefixes")), or_dash(text(&key["used_at"])));
                vec![text(&key["id"]), text(&key["app"]), all("scopes"), prefixes, text(&key["state"]), used_at]
            });
        }
        KeyCommand::Generate => println!("{}", ApiKey::of_random(rand::random(), rand::random()).as_str()),
    }
    Ok(())
}

/// Prints the API key alone, or the answer with --json, so that a script can take it.
async fn create(args: &KeyCreateArgs) -> anyhow::Result<()> {
    let scopes: Vec<&str> = args.scope.iter().map(|scope: &Scope| scope.as_str()).collect();
    let body = json!({ "app": args.app, "scopes": scopes, "prefixes": args.prefix, "expires_in_ms": args.expires });
    let answer = call(&args.via, Method::POST, "/v1/admin/keys", Some(body)).await?;
    said(args.via.json, &answer, || text(&answer["key"]));
    eprintln!("Keep this API key: it is not shown again. Its id is {}.", text(&answer["id"]));
    Ok(())
}

/// The answer to a request, if it is 2xx.
async fn call(via: &ViaArgs, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
    if let Some(url) = &via.url {
        let node = NodeArgs { url: url.clone(), key: via.key.clone(), ca: via.ca.clone() };
        return client(&node)?.call(method, path, body.as_ref()).await.map_err(|error| match error {
            Error::Unreachable(reason) => anyhow!("cannot call the node at {url}: {reason}"),
            error => error.into(),
        });
    }
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).body(Body::from(body))?;
    let (status, body) = run_beside(via, request).await?;
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    if status.is_success() {
        return Ok(answer);
    }
    match answer["detail"].as_str() {
        Some(detail) => bail!("{detail} ({}, {})", text(&answer["code"]), status.as_u16()),
        None => bail!("the answer is {status}, and not from Latchgate"),
    }
}

async fn run_beside(via: &ViaArgs, request: Request<Body>) -> anyhow::Result<(StatusCode, Vec<u8>)> {
    // Only audit records.
    logs::start("off", LogFormat::Text, None)?;
    let joined = join(&via.store, TTL_MS_MAX, true).await;
    let engines =
        joined.context("cannot use the store; to call a node instead, set LATCHGATE_URL and LATCHGATE_KEY")?;
    let mut standing = engines.watch();
    if !matches!(timeout(PATIENCE, standing.wait_for(Option::is_some)).await, Ok(Ok(_))) {
        bail!("{}", engines.view().trouble.unwrap_or_else(|| "no engine is in use".to_owned()));
    }
    let store_clock = StoreClock::default();
    let sent = Instant::now();
    let used = engines.used()?;
    store_clock.learn(used.index, used.store.ping().await?, sent, Instant::now());
    let clock: Clock = Arc::new(move || store_clock.now().unwrap_or_default());
    let access = Access::once(engines, clock, FixedKeys::default()).await?;
    let response = beside_the_store(access, request).await;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes().to_vec()))
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
