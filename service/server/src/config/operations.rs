//! Limits of the gate's operations.

use anyhow::ensure;
use clap::Args;

use super::YEAR_MS;
use super::duration::duration_ms;
use crate::http::OperationRequestLimits;

/// Shorter leases end before a worker can send a heartbeat over a network.
const LEASE_MS_MIN: u64 = 1_000;
const LEASE_MS_DEFAULT: u64 = 60_000;
/// A success that is forgotten sooner keeps no repetition away.
const RETENTION_MS_MIN: u64 = 1_000;

#[derive(Debug, Args)]
pub struct OperationArgs {
    /// Longest lease of an operation
    #[arg(long = "operation-ttl-max", value_name = "DURATION", default_value = "1d", value_parser = duration_ms)]
    pub operation_lease_ms_max: u64,

    /// How long a success is kept whose post does not say
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration_ms)]
    pub retention_default: u64,
}

impl OperationArgs {
    /// # Errors
    /// Names the flag that is out of range.
    pub fn check(&self) -> anyhow::Result<()> {
        let range = LEASE_MS_MIN..=YEAR_MS;
        ensure!(range.contains(&self.operation_lease_ms_max), "--operation-ttl-max must be from 1s to 365d");
        ensure!(range.contains(&self.retention_default), "--retention-default must be from 1s to 365d");
        Ok(())
    }

    /// `body_bytes_max` is that of requests about locks.
    pub fn request_limits(&self, body_bytes_max: usize) -> OperationRequestLimits {
        OperationRequestLimits {
            lease_ms_default: LEASE_MS_DEFAULT.min(self.operation_lease_ms_max),
            lease_ms_min: LEASE_MS_MIN,
            lease_ms_max: self.operation_lease_ms_max,
            retention_ms_default: self.retention_default,
            retention_ms_min: RETENTION_MS_MIN,
            retention_ms_max: YEAR_MS,
            body_bytes_max: body_bytes_max.saturating_mul(2),
        }
    }
}
