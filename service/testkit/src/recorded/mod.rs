//! Histories as clients recorded them, one JSON line per call, and the check of such a history against what Latchgate promises.
//!
//! `latchgate-testkit record` writes the lines, and scripts may add some. They contain only what clients and operators can know.

mod check;
mod command;
mod file;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use serde::{Deserialize, Serialize};

pub use check::{Options, Report, Rule, Violation, check, check_with};
pub use command::{Args, check_files, run};
pub use file::{History, read_file};

/// A call and its answer. A call for several keys has one line for each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// The calling client: one call at a time.
    pub client: u64,
    pub verb: Verb,
    /// The key of a lock, or the name of an operation. Empty: the line is about all keys.
    pub key: String,
    /// Of a lock's lease, or the attempt id of an operation.
    #[serde(skip_serializing_if = "is_default")]
    pub lease_id: String,
    #[serde(skip_serializing_if = "is_default")]
    pub owner: String,
    /// The URL that it called.
    #[serde(skip_serializing_if = "is_default")]
    pub url: String,
    /// Both times are in µs of the machine's monotonic clock.
    pub sent_us: u64,
    /// When the answer arrived or the call failed.
    pub received_us: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub asked: Asked,
    #[serde(skip_serializing_if = "is_default")]
    pub status: Option<u16>,
    /// The error, if there was no answer.
    #[serde(skip_serializing_if = "is_default")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub code: Option<String>,
    /// The answer says that other clients may have what it grants: another engine or an earlier run may have it.
    #[serde(skip_serializing_if = "is_default")]
    pub is_warned: bool,
    /// Why a lease has ended.
    #[serde(skip_serializing_if = "is_default")]
    pub why: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub token: Option<u64>,
    /// The remaining time of the lease in the answer.
    #[serde(skip_serializing_if = "is_default")]
    pub ttl_ms: Option<u64>,
    /// The end of the lease by the store's clock, in ms since 1970.
    #[serde(skip_serializing_if = "is_default")]
    pub expires_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub slots: Vec<u64>,
    /// The owners that a refusal or a look has named.
    #[serde(skip_serializing_if = "is_default")]
    pub holders: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub waiters: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub stamp: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub attempt: Option<u64>,
    /// What was posted for an operation, or stored for it.
    #[serde(skip_serializing_if = "is_default")]
    pub result: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub event: Option<Event>,
}

/// What a request asked for, as far as the check needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    #[serde(skip_serializing_if = "is_default")]
    pub mode: Mode,
    #[serde(skip_serializing_if = "is_default")]
    pub permits: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub limit: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub group: String,
    #[serde(skip_serializing_if = "is_default")]
    pub group_limit: u64,
    pub ttl_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub wait_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub priority: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub min_hold_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub delay_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub barge: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub ticket: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub reentrant: bool,
    /// The lock is one of several that were requested as one.
    #[serde(skip_serializing_if = "is_default")]
    pub multilock: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub grace_ms: u64,
    /// The outcome that a post reports, and for how long a success is kept.
    #[serde(skip_serializing_if = "is_default")]
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "is_default")]
    pub retention_ms: u64,
    /// No attempt begins after one that let its lease pass.
    #[serde(skip_serializing_if = "is_default")]
    pub blocks: bool,
}

/// What the reader of a stream received. Its number is the line's `client`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub id: String,
    /// That of the event, or one of the three below, which are about the stream.
    pub kind: String,
}

impl Event {
    /// Every event from here on is received.
    pub const OPENED: &str = "opened";
    /// Events may be missing or come again.
    pub const DROPPED: &str = "dropped";
    /// Every event of the calls before was received.
    pub const COMPLETE: &str = "complete";
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    #[default]
    Acquire,
    Renew,
    Release,
    /// Revokes all leases of a key.
    Revoke,
    /// Ends all leases of a key.
    Force,
    /// Closes a key, for `ttl_ms`.
    Close,
    Open,
    /// A resource presents a token: that of the lease, or an older one.
    Fence,
    Pre,
    Heartbeat,
    Post,
    /// Enters a run that had no claim.
    Enter,
    /// Deletes the record of an operation.
    Forget,
    /// Shows holders and waiters when the clients have ended.
    Look,
    Event,
    /// A store has lost data that it had acknowledged, of the time from `sent_us` to `received_us`.
    Lose,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Exclusive,
    Shared,
    Permits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    None,
    Success,
    Failure,
    Unknown,
}

/// How long a node that was paused may keep a request whose client has gone.
const PAUSED_US: u64 = 60_000_000;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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

    /// The call was carried out, or may have been.
    fn may_count(&self) -> bool {
        self.is_success() || self.is_outcome_unknown()
    }

    /// Until when it may be carried out.
    fn may_come_until_us(&self) -> u64 {
        self.received_us + if self.is_outcome_unknown() { PAUSED_US } else { 0 }
    }

    /// The answer said that the lease has ended.
    fn is_lost(&self) -> bool {
        matches!(self.verb, Verb::Acquire | Verb::Renew | Verb::Release) && matches!(self.status, Some(404 | 410))
    }

    fn is_about_a_lease(&self) -> bool {
        matches!(self.verb, Verb::Acquire | Verb::Renew | Verb::Release)
    }

    /// The lease in the answer ends at this time at the earliest: it is counted from the request.
    fn expires_us(&self) -> u64 {
        self.sent_us.saturating_add(self.ttl_ms.unwrap_or(0).saturating_mul(1_000))
    }

    fn code(&self) -> &str {
        self.code.as_deref().unwrap_or_default()
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
