//! Checks of a server before a node uses it.

use anyhow::{Context, ensure};

use super::link::Link;
use super::url::NO_CLUSTER;
use crate::store::engine_record::Risk;

/// The answer of a server to `INFO`.
struct Info(String);

impl Info {
    async fn of(link: &Link) -> anyhow::Result<Self> {
        let info =
            link.send(&redis::cmd("INFO")).await.map_err(|failed| failed.error).context("cannot connect to Redis")?;
        Ok(Self(redis::from_redis_value(info)?))
    }

    fn field(&self, name: &str) -> &str {
        let lines = self.0.lines();
        let mut fields = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        fields.next().map(str::trim).unwrap_or_default()
    }

    fn is_recent(&self) -> bool {
        let major = self.field("redis_version").split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_some_and(|major| major >= 7)
    }
}

/// The setting with which a server evicts keys when its memory is full, if it does. A server that does not tell has been checked at
/// the start.
pub(in crate::store) async fn eviction(link: &Link, is_accepted: bool) -> Option<Risk> {
    let mut command = redis::cmd("INFO");
    command.arg("memory");
    let info = Info(redis::from_redis_value(link.send(&command).await.ok()?).ok()?);
    let policy = info.field("maxmemory_policy");
    let evicts = !policy.is_empty() && policy != KEEPS_ALL;
    evicts.then(|| Risk {
        what: format!("Redis has maxmemory-policy {policy}, and may forget what it has acknowledged"),
        is_accepted,
    })
}

/// The only policy that evicts nothing.
const KEEPS_ALL: &str = "noeviction";

/// # Errors
/// When the server is older than 7.0, is a replica or part of a Redis Cluster, or evicts keys.
pub(in crate::store) async fn check(link: &Link, allow_eviction: bool) -> anyhow::Result<()> {
    let info = Info::of(link).await?;
    ensure!(info.is_recent(), "this Redis is {}: Latchgate needs 7.0 or later", info.field("redis_version"));
    ensure!(info.field("role") != "slave", "this Redis is a replica: only a master can be written to");
    ensure!(info.field("cluster_enabled") != "1", "this Redis is part of a cluster. {NO_CLUSTER}");
    let policy = info.field("maxmemory_policy");
    if policy != KEEPS_ALL {
        ensure!(
            allow_eviction,
            "this Redis has maxmemory-policy {policy}: with its memory full it would forget locks that are held, and operations that \
             were done. Set it to noeviction, or start with --allow-eviction"
        );
        tracing::warn!(
            policy,
            "Redis may evict locks that are held and operations that were done: others may get them again"
        );
    }
    if info.field("aof_enabled") == "0" {
        tracing::warn!("Redis has no append-only file: a restart forgets all since its last snapshot");
    }
    Ok(())
}
