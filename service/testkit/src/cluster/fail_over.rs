//! Fail-overs of Postgres with asynchronous replication: nothing is granted until the hold-off ends, and an operator can end it.
//! `chaos --on ha` has the fail-overs with synchronous replication, and everything else.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::ask::{self, Reply, get, post};
use super::command::{Cluster, Kind, Place, until};
use super::parts::{Parts, send};
use super::say;
use crate::chaos::{Watch, now_us, summary};

/// Patroni replaces a primary that does not answer after 20 s.
const RECOVERY_MAX_S: u64 = 120;
/// As long as the longest lease may.
const HOLD_OFF: Duration = Duration::from_secs(60);
const WITHIN: Duration = Duration::from_secs(10);

pub async fn run(place: &Place) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("latchgate-test-").tempdir()?;
    let place = place.within(dir.path(), &[("LATCHGATE_TTL_MAX", "60s")]);
    let failed_over = fail_over(&place, &Parts::new(dir.path().into(), false)).await;
    Cluster::down(&place).await?;
    failed_over?;
    say("nothing is granted while a lost lease may be live");
    Ok(())
}

async fn fail_over(place: &Place, clients: &Parts) -> anyhow::Result<()> {
    let cluster = Cluster::up(place, Kind::HaAsynchronous, None).await?;
    say("three servers with asynchronous replication are up; recording");
    let nginx = cluster.parts.url("nginx");
    let watch = Watch::start(clients, &nginx)?;
    let recovery = Duration::from_secs(RECOVERY_MAX_S);
    watch.until_as_before("the start", recovery, clients, async || Ok(())).await?;
    let (killed, killed_us) = (Instant::now(), now_us());
    kill_primary(&cluster).await?;
    until_holding_off(&cluster).await?;
    refused_in_hold_off(&nginx, "during-the-hold-off").await?;
    granted(&nginx, "after-the-hold-off").await?;
    ensure!(killed.elapsed() >= HOLD_OFF, "granted {:?} after the fault", killed.elapsed());
    watch.until_as_before("the hold-off", recovery, clients, async || Ok(())).await?;
    watch.stop(clients, &[]).await?;
    clients.stop_all().await;
    watch.declare_loss(killed_us);
    println!("{}", summary(&watch.check().await?));

    // Without load, because an operator who ends a hold-off takes the risk of two holders.
    let cluster = Cluster::up(place, Kind::HaAsynchronous, None).await?;
    kill_primary(&cluster).await?;
    until_holding_off(&cluster).await?;
    let shortened = post(&nginx, "/v1/admin/hold-off", &json!({ "for_ms": 30_000 }), WITHIN).await;
    let left = shortened.body["hold_off_ms"].as_u64().with_context(|| format!("{shortened:?}"))?;
    ensure!(left <= 30_000, "the hold-off was not shortened: {left}");
    refused_in_hold_off(&nginx, "refused").await?;
    let binary = place.binary.clone().unwrap_or_else(crate::node::binary);
    let mut end = tokio::process::Command::from(crate::node::command(binary));
    end.env_remove("LATCHGATE_NEW").args(["engines", "hold-off", "--beside-store", "--for", "0", "--locks"]);
    ask::run(end.arg(cluster.ha().node_urls("node-3").0)).await?;
    let grant = granted(&nginx, "ended-by-an-operator").await?;
    ensure!(grant["forced_ms"].as_u64() > Some(0), "the grant does not say that the hold-off was ended: {grant}");
    Ok(())
}

/// Postgres and its Patroni.
async fn kill_primary(cluster: &Cluster) -> anyhow::Result<()> {
    let n = cluster.ha().with_role("primary").await.context("there is no primary")?;
    let pids = cluster.parts.pid(&format!("patroni-{n}")).into_iter().chain(cluster.ha().postmaster(n));
    send(pids, Signal::SIGKILL);
    Ok(())
}

async fn until_holding_off(cluster: &Cluster) -> anyhow::Result<()> {
    let left = Cell::new(0);
    let holds_off = async || {
        let reply = get(&cluster.parts.url("node-1"), "/v1/admin/engines", WITHIN).await;
        left.set(reply.body["locks"]["hold_off_ms"].as_u64().unwrap_or(0));
        left.get() > 0
    };
    until("a hold-off", RECOVERY_MAX_S, holds_off).await?;
    say(&format!("a hold-off of {} ms", left.get()));
    Ok(())
}

async fn acquire(nginx: &str, key: &str) -> Reply {
    post(nginx, &format!("/v1/locks/{key}/acquire"), &json!({ "lease_id": format!("of-{key}") }), WITHIN).await
}

async fn granted(nginx: &str, key: &str) -> anyhow::Result<Value> {
    let grant = std::cell::RefCell::new(Value::Null);
    let is_granted = async || {
        let reply = acquire(nginx, key).await;
        *grant.borrow_mut() = reply.body;
        grant.borrow()["token"].is_number()
    };
    until(&format!("a grant of {key}"), RECOVERY_MAX_S, is_granted).await?;
    Ok(grant.into_inner())
}

/// A node that has not reached the new primary yet refuses for that reason. None grants.
async fn refused_in_hold_off(nginx: &str, key: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let reply = acquire(nginx, key).await;
        match reply.code() {
            "lock-delayed" => return Ok(()),
            "store-unavailable" if Instant::now() < deadline => {}
            _ => anyhow::bail!("not refused in a hold-off: {reply:?}"),
        }
    }
}
