//! Histories of locks as their clients saw them, one line per call; and what the lines alone tell of the locks.
//!
//! `latchgate-bench record` writes such lines. Whatever the service does, they are what its clients went by.

mod check;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use serde::{Deserialize, Serialize};

pub use check::{Report, Rule, Violation, check};

/// A call and its answer. Only of exclusive leases that are neither nested nor ended by others: of those a client knows by
/// itself until when it holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Who called: one logical owner, with one call at a time.
    pub client: u64,
    pub verb: Verb,
    pub key: String,
    pub lease_id: String,
    /// Whom it called.
    pub url: String,
    /// Both times by one monotonic clock of the process that recorded all clients, in µs.
    pub sent_us: u64,
    /// When the answer was there, or it was clear that none would come.
    pub received_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// What the answer says is left of the lease.
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
    pub fn is_go(&self) -> bool {
        matches!(self.status, Some(200..300))
    }

    /// It may have been carried out or not: there was no answer, or one that does not say.
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

    /// The answer said that the lease is no more.
    fn is_lost(&self) -> bool {
        matches!(self.status, Some(404 | 410))
    }
}

/// Reads the lines of a history. A line that is none is an error: without it, it is another history.
pub fn read(lines: impl BufRead) -> io::Result<Vec<Call>> {
    let read = |(index, line): (usize, io::Result<String>)| {
        let told = |error| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", index + 1));
        serde_json::from_str(&line?).map_err(told)
    };
    lines.lines().enumerate().map(read).collect()
}
