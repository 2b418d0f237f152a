//! Histories of locks as their clients recorded them, one line per call, and the check of such a history.
//!
//! `latchgate-testkit record` writes the lines. They contain only what a client can know.

mod check;
pub mod history;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use serde::{Deserialize, Serialize};

pub use check::{Report, Rule, Violation, check};

/// A call and its answer. The leases must be exclusive, not nested, and not ended by other clients: only then does a client know
/// until when it holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The calling client: one owner, with one call at a time.
    pub client: u64,
    pub verb: Verb,
    pub key: String,
    pub lease_id: String,
    /// The URL that it called.
    pub url: String,
    /// Both times are in µs by one monotonic clock of the process that recorded all clients.
    pub sent_us: u64,
    /// When the answer arrived or the call failed.
    pub received_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The error, if there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The remaining time of the lease in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Acquire,
    Renew,
    Release,
}

impl Call {
    /// The answer was 2xx.
    pub fn is_success(&self) -> bool {
        matches!(self.status, Some(200..300))
    }

    /// The call may or may not have been carried out: there was no answer, or one that does not say.
    pub fn is_outcome_unknown(&self) -> bool {
        match self.status {
            None => true,
            Some(500..) => {
                let code = self.code.as_deref().unwrap_or_default();
                !matches!(code, "overloaded" | "store-unavailable" | "shutting-down")
            }
            Some(_) => false,
        }
    }

    /// The answer said that the lease has ended.
    fn is_lost(&self) -> bool {
        matches!(self.status, Some(404 | 410))
    }
}

/// Reads the lines of a history. A line that cannot be read is an error: without it, the history would be incomplete.
pub fn read(lines: impl BufRead) -> io::Result<Vec<Call>> {
    let read = |(index, line): (usize, io::Result<String>)| {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", index + 1));
        serde_json::from_str(&line?).map_err(invalid)
    };
    lines.lines().enumerate().map(read).collect()
}
