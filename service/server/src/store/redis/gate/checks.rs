//! What a server must be before a node trusts it with the gate.

use anyhow::{bail, ensure};

use crate::store::redis::checks::{Info, KEEPS_ALL};
use crate::store::redis::link::Link;

/// # Errors
/// When the server is older than 7.0, a replica, a node of a cluster, or evicts keys.
pub(super) async fn check(connection: &Link, allow_eviction: bool) -> anyhow::Result<()> {
    let info = Info::of(connection).await?;
    let version = info.field("redis_version");
    ensure!(info.is_recent(), "this Redis is {version}: the gate needs 7.0 or later, for SET with NX and GET");
    ensure!(info.field("role") != "slave", "this Redis is a replica: the gate writes");
    // A record and its app's suspects are written by one script, and would be in different slots.
    ensure!(info.field("cluster_enabled") != "1", "this Redis has cluster mode enabled: the gate needs a single Redis");
    let policy = info.field("maxmemory_policy");
    if policy != KEEPS_ALL {
        if !allow_eviction {
            bail!(
                "this Redis has maxmemory-policy {policy}: with its memory full it would forget operations and let \
                 them run twice. Set it to noeviction, or start with --allow-eviction"
            );
        }
        tracing::warn!(policy, "Redis may evict the gate's records: operations may then run twice");
    }
    if info.field("aof_enabled") == "0" {
        tracing::warn!("Redis has no append-only file: a restart forgets what has been done since its last snapshot");
    }
    Ok(())
}
