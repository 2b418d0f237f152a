//! What a server must be before a node trusts it with the gate.

use anyhow::{Context, bail, ensure};
use redis::aio::ConnectionManager;

/// # Errors
/// When the server is older than 7.0, a replica, a node of a cluster, or evicts keys.
pub(super) async fn check(connection: &mut ConnectionManager, allow_eviction: bool) -> anyhow::Result<()> {
    let info: String = redis::cmd("INFO").query_async(connection).await.context("cannot ask Redis for INFO")?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim).unwrap_or_default()
    };
    let major = field("redis_version").split('.').next().and_then(|major| major.parse::<u32>().ok());
    ensure!(
        major.is_some_and(|major| major >= 7),
        "this Redis is {}: the gate needs 7.0 or later, for SET with NX and GET",
        field("redis_version")
    );
    ensure!(field("role") != "slave", "this Redis is a replica: the gate writes");
    // A record and its app's suspects are written by one script, and would be in different slots.
    ensure!(field("cluster_enabled") != "1", "this Redis has cluster mode enabled: the gate needs a single Redis");
    let policy = field("maxmemory_policy");
    if policy != "noeviction" {
        if !allow_eviction {
            bail!(
                "this Redis has maxmemory-policy {policy}: with its memory full it would forget operations and let \
                 them run twice. Set it to noeviction, or start with --allow-eviction"
            );
        }
        tracing::warn!(policy, "Redis may evict the gate's records: operations may then run twice");
    }
    if field("aof_enabled") == "0" {
        tracing::warn!("Redis has no append-only file: a restart forgets what has been done since its last snapshot");
    }
    Ok(())
}
