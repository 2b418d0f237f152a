//! The tasks of a node beside its committer.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use tokio::time::Instant;

use super::machine::Node;
use crate::engines::EngineInUse;
use crate::store::StoreError;

/// How often a store is asked for its clock that is up and takes no commits.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The interval between two probes of such a store.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Shortest time between two probes.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two reports of calls that fail while the store is up.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Ends the process if the committer panics: without it the node would refuse all calls until it is restarted.
pub(crate) fn exit_if_it_panics(committer: tokio::task::JoinHandle<()>) {
    tokio::spawn(async move {
        if let Err(error) = committer.await
            && error.is_panic()
        {
            tracing::error!(%error, "the committer has panicked: this process ends");
            std::process::exit(70);
        }
    });
}

/// Finds out whether the store is up: at intervals unless it takes commits anyway, at once when a call has failed, and all the time
/// while it is down.
pub(crate) async fn probe(node: Arc<Node>) {
    let health = &node.health;
    let mut reported: Option<Instant> = None;
    loop {
        let is_suspected = tokio::time::timeout(PING_EVERY, health.suspected()).await.is_ok();
        if !is_suspected && health.has_committed_within(PING_EVERY) {
            continue;
        }
        let suspicion = health.take_suspicion();
        let begun = Instant::now();
        let writes = is_suspected || !health.has_committed_within(PROBE_EVERY);
        let found = if writes { probe_once(&node).await } else { ping(&node).await };
        // At an idle node, too: a hold-off that began at its next call would come late.
        if let Err(error) = node.hold_off_after_jump().await {
            tracing::warn!(%error, "the hold-off after a jump of the store's clock has not begun");
        }
        let Err(why) = found else {
            if let Some(suspicion) = suspicion
                && reported.is_none_or(|at| at.elapsed() > REPORT_EVERY)
            {
                reported = Some(Instant::now());
                let store = node.store.name();
                tracing::warn!(store, reason = suspicion, "a call to the store failed, but the store is up");
            }
            // A store that fails some calls is not probed all the time.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // The probe was slow, or unlucky.
        if health.has_committed_since(begun) {
            continue;
        }
        tracing::warn!(store = node.store.name(), reason = why, "the store is down: no lock can be granted");
        health.set_down(why);
        let mut used = node.store.watch();
        while let Err(why) = probe_once(&node).await {
            if health.trouble().as_ref() != Some(&why) {
                tracing::debug!(store = node.store.name(), reason = why, "the store is still down");
                health.set_down(why);
            }
            // When a switch is complete, calls are served again at once.
            let _ = tokio::time::timeout(PAUSE, used.changed()).await;
        }
        tracing::info!(store = node.store.name(), "the store is up");
        health.take_suspicion();
        health.set_up();
    }
}

/// # Errors
/// Says why the store does not answer.
async fn ping(node: &Node) -> Result<(), String> {
    answer(node, |used| async move { used.store.ping().await }).await.map(|_| ())
}

/// # Errors
/// Says why no lock can be granted.
async fn probe_once(node: &Node) -> Result<(), String> {
    if answer(node, |used| async move { used.store.probe().await }).await? {
        node.health.probed();
    }
    Ok(())
}

/// Learns the store's time from a call. Returns `false` if other sessions are in its way, so the store takes commits.
async fn answer<F>(node: &Node, call: impl FnOnce(Arc<EngineInUse>) -> F) -> Result<bool, String>
where
    F: Future<Output = Result<Timestamp, StoreError>>,
{
    let sent = Instant::now();
    let used = node.store.in_use().map_err(|error| error.reason())?;
    let clock = used.clock();
    match tokio::time::timeout(node.limits.store_timeout, call(used)).await {
        Ok(Ok(shown)) => {
            node.clock.learn(clock, shown, sent, Instant::now());
            Ok(true)
        }
        Ok(Err(StoreError::Contended(_))) => Ok(false),
        Ok(Err(error)) => Err(error.reason()),
        Err(_) => Err("the store does not answer in time".to_owned()),
    }
}
