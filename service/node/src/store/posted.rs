//! What a caller has posted within a transaction of its own: see `post` in the migrations. It is applied whenever the record is read.

use std::sync::Arc;

use latchgate_core::Timestamp;
use latchgate_core::gate::{Command, OperationRecord, Post, Report, Retention, Stamp, check_result, step};
use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct Posted {
    stamp: Stamp,
    report: Report,
    result: Option<Arc<str>>,
    retention_ms: Option<u64>,
    at: Timestamp,
}

impl Posted {
    /// The record after the report.
    pub(crate) fn applied_to(self, record: OperationRecord) -> OperationRecord {
        let Self { stamp, report, result, retention_ms, at } = self;
        // Postgres takes some JSON that not every reader can read.
        let is_kept = result.as_ref().is_none_or(|result| check_result("result", result.as_bytes()).is_ok());
        let (result, retention) = (result.filter(|_| is_kept), retention_ms.map(Retention::Ms));
        let post = Post { result, result_omitted: !is_kept, retention, ..Post::new(stamp, report) };
        step(Some(record.clone()), Command::Post(post), at).record.unwrap_or(record)
    }
}
