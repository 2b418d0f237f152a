//! `PUT` and `DELETE /v1/locks/{key}/closed`: an operator closes a key, and opens it.

use latchgate_core::Timestamp;
use latchgate_core::lock::{Close, Closing, Command, Outcome};

use super::fields::parse_note;
use super::interventions::command;
use super::json::problem;
use crate::format::{DateTime, answers, parse_rfc3339, requests, rfc3339};
use crate::http::answer;
use crate::http::body::Json;
use crate::http::call::{Answered, Call};
use crate::http::path::PathAddress;
use crate::http::problem::Problem;

/// The latest `until`, in ms from now: a year.
const CLOSED_MS_MAX: u64 = 365 * 24 * 3_600_000;

requests! {
    #[schema(example = json!({"reason": "release weekend", "until": "2026-11-23T06:00:00Z"}))]
    pub struct CloseRequest {
        /// Why. Refused clients see it.
        #[schema(min_length = 1, max_length = 512)]
        reason: String,
        /// When the key opens by itself, within a year: RFC 3339. If absent, it stays closed until it is opened.
        #[schema(format = DateTime, min_length = 1, max_length = 64)]
        until: Option<String>,
    }
}

answers! {
    /// The key is closed.
    pub struct ClosedAnswer<'a> {
        key: &'a str,
        closed: ClosingAnswer,
    }

    /// The key is closed: no client is granted it.
    pub struct ClosingAnswer {
        reason: String,
        since: DateTime,
        /// When the key opens by itself, by the store's clock; absent if it must be opened.
        until?: Option<DateTime>,
        /// Time from this answer to then, in ms.
        until_ms?: Option<u64>,
    }

    /// The key is open.
    pub struct OpenAnswer<'a> {
        key: &'a str,
        /// Whether the key was closed.
        was_closed: bool,
    }
}

impl ClosingAnswer {
    pub fn of(closing: &Closing, now: Timestamp) -> Self {
        Self {
            reason: closing.reason.as_ref().to_owned(),
            since: rfc3339(closing.since),
            until: closing.until.map(rfc3339),
            until_ms: closing.until.map(|until| until.ms_since(now)),
        }
    }
}

/// Close a key.
///
/// From now on no client is granted a lease of it: every acquire is answered 423 `lock-closed`, nested ones too. Holders keep their
/// leases and can renew them; waiters keep their positions. A second call replaces the reason and the end.
#[utoipa::path(put, path = "/v1/locks/{key}/closed", tag = "locks", responses((status = 200, body = ClosedAnswer)))]
pub async fn close(call: Call, PathAddress(address): PathAddress, Json(request): Json<CloseRequest>) -> Answered {
    let now = call.context.locks.now();
    let until = request.until.as_deref().map(|text| parse_until(text, now)).transpose()?;
    let reason = parse_note(Some(&request.reason), None)?.reason.unwrap_or_default();
    call.detail(|| {
        let until = until.map_or_else(|| "it is opened".to_owned(), rfc3339);
        format!("until {until}, reason: {reason}")
    });
    match command(&call, &address, Command::Close(Close { reason, until })).await? {
        Outcome::Closed(closing) => {
            let closed = ClosingAnswer::of(&closing, call.context.locks.now());
            Ok(answer::ok(&ClosedAnswer { key: address.key.as_str(), closed }))
        }
        other => Err(problem(&other)),
    }
}

/// Open a key that is closed.
///
/// The first waiter gets the lock if it is free.
#[utoipa::path(delete, path = "/v1/locks/{key}/closed", tag = "locks", responses((status = 200, body = OpenAnswer)))]
pub async fn open(call: Call, PathAddress(address): PathAddress) -> Answered {
    match command(&call, &address, Command::Open).await? {
        Outcome::Opened { was_closed } => {
            call.detail(|| format!("was closed: {was_closed}"));
            Ok(answer::ok(&OpenAnswer { key: address.key.as_str(), was_closed }))
        }
        other => Err(problem(&other)),
    }
}

fn parse_until(text: &str, now: Timestamp) -> Result<Timestamp, Problem> {
    let until = parse_rfc3339(text).ok_or_else(|| Problem::field("until", "must be a time as RFC 3339 has it"))?;
    if until <= now || until > now.plus_ms(CLOSED_MS_MAX) {
        let rule = format!("must be later than now, {}, and within a year", rfc3339(now));
        return Err(Problem::field("until", rule));
    }
    Ok(until)
}
