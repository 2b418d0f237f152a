//! `latchgate switch-engine`: what `POST /v1/admin/engines/locks` does, where no node is there to be asked.

use std::time::Duration;

use anyhow::{bail, ensure};
use tokio::time::{Instant, sleep};

use crate::config::SwitchEngineArgs;
use crate::store::engines::{EngineSet, SwitchFailure};
use crate::telemetry;

/// How long the engine is given to be opened.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// How long the move is waited for. If it takes longer, the nodes go on with it.
const MOVE_PATIENCE: Duration = Duration::from_secs(600);
/// As nodes keep them unless they are told otherwise.
const IDLE_RETENTION: Duration = Duration::from_secs(3_600);

/// # Errors
/// When it is not decided, or not done in time.
pub async fn run(args: &SwitchEngineArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    let engines = args.store.engines(Duration::ZERO)?;
    ensure!(engines.len() > 1, "--locks must name all engines of the set");
    let engines = engines.iter().map(|engine| engine.in_a_set(false)).collect();
    let set = EngineSet::join(engines, 1, args.store.engine_set(IDLE_RETENTION)).await?;
    let until = Instant::now() + OPEN_PATIENCE;
    loop {
        match set.switch(&args.engine, args.force, args.stopped, MOVE_PATIENCE).await {
            Ok(()) => break,
            Err(SwitchFailure::NoAnswer(_)) if Instant::now() < until => sleep(OPEN_PAUSE).await,
            Err(failure @ SwitchFailure::InDoubt(_)) => {
                bail!("{failure}: if it is stopped for good, say so with --stopped")
            }
            Err(failure) => bail!("{failure}"),
        }
    }
    let status = set.status();
    ensure!(!status.is_moving, "it is decided, but the locks are not moved yet: the nodes go on with it");
    println!("All nodes use {}. Nothing new is granted for {} ms yet.", status.active, status.hold_off_ms);
    Ok(())
}
