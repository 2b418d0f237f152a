//! Limits of the gate's operations.

use clap::Args;
use latchgate_core::gate::RETENTION_MS_DEFAULT;

use super::{YEAR_MS, check_range};
use crate::http::OperationRequestLimits;

#[derive(Debug, Args)]
pub struct OperationArgs {
    /// Length of an operation's lease whose pre does not name one, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_DEFAULT", default_value_t = 60_000)]
    pub operation_lease_ms_default: u64,

    /// Shortest lease of an operation, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_MIN", default_value_t = 1_000)]
    pub operation_lease_ms_min: u64,

    /// Longest lease of an operation, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_OPERATION_LEASE_MS_MAX", default_value_t = 24 * 3_600_000)]
    pub operation_lease_ms_max: u64,

    /// How long a success is kept whose post does not say, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_RETENTION_MS_DEFAULT", default_value_t = RETENTION_MS_DEFAULT)]
    pub retention_ms_default: u64,

    /// Shortest time that a success is kept, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_RETENTION_MS_MIN", default_value_t = 1_000)]
    pub retention_ms_min: u64,

    /// Longest time that a success is kept, unless it is permanent, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_RETENTION_MS_MAX", default_value_t = YEAR_MS)]
    pub retention_ms_max: u64,

    /// Longest body of a request about operations, in bytes.
    #[arg(long, value_name = "BYTES", env = "LATCHGATE_OPERATION_BODY_BYTES_MAX", default_value_t = 131_072)]
    pub operation_body_bytes_max: usize,
}

impl OperationArgs {
    /// # Errors
    /// Names the flag that is out of range.
    pub fn check(&self) -> anyhow::Result<()> {
        let (min, default, max) =
            (self.operation_lease_ms_min, self.operation_lease_ms_default, self.operation_lease_ms_max);
        check_range("operation-lease-ms", min, default, max, 1)?;
        check_range("retention-ms", self.retention_ms_min, self.retention_ms_default, self.retention_ms_max, 100)
    }

    pub fn request_limits(&self) -> OperationRequestLimits {
        OperationRequestLimits {
            lease_ms_default: self.operation_lease_ms_default,
            lease_ms_min: self.operation_lease_ms_min,
            lease_ms_max: self.operation_lease_ms_max,
            retention_ms_default: self.retention_ms_default,
            retention_ms_min: self.retention_ms_min,
            retention_ms_max: self.retention_ms_max,
            body_bytes_max: self.operation_body_bytes_max,
        }
    }
}
