//! Checks of a server before a node uses it.

use anyhow::{anyhow, ensure};

use super::info::Info;
use super::link::Link;
use super::url::NO_CLUSTER;
use crate::store::engine_record::Risk;

/// The only policy that evicts nothing.
const KEEPS_ALL: &str = "noeviction";

/// The setting with which a server evicts keys when its memory is full, if it does. A server that does not tell has been checked at
/// the start.
pub(in crate::store) fn eviction(info: &Info, is_accepted: bool) -> Option<Risk> {
    let policy = info.field("maxmemory_policy");
    let evicts = !policy.is_empty() && policy != KEEPS_ALL;
    evicts.then(|| Risk {
        what: format!("Redis has maxmemory-policy {policy}, and may forget what it has acknowledged"),
        is_accepted,
    })
}

/// # Errors
/// When the server is older than 7.0, is a replica or part of a Redis Cluster, or evicts keys.
pub(in crate::store) async fn check(link: &Link, allow_eviction: bool) -> anyhow::Result<()> {
    let info =
        link.send(&redis::cmd("INFO")).await.map_err(|failed| anyhow!("cannot connect to Redis: {}", failed.error))?;
    let info = Info(redis::from_redis_value(info)?);
    refuse_old(&info)?;
    ensure!(info.field("cluster_enabled") != "1", "this Redis is part of a cluster. {NO_CLUSTER}");
    let policy = info.field("maxmemory_policy");
    // With --allow-eviction, the engine that reads the record warns of it.
    ensure!(
        policy == KEEPS_ALL || allow_eviction,
        "this Redis has maxmemory-policy {policy}: with its memory full it would forget locks that are held, and operations that \
         were done. Set it to noeviction, or start with --allow-eviction"
    );
    if info.field("aof_enabled") == "0" {
        tracing::warn!("Redis has no append-only file: a restart forgets all since its last snapshot");
    }
    Ok(())
}

/// Valkey and other relatives report the version of Redis that they are compatible with.
fn refuse_old(info: &Info) -> anyhow::Result<()> {
    let version = info.field("redis_version");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    ensure!(major.is_some_and(|major| major >= 7), "this Redis is {version}: Latchgate needs 7.0 or later");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_before_7_is_refused() {
        let of = |version: &str| refuse_old(&Info(format!("# Server\r\nredis_version:{version}\r\nrun_id:1\r\n")));
        for version in ["7.0.0", "7.2.4", "8.0.1", "10.0.0"] {
            of(version).unwrap();
        }
        for version in ["6.2.14", "2.8.0", "", "seven"] {
            let error = of(version).unwrap_err().to_string();
            assert!(error.contains(version) && error.contains("needs 7.0 or later"), "{error}");
        }
    }
}
