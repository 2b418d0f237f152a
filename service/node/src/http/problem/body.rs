//! The body of a problem: `application/problem+json` (RFC 9457).

use std::fmt::Display;
use std::ops::RangeInclusive;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use latchgate_core::Key;
use latchgate_core::access::ChangeRefused;
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::{RawValue, to_raw_value};

use super::{Code, CodeInfo};
use crate::access::ChangeFailure;
use crate::access::operator::OrderRefused;
use crate::access::quota::Excess;
use crate::failure::Failure;
use crate::format::{lasting, ms};
use crate::http::answer::json_line;
use crate::store::StoreError;

/// The value of a field, if it is in the range.
///
/// # Errors
/// `invalid-request`
pub fn within<T: PartialOrd + Display>(field: &str, value: T, range: RangeInclusive<T>) -> Result<T, Problem> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = (range.start(), range.end().to_string());
    let longest = max.parse().ok().filter(|_| field.ends_with("_ms"));
    let in_words = longest.map(|ms| format!(" ({})", lasting(ms))).unwrap_or_default();
    Err(Problem::field(field, format!("must be from {min} to {max}{in_words}")))
}

/// One of several results in an answer: what has succeeded, or the problem.
pub fn either<T: Serialize>(result: &Result<T, Problem>) -> Option<Box<RawValue>> {
    result.as_ref().map_or_else(to_raw_value, to_raw_value).ok()
}

