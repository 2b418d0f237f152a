//! `latchgate hold-off`: what `POST /v1/admin/hold-off` does, for an operator who cannot call a node.

use std::time::Duration;

use anyhow::{bail, ensure};
use tokio::time::{Instant, sleep};

use crate::config::{HoldOffArgs, StoreArgs, YEAR_MS};
use crate::engines::LockEngines;
use crate::telemetry;

/// Longest time for an engine to answer.
const OPEN_MAX: Duration = Duration::from_secs(10);
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// # Errors
/// When the store does not confirm the hold-off.
pub async fn run(args: &HoldOffArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log.filter, args.log.format)?;
    ensure!(args.for_ms.is_none_or(|for_ms| for_ms <= YEAR_MS), "--for-ms must be at most a year");
    let engines = join(&args.store, args.ttl_ms_max, false).await?;
    let lasts_ms = engines.order_hold_off(args.for_ms).await?;
    if lasts_ms == 0 {
        println!("No hold-off is in force: nodes grant leases.");
    } else {
        println!("The hold-off is in force: no node grants new leases for {lasts_ms} ms.");
    }
    Ok(())
}

/// The engines of the locks, as a node would use them. Returns once they answer.
pub(super) async fn join(args: &StoreArgs, ttl_ms_max: u64, migrate: bool) -> anyhow::Result<LockEngines> {
    let mut specs = Vec::new();
    for engine in args.engines(Duration::ZERO)? {
        specs.push(engine.spec(migrate).await?.0);
    }
    let engines = LockEngines::join(specs, Duration::from_millis(args.store_timeout_ms), ttl_ms_max);
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
