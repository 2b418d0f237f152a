//! `GET /v1/locks/{key}` and `GET /v1/locks`.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use latchgate_core::lock::LockState;
use latchgate_core::{Key, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answers::{Holder, holders};
use crate::http::answer;
use crate::http::body::NoBody;
use crate::http::format::rfc3339;
use crate::http::problem::{Problem, ProblemBody};
use crate::http::{Context, Shared, path, query};

const LIST_LIMIT_DEFAULT: usize = 100;
const LIST_LIMIT_MAX: usize = 1_000;
/// Most states that one listing reads to find matching ones.
const LIST_SCAN_MAX: usize = 10_000;

#[derive(Serialize, ToSchema)]
pub struct LockAnswer {
    #[schema(example = "orders/42")]
    key: String,
    held: bool,
    /// The highest token granted so far; 0 if there is no record.
    token: u64,
    holders: Vec<Holder>,
    /// How many permits the key has, if a limit is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// How many permits are held.
    #[serde(skip_serializing_if = "Option::is_none")]
    permits_held: Option<u32>,
    /// The lock is not granted before this: a lease with a lock-delay has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    delayed_until: Option<String>,
    /// The highest token presented to `fence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// How many requests wait for the lock.
    waiters: u64,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only keys that begin with this.
    prefix: Option<String>,
    /// Only keys that this owner holds.
    owner: Option<String>,
    /// Only keys that are held (`true`) or free (`false`).
    held: Option<bool>,
    /// Most keys in the answer: 1 to 1 000; 100 if absent.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct ListAnswer {
    locks: Vec<LockAnswer>,
    /// Send it as `cursor` for the next page; absent on the last. Pages before the last may be short or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Show a lock.
#[utoipa::path(
    get, path = "/v1/locks/{key}", tag = "locks",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders")),
    responses(
        (status = 200, description = "The lock as it is now. A lock that was never taken is free.", body = LockAnswer),
        (status = 400, description = "`invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn inspect(context: &Context, key: &str) -> Result<Response, Problem> {
    let address = path::address(&context.app, key)?;
    let inspected = context.locks.inspect(&address).await.map_err(|failure| Problem::of_failure(&failure))?;
    Ok(answer::ok(&lock_answer(&address.key, &inspected.state, inspected.waiters, inspected.now)))
}

/// List locks, in the order of their keys.
#[utoipa::path(
    get, path = "/v1/locks", tag = "locks", params(ListQuery),
    responses(
        (status = 200, description = "One page.", body = ListAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn list(State(context): State<Shared>, uri: Uri, _: NoBody) -> Result<Response, Problem> {
    let query: ListQuery = query::parse(&uri)?;
    let limit = query::page_limit(query.limit, LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX)?;
    let cursor = query.cursor.as_deref().map(Key::parse).transpose();
    let mut after = cursor.map_err(|error| Problem::field("cursor", error))?;
    let prefix = query.prefix.as_deref().unwrap_or_default();
    if !prefix.is_empty() {
        Key::parse(prefix).map_err(|error| Problem::field("prefix", error))?;
    }
    // One row more than requested shows whether there is another page. A filter may drop most rows.
    let is_filtered = query.owner.is_some() || query.held.is_some();
    let rows_max = if is_filtered { LIST_LIMIT_MAX } else { limit + 1 };
    let mut locks = Vec::new();
    let mut scanned = 0;
    loop {
        let page = context.locks.list(&context.app, prefix, after.as_ref(), rows_max).await;
        let (page, now) = page.map_err(|failure| Problem::of_failure(&failure))?;
        let is_last = page.len() < rows_max;
        scanned += page.len();
        for (key, state) in page {
            if locks.len() == limit {
                return Ok(answer::ok(&ListAnswer { locks, next_cursor: after.map(|key| key.as_str().to_owned()) }));
            }
            after = Some(key.clone());
            locks.extend(listed(&key, state, now, &query));
        }
        if is_last || scanned >= LIST_SCAN_MAX {
            let next_cursor = after.filter(|_| !is_last).map(|key| key.as_str().to_owned());
            return Ok(answer::ok(&ListAnswer { locks, next_cursor }));
        }
    }
}

fn listed(key: &Key, mut state: LockState, now: Timestamp, query: &ListQuery) -> Option<LockAnswer> {
    let _ = state.settle(now);
    let is_held = !state.holders().is_empty();
    let is_owned = |owner: &String| state.holders().iter().any(|lease| lease.owner.as_str() == owner);
    if query.held.is_some_and(|held| held != is_held) || !query.owner.as_ref().is_none_or(is_owned) {
        return None;
    }
    let waiters = state.turns().iter().map(|turn| u64::from(turn.waiting)).sum();
    Some(lock_answer(key, &state, waiters, now))
}

fn lock_answer(key: &Key, state: &LockState, waiters: u64, now: Timestamp) -> LockAnswer {
    let limit = state.limit_in_force();
    LockAnswer {
        key: key.as_str().to_owned(),
        held: !state.holders().is_empty(),
        token: state.token(),
        holders: holders(state.holders(), now),
        limit,
        permits_held: limit.map(|_| state.permits_held()),
        delayed_until: state.delayed_until(now).map(rfc3339),
        fence: Some(state.fence()).filter(|fence| *fence > 0),
        waiters,
    }
}
