//! `latchgate engines switch` and `hold-off` with `--beside-store`: on the stores themselves, for use when no node runs.

use std::time::Duration;

use anyhow::{Context as _, bail};
use latchgate_core::App;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::progress::shown;
use crate::audit::{Actor, COMMAND, Entry};
use crate::config::BesideArgs;
use crate::engines::open::GateEngine;
use crate::engines::{Engine, Engines, EnginesOf, GateEngines, LockEngines, SwitchOrder};
use crate::gate::COMMAND_MAX;
use crate::observe::logs::{self, LogFormat};
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
    let detail = for_ms.map_or_else(|| "as long as the longest lease".to_owned(), |ms| format!("for_ms {ms}"));
    record("hold-off", of, &detail, ordered.is_ok());
    Ok(json!({ "hold_off_ms": ordered? }))
}

async fn order_hold_off(args: &BesideArgs, of: EnginesOf, for_ms: Option<u64>) -> anyhow::Result<u64> {
    if of == EnginesOf::Locks {
        return Ok(join(args).await?.order_hold_off(for_ms).await?);
    }
    let mut lasts_ms = 0;
    for engines in join_gate(args).await? {
        lasts_ms = engines.order_hold_off(for_ms).await?.max(lasts_ms);
    }
    Ok(lasts_ms)
}

/// Switches a pair of engines; returns the name of the one in use.
///
/// # Errors
/// When the switch is refused, or takes too long.
pub async fn switch(args: &BesideArgs, of: EnginesOf, order: &SwitchOrder) -> anyhow::Result<Value> {
    start_log()?;
    let switched = match of {
        EnginesOf::Locks => switch_engines(&join(args).await?, order).await,
        EnginesOf::Gate => {
            let gate = join_gate(args).await?.into_iter().next().context("the gate has no engine")?;
            switch_engines(&gate, order).await
        }
    };
    record("switch-engine", of, &order.to_string(), switched.is_ok());
    Ok(json!({ "active": switched? }))
}

async fn switch_engines<E: ?Sized + Engine>(engines: &Engines<E>, order: &SwitchOrder) -> anyhow::Result<String> {
    let copied = async || {
        let readings = engines.view().engines.into_iter().filter_map(|engine| engine.reading.ok());
        let copied = readings.map(|reading| reading.copied).max().filter(|copied| *copied > 0)?;
        Some(format!("{copied} states copied"))
    };
    shown(engines.switch(order, SWITCH_MAX), "switching", copied).await?;
    let used = engines.standing().and_then(|standing| engines.view().engines.into_iter().nth(standing.index));
    Ok(used.map_or_else(String::new, |engine| engine.name))
}

/// Logs the audit record of a command that was carried out beside the store.
fn record(action: &'static str, of: EnginesOf, detail: &str, is_done: bool) {
    let actor = Actor { app: Some(App::default()), from: Some(COMMAND.to_owned()), ..Actor::default() };
    let entry = Entry::begin(action, actor, of.as_str());
    entry.detail(detail);
    entry.end(if is_done { "done" } else { "refused" });
}

/// The engines of the locks, as a node would use them. Returns once they answer. Nothing is created.
async fn join(args: &BesideArgs) -> anyhow::Result<LockEngines> {
    let mut specs = Vec::new();
    for engine in args.store.engines(Duration::ZERO)? {
        specs.push(engine.spec(false).await?.0);
    }
    until_answered(LockEngines::join(specs, args.store.store_timeout, args.ttl_ms_max)).await
}

/// The engines of the gate, as [`join`], and those of durable operations if they have a store of their own.
async fn join_gate(args: &BesideArgs) -> anyhow::Result<Vec<GateEngines>> {
    let store = &args.store;
    let locks = store.engines(Duration::ZERO)?;
    let locks = locks.first().context("--locks names no store")?;
    let is_only = matches!(store.gate_engine()?, GateEngine::BesideTheLocks);
    let beside = serve::gate_beside(store, locks, is_only).await?;
    let gate = serve::open_gate(store, false, args.operation_lease_ms_max, beside).await?;
    let mut joined = Vec::new();
    for specs in [Some(gate.engines), gate.durable_engine.map(|spec| vec![spec])].into_iter().flatten() {
        joined.push(until_answered(GateEngines::join(specs, COMMAND_MAX, args.operation_lease_ms_max)).await?);
    }
    Ok(joined)
}

async fn until_answered<E: ?Sized + Engine>(engines: Engines<E>) -> anyhow::Result<Engines<E>> {
    let until = Instant::now() + OPEN_MAX;
    loop {
        let view = engines.view();
        if engines.standing().is_some() || view.engines.iter().any(|engine| engine.reading.is_ok()) {
            return Ok(engines);
        }
        if Instant::now() > until {
            bail!("{}", view.trouble.unwrap_or_else(|| "no engine answers".to_owned()));
        }
        sleep(OPEN_PAUSE).await;
    }
}
