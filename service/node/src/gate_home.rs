//! In which store fast operations live: in one for all nodes, because in two, one would run twice. The gate's own store has an id, and the
//! store of the locks names it.

use std::time::Duration;

use anyhow::{Context as _, bail};
use thiserror::Error;
use tokio::time::sleep;

use crate::engines::EngineSet;
use crate::locks::Locks;
use crate::nodes;
use crate::store::documents::{GATE, GATE_ID};
use crate::store::random_number;

/// What the store of the locks says if there is no store of the gate's own.
const BESIDE_LOCKS: &str = "locks";
const OF_ITS_OWN: &str = "own:";
/// How often a node that runs looks whether the gate's store is still the one.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The same while no engine of the gate has served since the node's start.
const LOOK_UNTIL_SETTLED: Duration = Duration::from_secs(1);
/// Tries against other nodes that start.
const TRIES: usize = 4;

/// Operations live in another place than this node was told. Its words say what an operator can do.
#[derive(Debug, Error)]
#[error("{0}")]
struct Elsewhere(&'static str);

/// Where operations live, as the nodes have agreed; `None` if this is the first node that has a gate of its own.
///
/// # Errors
/// When other nodes keep them elsewhere, or have kept them there.
pub async fn agreed_home(locks: &EngineSet, has_own: bool) -> anyhow::Result<Option<String>> {
    let fresh = (!has_own).then_some(BESIDE_LOCKS);
    let home = locks.agreed(GATE, fresh).await?.text;
    if has_own {
        refuse_beside_locks(home.as_deref())?;
    } else if home.as_deref() != Some(BESIDE_LOCKS) {
        bail!("operations live in a store of their own: name it with --gate");
    }
    Ok(home)
}

fn refuse_beside_locks(home: Option<&str>) -> Result<(), Elsewhere> {
    let words = "operations live beside the locks, and are not moved to another store: start without --gate";
    if home == Some(BESIDE_LOCKS) { Err(Elsewhere(words)) } else { Ok(()) }
}

/// Makes sure that the gate's store is the one that the nodes have agreed on, and that it stays so. `is_vouched`: the operator says with
/// `--new` that it is, whatever its id.
///
/// # Errors
/// When it is another one.
pub async fn settle(locks: &Locks, gate: &EngineSet, is_vouched: bool) -> anyhow::Result<()> {
    // If no engine serves, no claim is made, and what an operator must call is this node.
    let mut is_settled = gate.in_use().is_ok();
    if is_settled {
        begin(locks, gate, is_vouched).await?;
    }
    let (locks, gate) = (locks.clone(), gate.clone());
    tokio::spawn(async move {
        let mut was_other = false;
        loop {
            sleep(if is_settled { LOOK_EVERY } else { LOOK_UNTIL_SETTLED }).await;
            if !is_settled {
                match begin(&locks, &gate, is_vouched).await {
                    Ok(()) => is_settled = true,
                    Err(error) if error.is::<Elsewhere>() => stop(&error.to_string()),
                    Err(error) => tracing::debug!(%error, "whether this is the store of the gate is not known yet"),
                }
                continue;
            }
            let is_other = look(locks.engines(), &gate).await.unwrap_or(false);
            // Twice: another node may be about to say where operations live.
            if is_other && was_other {
                stop("operations live in another store by now than this node's --gate");
            }
            was_other = is_other;
        }
    });
    Ok(())
}

/// Two stores let an operation run twice.
fn stop(why: &str) {
    tracing::error!(why, "this node stops");
    std::process::exit(1);
}

async fn begin(locks: &Locks, gate: &EngineSet, is_vouched: bool) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let said = locks.engines().agreed(GATE, None).await?;
        let used = gate.in_use()?;
        let id = gate.agreed(GATE_ID, None).await?.text;
        if said.text.is_some() && said.text == id.as_deref().map(named) {
            return Ok(());
        }
        // Another node may have started without a gate since.
        refuse_beside_locks(said.text.as_deref())?;
        if said.text.is_some() {
            if nodes::any_has_gate(locks).await {
                let words = "the nodes that run keep operations in another store, or this one has just lost everything";
                bail!(Elsewhere(words));
            }
            let is_lost = id.is_none() && used.store.may_forget();
            if !is_lost && !is_vouched {
                let words = "operations were kept in another store: if they are to live in this one from now on, start with --new";
                bail!(Elsewhere(words));
            }
            // It may have begun with a hold-off that is over by now.
            if !is_vouched {
                gate.order_hold_off(None).await?;
            }
        }
        let fresh = format!("{:016x}", random_number());
        let id = gate.agreed(GATE_ID, Some(&fresh)).await?.text.context("the gate's store keeps no id")?;
        let used = locks.engines().in_use()?;
        let next = (random_number(), &*named(&id));
        used.store.write_document(GATE, said.version, next, None).await?;
    }
    bail!("the nodes do not agree on where operations live")
}

/// Whether operations live in another store by now. A store that has lost everything since this node was settled is told again what was
/// agreed on.
async fn look(locks: &EngineSet, gate: &EngineSet) -> anyhow::Result<bool> {
    let id = gate.agreed(GATE_ID, None).await?.text;
    let home = locks.agreed(GATE, id.as_deref().map(named).as_deref()).await?.text;
    let known = home.as_deref().and_then(|home| home.strip_prefix(OF_ITS_OWN));
    if let (None, Some(known)) = (&id, known) {
        gate.agreed(GATE_ID, Some(known)).await?;
        return Ok(false);
    }
    Ok(home.is_some() && known != id.as_deref())
}

fn named(id: &str) -> String {
    format!("{OF_ITS_OWN}{id}")
}
