//! Why a call did not do what was asked.

use std::fmt;

use serde_json::{Map, Value};

/// Why a call did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client could not get the lock: it is held, reserved or delayed, or the wait has ended. `holders` and `waiters` are among the fields.
    #[error("could not get the lock: {0}")]
    NotAcquired(Problem),

    /// The lease has ended before it was released: another client may have held the lock since.
    #[error(transparent)]
    LeaseLost(#[from] Loss),

    /// A higher token than this one has been granted or presented: refuse what its holder wants to do.
    #[error("{0}")]
    StaleToken(Problem),

    /// Another attempt does the operation.
    #[error("another attempt runs: {0}")]
    InProgress(Problem),

    /// Whether the operation was done is unknown: a person must find out.
    #[error("the outcome of an earlier attempt is unknown: {0}")]
    OutcomeUnknown(Problem),

    /// The attempt has lost the operation: another attempt may have done it.
    #[error("the attempt has lost the operation: {0}")]
    AttemptLost(Problem),

    /// The request is wrong, or the API key does not permit it, so to repeat it is of no use; or the app has used up a quota (status 429)
    /// for the whole of the wait.
    #[error("{0}")]
    Refused(Problem),

    /// No node has answered in time, or each one said that it cannot serve, or a gateway has answered in place of a node. An acquire without an answer was released again, as
    /// far as possible.
    #[error("no node serves the call: {0}")]
    Unreachable(String),

    /// A base URL or an API key has the wrong form, or an answer is not Latchgate's.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The problem that a node has answered with.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::NotAcquired(problem)
            | Self::StaleToken(problem)
            | Self::InProgress(problem)
            | Self::OutcomeUnknown(problem)
            | Self::AttemptLost(problem)
            | Self::Refused(problem) => Some(problem),
            Self::LeaseLost(_) | Self::Unreachable(_) | Self::Invalid(_) => None,
        }
    }

    /// The stable code of the problem, for example `lock-held`.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::LeaseLost(_) => Some("lease-lost"),
            error => error.problem().map(Problem::code),
        }
    }
}

/// An answer that does not let the client proceed (`application/problem+json`).
#[derive(Clone, Debug)]
pub struct Problem {
    status: u16,
    fields: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(status: u16, fields: Map<String, Value>) -> Self {
        Self { status, fields }
    }

    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The stable code, for example `lock-held`.
    #[must_use]
    pub fn code(&self) -> &str {
        self.text("code")
    }

    #[must_use]
    pub fn detail(&self) -> &str {
        self.text("detail")
    }

    /// Any field of the answer, for example `holders`.
    #[must_use]
    pub fn field(&self, name: &str) -> &Value {
        self.fields.get(name).unwrap_or(&Value::Null)
    }

    #[must_use]
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or_default()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail() {
            "" if self.code().is_empty() => {
                write!(
                    formatter,
                    "a gateway answers {}: it reaches no node, or not in time; the call may have been carried out",
                    self.status
                )
            }
            "" => write!(formatter, "the answer is {}, and not from Latchgate", self.status),
            detail => write!(formatter, "{detail} ({}, {})", self.code(), self.status),
        }
    }
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease is lost: {reason}")]
pub struct Loss {
    pub reason: LossReason,
    /// When, by the clock of the store, if a node has said so.
    pub at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// No renewal was answered in time. Only this client's clock says so: the lease may be live for a moment longer.
    NotRenewed,
    /// It was not renewed in time.
    Expired,
    /// Another holder of the lease id has released it.
    Released,
    /// An operator revoked the lock, and the time to finish is over.
    Revoked,
    /// An operator ended it.
    Forced,
    /// The lock has no record of the lease.
    Unknown,
}

impl fmt::Display for LossReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NotRenewed => "no renewal was answered in time",
            Self::Expired => "it expired",
            Self::Released => "it was released elsewhere",
            Self::Revoked => "the lock was revoked (its history says by whom, and why)",
            Self::Forced => "an operator ended it (the lock's history says who, and why)",
            Self::Unknown => "the lock has no record of it",
        })
    }
}

impl Loss {
    pub(crate) fn not_renewed() -> Self {
        Self { reason: LossReason::NotRenewed, at: None }
    }

    /// From a problem `lease-lost`, of one lock or of several.
    pub(crate) fn of(problem: &Problem) -> Self {
        let lost =
            problem.field("results").as_array().and_then(|leases| leases.iter().find(|lease| lease["why"].is_string()));
        let text = |name: &str| lost.map_or(problem.field(name), |lost| &lost[name]).as_str();
        let reason = match text("why") {
            Some("expired") => LossReason::Expired,
            Some("released") => LossReason::Released,
            Some("revoked") => LossReason::Revoked,
            Some("forced") => LossReason::Forced,
            _ => LossReason::Unknown,
        };
        Self { reason, at: text("at").map(str::to_owned) }
    }
}
