//! `latchgate switch-engine`: what `POST /v1/admin/engines/locks` does, for use when no node can be called.

use std::time::Duration;

use super::hold_off::{join, record};
use super::progress::shown;
use crate::audit::Action;
use crate::config::SwitchEngineArgs;
use crate::engines::SwitchOrder;
use crate::observe::logs;

/// Longest time that the command waits for the switch. After that, the nodes complete it.
const PATIENCE: Duration = Duration::from_secs(600);

/// # Errors
/// When the switch is refused, or takes too long.
pub async fn run(args: &SwitchEngineArgs) -> anyhow::Result<()> {
    logs::start(&args.log.filter, args.log.format, None)?;
    let engines = join(&args.store, args.ttl_ms_max, false).await?;
    let order = SwitchOrder { to: args.engine.clone(), is_stopped: args.stopped, force: args.force };
    let copied = async || {
        let readings = engines.view().engines.into_iter().filter_map(|engine| engine.reading.ok());
        let copied = readings.map(|reading| reading.copied).max().filter(|copied| *copied > 0)?;
        Some(format!("{copied} states copied"))
    };
    let switched = shown(engines.switch(&order, PATIENCE), "switching", copied).await;
    let to = order.to.as_deref().unwrap_or("the other one");
    let detail = format!("engine: {to}, stopped: {}, force: {}", order.is_stopped, order.force);
    record(Action::SwitchEngine, "locks", &detail, switched.is_ok());
    switched?;
    let used = engines.standing().and_then(|standing| engines.view().engines.into_iter().nth(standing.index));
    println!("The nodes use {} from now on.", used.map_or_else(String::new, |engine| engine.name));
    Ok(())
}
