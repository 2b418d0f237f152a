//! `latchgate hold-off`: no new grants for a while, on all nodes.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::config::HoldOffArgs;
use crate::engines::LocksKind;
use crate::store::postgres::PostgresStore;
use crate::telemetry;

/// Every node asks for it each second, and has as long as this for the answer.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// # Errors
/// When it could not be begun, or it is not known whether it was.
pub async fn run(args: &HoldOffArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    ensure!(args.for_ms.is_none_or(|for_ms| for_ms <= YEAR_MS), "--for-ms must be at most a year");
    let engines = args.store.engines(Duration::ZERO)?;
    let [LocksKind::Postgres(config)] = engines.iter().map(|engine| &engine.kind).collect::<Vec<_>>()[..] else {
        bail!("hold-off is for locks in Postgres: --locks postgres://USER:PASSWORD@HOST/DATABASE");
    };
    let statements_end = Duration::from_millis(args.store.store_timeout_ms);
    let told = tokio::time::timeout(Duration::from_secs(10), PostgresStore::hold_off(config, args.for_ms));
    let lasts_ms = told.await.context("Postgres does not answer: repeat the call")??;
    // From now on every commit is checked against it; those that had begun before end in this time.
    tokio::time::sleep(KNOWN_WITHIN.max(statements_end)).await;
    if lasts_ms == 0 {
        println!("There is no hold-off: all nodes grant leases.");
    } else {
        println!("In force on all nodes: no new leases for {lasts_ms} ms from when this was called.");
    }
    Ok(())
}
