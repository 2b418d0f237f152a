//! Limits of leases, waits and queues, and the collection of idle keys.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::duration::{duration, duration_ms, in_ms};
use super::history::HistoryArgs;
use super::{YEAR_MS, positive};
use crate::http::LockRequestLimits;
use crate::locks::Limits;

/// Shorter leases end before a client can renew them over a network.
const TTL_MS_MIN: u64 = 100;
const TTL_MS_DEFAULT: u64 = 30_000;
const DAY_MS: u64 = 24 * 3_600_000;
/// A lease can be followed by as long a delay as the longest lease lasts by default.
const DELAY_MS_MAX: u64 = 3_600_000;
const MIN_HOLD_MS_MAX: u64 = DAY_MS;
const MAX_HOLD_MS_MAX: u64 = 7 * DAY_MS;
/// With the body that it needs, 1 KiB each, a call stays within half a MiB.
const LEASES_PER_CALL_MAX: usize = 500;
/// How long a ticket is valid after its wait has ended.
const TICKET_MS: u64 = 60_000;

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LockArgs {
    /// Length of a lease whose acquire does not name one [default: 30s, at most --ttl-max]
    #[arg(long = "ttl-default", value_name = "DURATION", value_parser = duration_ms)]
    pub ttl_ms_default: Option<u64>,

    /// Longest lease
    #[arg(long = "ttl-max", value_name = "DURATION", default_value = "1h", value_parser = duration_ms)]
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
        ensure!(self.wait_max <= Duration::from_millis(DAY_MS), "--wait-max must be at most 1d");
        Ok(())
    }

    fn ttl_ms_default(&self) -> u64 {
        self.ttl_ms_default.unwrap_or(TTL_MS_DEFAULT.min(self.ttl_ms_max))
    }

    pub fn request_limits(&self) -> LockRequestLimits {
        LockRequestLimits {
            ttl_ms_default: self.ttl_ms_default(),
            ttl_ms_min: TTL_MS_MIN,
            ttl_ms_max: self.ttl_ms_max,
            wait_ms_max: in_ms(self.wait_max),
            delay_ms_max: DELAY_MS_MAX,
            min_hold_ms_max: MIN_HOLD_MS_MAX,
            leases_per_call_max: LEASES_PER_CALL_MAX,
            max_hold_ms_max: MAX_HOLD_MS_MAX,
            ticket_ms: TICKET_MS,
        }
    }

    pub fn runtime_limits(&self, shards: u16, store_timeout: Duration, history: &HistoryArgs) -> Limits {
        Limits {
            shards: usize::from(shards),
            waiters_per_key: self.waiters_per_key,
            ttl_ms_max: self.ttl_ms_max,
            store_timeout,
            idle_retention: self.idle_retention,
            history: history.is_on(),
            watchers: history.watchers_max,
            history_retention: history.history_retention,
            ..Limits::default()
        }
    }
}