/// An answer that does not let the client proceed.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    fields: Vec<(&'static str, Box<RawValue>)>,
    retry_after_ms: Option<u64>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), fields: Vec::new(), retry_after_ms: None }
    }

    /// A field of the request is wrong; `rule` says what it must be.
    pub fn field(field: &str, rule: impl Display) -> Self {
        Self::new(Code::InvalidRequest, format!("{field} {rule}")).with("field", field)
    }

    /// For outcomes that the request cannot have.
    pub fn defect() -> Self {
        Self::new(Code::InternalError, "This request has hit a defect in Latchgate.")
    }

    /// With a field, unless it has one of this name.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        // As raw text, the fields keep their order.
        if !self.fields.iter().any(|(known, _)| *known == name)
            && let Ok(value) = to_raw_value(&value)
        {
            self.fields.push((name, value));
        }
        self
    }

    /// As [`with`](Self::with); the field is absent if there is no value.
    #[must_use]
    pub fn with_some(self, name: &'static str, value: Option<impl Serialize>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    /// How much a client must know of it, if a request has several problems: a refusal more than a failure, an unknown
    /// outcome more than another failure, and that of the store more than that of the node.
    pub fn severity(&self) -> u8 {
        match self.code {
            Code::OutcomeUnknown => 2,
            Code::StoreUnavailable => 1,
            _ if self.is_transient() => 0,
            Code::LeaseLost => 4,
            _ => 3,
        }
    }

    /// The problem of a wrong field in an item of a list: `prefix` is where the item is in the body. Such a detail begins with the field.
    #[must_use]
    pub fn in_item(&self, prefix: &str) -> Self {
        let field = self.fields.iter().find(|(name, _)| *name == "field");
        let field = field.and_then(|(_, value)| serde_json::from_str::<String>(value.get()).ok());
        let problem = Self::new(self.code, format!("{prefix}{}", self.detail));
        problem.with_some("field", field.map(|field| format!("{prefix}{field}")))
    }

    /// The same problem as the answer to a request for many things.
    #[must_use]
    pub fn of_many(&self, detail: String) -> Self {
        Self { retry_after_ms: self.retry_after_ms, ..Self::new(self.code, detail) }
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether the node or its store is the reason, so that the same request may pass later.
    pub fn is_transient(&self) -> bool {
        self.code.info().status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// The answer to a call that failed.
    pub fn of_failure(failure: &Failure) -> Self {
        let retry_later = |code, detail: &str| Self::new(code, detail).retry_after_ms(1_000);
        match failure {
            Failure::Overloaded(what) => retry_later(Code::Overloaded, what),
            // The reason may name hosts or files, so it only goes to the log.
            Failure::StoreUnavailable(_) => {
                retry_later(Code::StoreUnavailable, "The store does not answer or cannot write. Nothing was done.")
            }
            Failure::OutcomeUnknown(_) => retry_later(
                Code::OutcomeUnknown,
                "The node does not know whether the store committed: repeat the request, with the same lease_id or attempt_id.",
            ),
            Failure::Unreadable { key, .. } => {
                Self::new(Code::StateUnreadable, "The state in the store cannot be read. Nothing was done.")
                    .with_some("key", key.as_ref().map(Key::as_str))
            }
            Failure::ShuttingDown => retry_later(Code::ShuttingDown, "This node is shutting down."),
            Failure::NoDurableStore => Self::field(
                "durability",
                "must be fast while locks are in Redis, which may lose what it has acknowledged. For durable operations an operator names \
                 Postgres or SQLite in --locks; if that is the other engine of a pair, `latchgate engines switch locks` changes to it",
            ),
            Failure::PermanentNeedsDurable => Self::field(
                "permanent",
                "is possible only for operations in a store that commits to disk: claim them with durability durable",
            ),
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::of_failure(&failure)
    }
}

/// The answer to a request that is more than its app may have.
impl From<Excess> for Problem {
    fn from(Excess { quota, limit, remaining, retry_after }: Excess) -> Self {
        let what = quota.as_str().replace('_', " ");
        let detail = format!("This app has used up its quota of {what} at this node, {limit}.");
        Self::new(Code::QuotaReached, detail)
            .with("quota", quota.as_str())
            .with("limit", limit)
            .with("remaining", remaining)
            .retry_after_ms(ms(retry_after).max(1))
    }
}

impl From<OrderRefused> for Problem {
    fn from(refused: OrderRefused) -> Self {
        match refused {
            OrderRefused::Invalid { field, rule } => Self::field(&field, rule),
            OrderRefused::Change(ChangeFailure::Refused(refused)) => {
                let code = match refused {
                    ChangeRefused::NotPermitted => Code::Unauthorized,
                    ChangeRefused::UnknownApp => Code::UnknownApp,
                    ChangeRefused::AppHasKeys | ChangeRefused::AppKeysJustRevoked => Code::AppNotEmpty,
                    ChangeRefused::UnknownKey => Code::UnknownApiKey,
                    ChangeRefused::TooManyApps | ChangeRefused::TooManyKeys => Code::AccessFull,
                };
                Self::new(code, refused.to_string())
            }
            OrderRefused::Change(ChangeFailure::Store(StoreError::OutcomeUnknown(reason))) => {
                tracing::warn!(reason, "it is not known whether the apps and API keys were changed");
                let detail = "The node does not know whether the store committed: GET /v1/admin/api-keys and /v1/admin/apps show it.";
                Self::new(Code::OutcomeUnknown, detail).retry_after_ms(1_000)
            }
            OrderRefused::Change(ChangeFailure::Store(error)) => {
                tracing::warn!(%error, "the apps and API keys were not changed");
                Self::of_failure(&Failure::StoreUnavailable(error.to_string()))
            }
        }
    }
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CodeInfo { name, status, title, .. } = self.code.info();
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry("type", &format_args!("/errors/{name}"))?;
        body.serialize_entry("title", title)?;
        body.serialize_entry("status", &status.as_u16())?;
        body.serialize_entry("code", name)?;
        body.serialize_entry("detail", &self.detail)?;
        for (name, value) in &self.fields {
            body.serialize_entry(name, value)?;
        }
        if let Some(ms) = self.retry_after_ms {
            body.serialize_entry("retry_after_ms", &ms)?;
        }
        body.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.info().status;
        let mut response = (status, json_line(&self)).into_response();
        response.extensions_mut().insert(self.code);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(ms) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
        }
        if self.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"latchgate\""));
        }
        response
    }
}
