//! In which store fast operations live: in one for all nodes, because in two, one would run twice. The gate's own store has an id, and the
//! store of the locks names it.

use std::time::Duration;

use anyhow::{Context as _, bail};
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
/// Tries against other nodes that start.
const TRIES: usize = 4;

/// Where operations live, as the nodes have agreed; `None` if this is the first node that has a gate of its own.
///
/// # Errors
/// When other nodes keep them elsewhere, or have kept them there.
pub(crate) async fn agreed_home(locks: &EngineSet, has_own: bool) -> anyhow::Result<Option<String>> {
    let fresh = (!has_own).then_some(BESIDE_LOCKS);
    let home = locks.agreed(GATE, fresh).await?.text;
    match home.as_deref() {
        Some(BESIDE_LOCKS) if has_own => {
            bail!("operations live beside the locks, and are not moved to another store: start without --gate")
        }
        Some(own) if !has_own && own != BESIDE_LOCKS => {
            bail!("operations live in a store of their own: name it with --gate")
        }
        _ => Ok(home),
    }
}

/// Makes sure that the gate's store is the one that the nodes have agreed on, and that it stays so. `is_vouched`: the operator says with
/// `--new` that it is, whatever its id.
///
/// # Errors
/// When it is another one.
pub(crate) async fn settle(locks: &Locks, gate: &EngineSet, is_vouched: bool) -> anyhow::Result<()> {
    // Nobody claims where no engine serves; the first look after that compares.
    if gate.standing().is_some() {
        begin(locks, gate, is_vouched).await?;
    }
    let (locks, gate) = (locks.clone(), gate.clone());
    tokio::spawn(async move {
        let mut was_other = false;
        loop {
            sleep(LOOK_EVERY).await;
            let is_other = look(locks.engines(), &gate).await.unwrap_or(false);
            // Twice: another node may be about to say where operations live.
            if is_other && was_other {
                tracing::error!("operations live in another store by now than this node's --gate: it stops");
                std::process::exit(1);
            }
            was_other = is_other;
        }
    });
    Ok(())
}

async fn begin(locks: &Locks, gate: &EngineSet, is_vouched: bool) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let said = locks.engines().agreed(GATE, None).await?;
        let id = gate.agreed(GATE_ID, None).await?.text;
        if said.text.is_some() && said.text == id.as_deref().map(named) {
            return Ok(());
        }
        if said.text.is_some() {
            if nodes::any_has_gate(locks).await {
                bail!("the nodes that run keep operations in another store, or this one has just lost everything");
            }
            let is_lost = id.is_none() && gate.used()?.store.may_forget();
            if !is_lost && !is_vouched {
                bail!(
                    "operations were kept in another store: if they are to live in this one from now on, start with --new"
                );
            }
            // It may have begun with a hold-off that is over by now.
            if !is_vouched {
                gate.order_hold_off(None).await?;
            }
        }
        let fresh = format!("{:016x}", random_number());
        let id = gate.agreed(GATE_ID, Some(&fresh)).await?.text.context("the gate's store keeps no id")?;
        let used = locks.engines().used()?;
        let next = (random_number(), &*named(&id));
        used.store.write_document(GATE, said.version, next, None).await?;
    }
    bail!("the nodes do not agree on where operations live")
}

/// Whether operations live in another store by now. One that has lost everything while this node runs gets its id again.
async fn look(locks: &EngineSet, gate: &EngineSet) -> anyhow::Result<bool> {
    let said = locks.agreed(GATE, None).await?.text;
    let Some(known) = said.as_deref().and_then(|said| said.strip_prefix(OF_ITS_OWN)) else { return Ok(false) };
    Ok(gate.agreed(GATE_ID, Some(known)).await?.text.is_some_and(|id| id != known))
}

fn named(id: &str) -> String {
    format!("{OF_ITS_OWN}{id}")
}
