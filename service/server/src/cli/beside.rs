//! `latchgate engines switch` and `hold-off` with `--beside-store`: on the stores themselves, for use when no node runs.

use std::time::Duration;

use anyhow::bail;
use latchgate_core::App;
use latchgate_node::audit::{Actor, COMMAND, Entry};
use latchgate_node::engines::{EngineSet, EnginesOf, SwitchOrder};
use latchgate_node::format::lasting;
use latchgate_node::observe::logs::{self, LogFormat};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::progress::with_progress;
use crate::config::BesideArgs;
use crate::serve;

/// Longest time for an engine to answer.
const OPEN_MAX: Duration = Duration::from_secs(10);
const OPEN_PAUSE: Duration = Duration::from_millis(50);
/// Longest time that the command waits for a switch. After that, the nodes complete it.
const SWITCH_MAX: Duration = Duration::from_secs(600);

/// Logs audit records and what is wrong.
///
/// # Errors
/// When a log was started before.
fn start_log() -> anyhow::Result<()> {
    logs::start("warn", LogFormat::Text, None)
}

/// Begins, shortens or ends a hold-off; returns how long it lasts.
///
/// # Errors
/// When the store does not confirm it.
pub async fn hold_off(args: &BesideArgs, of: EnginesOf, for_ms: Option<u64>) -> anyhow::Result<Value> {
    start_log()?;
    let ordered = order_hold_off(args, of, for_ms).await;
    let detail = for_ms.map_or_else(|| "as long as the longest lease".to_owned(), |ms| format!("for {}", lasting(ms)));
    record("hold-off", of, &detail, ordered.is_ok());
    Ok(json!({ "hold_off_ms": ordered? }))
}

async fn order_hold_off(args: &BesideArgs, of: EnginesOf, for_ms: Option<u64>) -> anyhow::Result<u64> {
    let (locks_ms, gate_ms) = join(args, of).await?.order_hold_off(for_ms).await?;
    Ok(if of == EnginesOf::Gate { gate_ms } else { locks_ms })
}

/// Switches a pair of engines; returns the name of the one in use.
///
/// # Errors
/// When the switch is refused, or takes too long.
pub async fn switch(args: &BesideArgs, of: EnginesOf, order: &SwitchOrder) -> anyhow::Result<Value> {
    start_log()?;
    let switched = switch_engines(&join(args, of).await?, order).await;
    record("switch-engine", of, &order.to_string(), switched.is_ok());
    Ok(json!({ "active": switched? }))
}

async fn switch_engines(engines: &EngineSet, order: &SwitchOrder) -> anyhow::Result<String> {
    let copied = async || {
        let readings = engines.view().engines.into_iter().filter_map(|engine| engine.reading.ok());
        let copied = readings.map(|reading| reading.copied).max().filter(|copied| *copied > 0)?;
        Some(format!("{copied} states copied"))
    };
    with_progress(engines.switch(order, SWITCH_MAX), "switching", copied).await?;
    let used = engines.in_use().ok().and_then(|used| engines.view().engines.into_iter().nth(used.index));
    Ok(used.map_or_else(String::new, |engine| engine.name))
}

/// Logs the audit record of a command that was carried out beside the store.
fn record(action: &'static str, of: EnginesOf, detail: &str, is_done: bool) {
    let actor = Actor { app: Some(App::default()), from: Some(COMMAND.to_owned()), ..Actor::default() };
    let entry = Entry::begin(action, actor, of.as_str());
    entry.detail(detail);
    entry.end(if is_done { "done" } else { "refused" });
}

/// The engines, as a node would use them. Returns once they answer. Nothing is created.
async fn join(args: &BesideArgs, of: EnginesOf) -> anyhow::Result<EngineSet> {
    let own = if of == EnginesOf::Gate { args.store.gate_engines()? } else { Vec::new() };
    let (engines, ttl_ms_max) = match own.is_empty() {
        true => (args.store.engines(Duration::ZERO)?, args.ttl_ms_max),
        false => (own, args.operation_lease_ms_max),
    };
    let specs = serve::specs(&engines, false).await?;
    until_answered(EngineSet::join(specs, args.store.store_timeout, ttl_ms_max)).await
}

async fn until_answered(engines: EngineSet) -> anyhow::Result<EngineSet> {
    let until = Instant::now() + OPEN_MAX;
    loop {
        let view = engines.view();
        if engines.in_use().is_ok() || view.engines.iter().any(|engine| engine.reading.is_ok()) {
            return Ok(engines);
        }
        if Instant::now() > until {
            bail!("{}", view.trouble.unwrap_or_else(|| "no engine answers".to_owned()));
        }
        sleep(OPEN_PAUSE).await;
    }
}
