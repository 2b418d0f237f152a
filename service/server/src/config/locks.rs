//! Limits of leases, waits and queues, and the collection of idle keys.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::history::HistoryArgs;
use super::{check_range, positive};
use crate::http::LockRequestLimits;
use crate::locks::Limits;

#[derive(Debug, Args)]
pub struct LockArgs {
    /// Length of a lease whose acquire does not name one, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_DEFAULT", default_value_t = 30_000)]
    pub ttl_ms_default: u64,

    /// Shortest lease, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_MIN", default_value_t = 100)]
    pub ttl_ms_min: u64,

    /// Longest lease, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TTL_MS_MAX", default_value_t = 3_600_000)]
    pub ttl_ms_max: u64,

    /// Longest wait of one request, in ms. Keep it below the time-outs of proxies between clients and nodes.
    #[arg(long, value_name = "MS", env = "LATCHGATE_WAIT_MS_MAX", default_value_t = 50_000)]
    pub wait_ms_max: u64,

    /// Longest `delay_ms`, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_DELAY_MS_MAX", default_value_t = 3_600_000)]
    pub delay_ms_max: u64,

    /// Longest `min_hold_ms`, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_MIN_HOLD_MS_MAX", default_value_t = 86_400_000)]
    pub min_hold_ms_max: u64,

    /// Longest `max_hold_ms`, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_MAX_HOLD_MS_MAX", default_value_t = 604_800_000)]
    pub max_hold_ms_max: u64,

    /// Most leases that one request renews or releases (`/v1/leases/`). Its body may be 1 KiB long for each.
    #[arg(long, value_name = "N", env = "LATCHGATE_LEASES_PER_CALL_MAX", default_value_t = 500, value_parser = positive)]
    pub leases_per_call_max: usize,

    /// How long a ticket is valid after its wait has ended, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TICKET_MS", default_value_t = 60_000)]
    pub ticket_ms: u64,

    /// How long the position of a client that has returned with a ticket stays reserved after its wait, in ms. Waiters behind
    /// it may wait that much longer.
    #[arg(long, value_name = "MS", env = "LATCHGATE_TICKET_HOLD_MS", default_value_t = 250)]
    pub ticket_hold_ms: u64,

    /// Most waiters for one key at this node.
    #[arg(long, value_name = "N", env = "LATCHGATE_WAITERS_PER_KEY", default_value_t = 10_000)]
    pub waiters_per_key: usize,

    /// Most waiters in each shard of this node.
    #[arg(long, value_name = "N", env = "LATCHGATE_WAITERS_PER_SHARD", default_value_t = 50_000)]
    pub waiters_per_shard: usize,

    /// Most calls in the queue of one shard. Acquires are refused when three quarters are taken.
    #[arg(long, value_name = "N", env = "LATCHGATE_CALLS_PER_SHARD", default_value_t = 8_192, value_parser = positive)]
    pub calls_per_shard: usize,

    /// States that each shard keeps in memory.
    #[arg(long, value_name = "N", env = "LATCHGATE_CACHED_KEYS_PER_SHARD", default_value_t = 20_000, value_parser = positive)]
    pub cached_keys_per_shard: usize,

    /// Longest that the states in each shard's memory may be together, in bytes.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_CACHED_BYTES_PER_SHARD", default_value_t = 64 << 20)]
    pub cached_bytes_per_shard: usize,

    /// How long the state of a key is kept after its last lease has ended, in ms; at least a minute.
    #[arg(long, value_name = "MS", env = "LATCHGATE_IDLE_RETENTION_MS", default_value_t = 3_600_000)]
    pub idle_retention_ms: u64,

    /// Time between two steps of the collection of idle keys, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_COLLECT_INTERVAL_MS", default_value_t = 1_000)]
    pub collect_interval_ms: u64,

    /// Rows that one step of the collection reads.
    #[arg(long, value_name = "N", env = "LATCHGATE_COLLECT_ROWS", default_value_t = 1_000, value_parser = positive)]
    pub collect_rows: usize,
}

impl LockArgs {
    /// # Errors
    /// Names the flag that is out of range.
    pub fn check(&self) -> anyhow::Result<()> {
        check_range("ttl-ms", self.ttl_ms_min, self.ttl_ms_default, self.ttl_ms_max, 1)?;
        ensure!(self.wait_ms_max <= 24 * 3_600_000, "--wait-ms-max must be at most a day (86400000)");
        ensure!(self.collect_interval_ms > 0, "--collect-interval-ms must be at least 1");
        Ok(())
    }

    pub fn request_limits(&self) -> LockRequestLimits {
        LockRequestLimits {
            ttl_ms_default: self.ttl_ms_default,
            ttl_ms_min: self.ttl_ms_min,
            ttl_ms_max: self.ttl_ms_max,
            wait_ms_max: self.wait_ms_max,
            delay_ms_max: self.delay_ms_max,
            min_hold_ms_max: self.min_hold_ms_max,
            leases_per_call_max: self.leases_per_call_max,
            max_hold_ms_max: self.max_hold_ms_max,
            ticket_ms: self.ticket_ms,
        }
    }

    pub fn idle_retention(&self) -> Duration {
        Duration::from_millis(self.idle_retention_ms)
    }

    pub fn runtime_limits(&self, shards: u16, store_timeout: Duration, history: &HistoryArgs) -> Limits {
        Limits {
            shards: usize::from(shards),
            calls_per_shard: self.calls_per_shard,
            waiters_per_key: self.waiters_per_key,
            waiters_per_shard: self.waiters_per_shard,
            cached_keys_per_shard: self.cached_keys_per_shard,
            cached_bytes_per_shard: self.cached_bytes_per_shard,
            ticket_hold: Duration::from_millis(self.ticket_hold_ms),
            ttl_ms_max: self.ttl_ms_max,
            store_timeout,
            idle_retention: self.idle_retention(),
            collect_interval: Duration::from_millis(self.collect_interval_ms),
            collect_rows: self.collect_rows,
            history: history.is_on(),
            watchers: history.watchers_max,
            watcher_lag: history.watcher_lag_max,
            history_retention: history.retention(),
        }
    }
}
