//! Limits of leases, waits and queues, the collection of idle keys, and the history.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use latchgate_node::format::YEAR_MS;
use latchgate_node::http::TTL_MS_MIN;
use latchgate_node::locks::Limits;

use super::duration::{duration, duration_ms};
use super::positive;

const TTL_MS_DEFAULT: u64 = 30_000;
const DAY: Duration = Duration::from_secs(24 * 3_600);

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LockArgs {
    /// Length of a lease whose acquire does not name one [default: 30s, at most --ttl-max]
    #[arg(long = "ttl-default", value_name = "DURATION", value_parser = duration_ms)]
    pub ttl_ms_default: Option<u64>,

    /// Longest lease, and how long grants pause after a loss of the store
    #[arg(long = "ttl-max", value_name = "DURATION", default_value = "5m", value_parser = duration_ms)]
    pub ttl_ms_max: u64,

    /// Longest wait of one request. Keep it below the time-outs of proxies between clients and nodes
    #[arg(long = "wait-max", value_name = "DURATION", default_value = "50s", value_parser = duration)]
    pub wait_max: Duration,

    /// Most waiters for one key at this node
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    pub waiters_per_key: usize,

    /// How long a key's state is kept after its last lease has ended; at least 1m
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub idle_retention: Duration,

    /// How long events of locks are kept; 0 keeps and streams none. They are written in the commits
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration)]
    pub history_retention: Duration,

    /// Most event streams at once
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = positive)]
    pub watchers_max: usize,
}

impl LockArgs {
    /// # Errors
    /// Names the flag that is out of range.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((TTL_MS_MIN..=YEAR_MS).contains(&self.ttl_ms_max), "--ttl-max must be from 100ms to 365d");
        let default = self.ttl_ms_default();
        ensure!(
            (TTL_MS_MIN..=self.ttl_ms_max).contains(&default),
            "--ttl-default must be at least 100ms, and at most --ttl-max"
        );
        ensure!(self.wait_max <= DAY, "--wait-max must be at most 1d");
        Ok(())
    }

    pub fn ttl_ms_default(&self) -> u64 {
        self.ttl_ms_default.unwrap_or(TTL_MS_DEFAULT.min(self.ttl_ms_max))
    }

    pub fn runtime_limits(&self, store_timeout: Duration) -> Limits {
        Limits {
            waiters_per_key: self.waiters_per_key,
            ttl_ms_max: self.ttl_ms_max,
            store_timeout,
            idle_retention: self.idle_retention,
            history: !self.history_retention.is_zero(),
            watchers: self.watchers_max,
            history_retention: self.history_retention,
            ..Limits::default()
        }
    }
}
