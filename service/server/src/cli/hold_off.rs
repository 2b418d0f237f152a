//! `latchgate hold-off`: what `POST /v1/admin/hold-off` does, for use when no node can be called.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use latchgate_core::App;
use tokio::time::{Instant, sleep};

use crate::audit::{Action, Actor, COMMAND, Entry};
use crate::config::{HoldOffArgs, HoldOffOf, StoreArgs, YEAR_MS};
use crate::engines::open::GateEngine;
use crate::engines::{Engine, Engines, GateEngines, LockEngines};
use crate::observe::logs;
use crate::serve;

/// Longest time for an engine to answer.
const OPEN_MAX: Duration = Duration::from_secs(10);
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// # Errors
/// When the store does not confirm the hold-off.
pub async fn run(args: &HoldOffArgs) -> anyhow::Result<()> {
    logs::start(&args.log.filter, args.log.format, None)?;
    ensure!(args.for_ms.is_none_or(|for_ms| for_ms <= YEAR_MS), "--for-ms must be at most a year");
    match args.of {
        HoldOffOf::Locks => {
            let engines = join(&args.store, args.ttl_ms_max, false).await?;
            let ordered = engines.order_hold_off(args.for_ms).await;
            record(Action::HoldOff, "locks", &shown(args.for_ms), ordered.is_ok());
            let lasts_ms = ordered?;
            if lasts_ms == 0 {
                println!("No hold-off is in force: nodes grant leases.");
            } else {
                println!("The hold-off is in force: no node grants new leases for {lasts_ms} ms.");
            }
        }
        HoldOffOf::Gate => {
            let ordered = of_gate(args).await;
            record(Action::HoldOff, "gate", &shown(args.for_ms), ordered.is_ok());
            let lasts_ms = ordered?;
            if lasts_ms == 0 {
                println!("No hold-off of the gate is in force: operations without a record go.");
            } else {
                println!(
                    "The hold-off of the gate is in force: for {lasts_ms} ms, operations without a record go only if they may \
                     be repeated."
                );
            }
        }
    }
    Ok(())
}

fn shown(for_ms: Option<u64>) -> String {
    for_ms.map_or_else(|| "as long as the longest lease".to_owned(), |ms| format!("for_ms {ms}"))
}

/// Logs the audit record of a command that was carried out beside the store.
pub(super) fn record(action: Action, resource: &str, detail: &str, is_done: bool) {
    let actor = Actor { app: Some(App::default()), from: Some(COMMAND.to_owned()), ..Actor::default() };
    let entry = Entry::begin(action, actor, resource);
    entry.detail(detail);
    entry.end(if is_done { "done" } else { "refused" });
}

/// The engines of the locks, as a node would use them. Returns once they answer.
pub(super) async fn join(args: &StoreArgs, ttl_ms_max: u64, migrate: bool) -> anyhow::Result<LockEngines> {
    let mut specs = Vec::new();
    for engine in args.engines(Duration::ZERO)? {
        specs.push(engine.spec(migrate).await?.0);
    }
    until_answered(LockEngines::join(specs, Duration::from_millis(args.store_timeout_ms), ttl_ms_max)).await
}

async fn of_gate(args: &HoldOffArgs) -> anyhow::Result<u64> {
    let mut lasts_ms = 0;
    for engines in join_gate(&args.store, args.operation_lease_ms_max).await? {
        lasts_ms = engines.order_hold_off(args.for_ms).await?.max(lasts_ms);
    }
    Ok(lasts_ms)
}

/// The engines of the gate, as [`join`], and those of durable operations if they have a store of their own.
pub(super) async fn join_gate(args: &StoreArgs, lease_ms_max: u64) -> anyhow::Result<Vec<GateEngines>> {
    let locks = args.engines(Duration::ZERO)?;
    let locks = locks.first().context("--locks names no store")?;
    let is_only = matches!(args.gate_engine()?, GateEngine::BesideTheLocks);
    let beside = serve::gate_beside(args, locks, is_only).await?;
    let gate = serve::open_gate(args, false, lease_ms_max, beside).await?;
    let mut joined = Vec::new();
    for specs in [Some(gate.engines), gate.durable_engine.map(|spec| vec![spec])].into_iter().flatten() {
        let patience = Duration::from_millis(args.gate_timeout_ms);
        joined.push(until_answered(GateEngines::join(specs, patience, lease_ms_max)).await?);
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
