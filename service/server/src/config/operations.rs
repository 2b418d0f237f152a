//! Limits of the gate's operations.

use anyhow::ensure;
use clap::Args;
use latchgate_node::format::YEAR_MS;
use latchgate_node::http::{OPERATION_TTL_MS_MIN, RETENTION_MS_MIN};

use super::duration::duration_ms;

#[derive(Debug, Args)]
pub struct OperationArgs {
    /// Longest lease of an operation, and how long the gate holds off after a loss of its store
    #[arg(long = "operation-ttl-max", value_name = "DURATION", default_value = "1h", value_parser = duration_ms)]
    pub operation_lease_ms_max: u64,

    /// How long a success is kept whose post does not say
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration_ms)]
    pub retention_default: u64,
}

impl OperationArgs {
    /// # Errors
    /// Names the flag that is out of range.
    pub fn check(&self) -> anyhow::Result<()> {
        let (ttl_ms, retention_ms) = (self.operation_lease_ms_max, self.retention_default);
        ensure!((OPERATION_TTL_MS_MIN..=YEAR_MS).contains(&ttl_ms), "--operation-ttl-max must be from 1s to 365d");
        ensure!((RETENTION_MS_MIN..=YEAR_MS).contains(&retention_ms), "--retention-default must be from 1s to 365d");
        Ok(())
    }
}
