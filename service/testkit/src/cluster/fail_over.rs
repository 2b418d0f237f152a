//! Fail-overs of Postgres with asynchronous replication: nothing is granted until the hold-off ends, and an operator can end it.
//! `chaos --on ha` has the fail-overs with synchronous replication, and everything else.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::chaos::{Watch, now_us, summary};
use crate::tier::ask::{self, Reply, get};
use crate::tier::parts::send;
use crate::tier::{NODES, Tier, say};

/// Patroni replaces a primary that does not answer after 20 s.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// As long as the longest lease may.
const HOLD_OFF: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(100);

pub async fn run(tier: &Tier, binary: &Path) -> anyhow::Result<()> {
    say("three servers with asynchronous replication are up; recording");
    let watch = Watch::start(&tier.parts, &tier.url, true)?;
    let until_as_before = async |after| watch.until_as_before(after, RECOVERY_MAX, &tier.parts, async || Ok(())).await;
    until_as_before("the start").await?;
    let (killed, killed_us) = (Instant::now(), now_us());
    kill_primary(tier).await?;
    refused_in_hold_off(tier, "during-the-hold-off").await?;
    granted(tier, "after-the-hold-off").await?;
    ensure!(killed.elapsed() >= HOLD_OFF, "granted {:?} after the fault", killed.elapsed());
    until_as_before("the hold-off").await?;
    watch.stop(&tier.parts, &["recorder", "vanishing"]).await?;
    watch.declare_loss(killed_us);
    println!("{}", summary(&watch.check().await?));

    // Without load, because an operator who ends a hold-off takes the risk of two holders.
    tier.until_complete().await?;
    kill_primary(tier).await?;
    let shortened = tier.call("/v1/admin/hold-off", &json!({ "for_ms": 30_000 }), 10).await;
    let left = shortened.body["hold_off_ms"].as_u64().with_context(|| format!("{shortened:?}"))?;
    ensure!(left <= 30_000, "the hold-off was not shortened: {left}");
    refused_in_hold_off(tier, "refused").await?;
    let mut end = tokio::process::Command::from(crate::node::command(binary));
    end.env_remove("LATCHGATE_NEW").args(["engines", "hold-off", "--beside-store", "--for", "0", "--locks"]);
    ask::run(end.arg(tier.locks_url())).await?;
    let grant = granted(tier, "ended-by-an-operator").await?;
    ensure!(grant["forced_ms"].as_u64() > Some(0), "the grant does not say that the hold-off was ended: {grant}");
    say("nothing is granted while a lost lease may be live");
    Ok(())
}

/// Postgres and its Patroni. Returns when there is a hold-off.
async fn kill_primary(tier: &Tier) -> anyhow::Result<()> {
    let n = tier.with_role("primary").await.context("there is no primary")?;
    let patroni = format!("patroni-{n}");
    send(tier.parts.pid(&patroni).into_iter().chain(tier.postmaster(n)), Signal::SIGKILL);
    let deadline = Instant::now() + RECOVERY_MAX;
    loop {
        let engines = get(&tier.parts.url(NODES[0]), "/v1/admin/engines", Duration::from_secs(10)).await;
        match engines.body["locks"]["hold_off_ms"].as_u64() {
            Some(left @ 1..) => break say(&format!("a hold-off of {left} ms")),
            _ if Instant::now() > deadline => bail!("there is no hold-off: {engines:?}"),
            _ => sleep(POLL_EVERY).await,
        }
    }
    Ok(())
}

async fn acquire(tier: &Tier, key: &str) -> Reply {
    tier.call(&format!("/v1/locks/{key}/acquire"), &json!({ "lease_id": format!("of-{key}") }), 10).await
}

async fn granted(tier: &Tier, key: &str) -> anyhow::Result<Value> {
    let deadline = Instant::now() + RECOVERY_MAX;
    loop {
        let reply = acquire(tier, key).await;
        if reply.body["token"].is_number() {
            return Ok(reply.body);
        }
        ensure!(Instant::now() < deadline, "{key} is not granted: {reply:?}");
        sleep(POLL_EVERY).await;
    }
}

/// A node that has not reached the new primary yet refuses for that reason. None grants.
async fn refused_in_hold_off(tier: &Tier, key: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let reply = acquire(tier, key).await;
        match reply.body["code"].as_str() {
            Some("lock-delayed") => return Ok(()),
            Some("store-unavailable") if Instant::now() < deadline => sleep(POLL_EVERY).await,
            _ => bail!("not refused in a hold-off: {reply:?}"),
        }
    }
}
