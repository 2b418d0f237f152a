//! How long audit records are kept.

use std::time::Duration;

use clap::Args;

use super::positive;
use crate::audit::Retention;

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// How long audit records are kept, in ms; 90 days unless set.
    #[arg(long, value_name = "MS", env = "LATCHGATE_AUDIT_RETENTION_MS", default_value_t = 90 * 24 * 3_600_000)]
    pub audit_retention_ms: u64,

    /// Most audit records of each class: by operators, by apps, and failed authentications. The oldest are deleted first.
    #[arg(long, value_name = "N", env = "LATCHGATE_AUDIT_RECORDS_MAX", default_value_t = 20_000, value_parser = positive)]
    pub audit_records_max: usize,
}

impl AuditArgs {
    pub fn retention(&self) -> Retention {
        Retention { age: Duration::from_millis(self.audit_retention_ms), records_max: self.audit_records_max }
    }
}
