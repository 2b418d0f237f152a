//! Requests about a lock by clients that do not hold it: `revoke`, `DELETE`, `limit` and `fence`.

use latchgate_core::Address;
use latchgate_core::lock::{Command, Force, Note, Outcome, Refusal, Revoke};

use super::fields::{LIMIT_MAX, check_token, parse_note};
use super::json::problem;
use crate::format::{DateTime, answers, queries, requests, rfc3339};
use crate::http::answer;
use crate::http::body::Json;
use crate::http::call::{Answered, Call};
use crate::http::path::PathAddress;
use crate::http::problem::{Code, Problem, within};
use crate::http::query::Query;

/// The grace period, in ms, if the request names none.
const GRACE_MS_DEFAULT: u64 = 10_000;
/// A shorter grace ends another client's lease before it can learn of it, which needs the scope `admin`.
const GRACE_MS_MIN: u64 = 1_000;

requests! {
    #[schema(example = json!({"reason": "deploy", "grace_ms": 10_000}))]
    pub struct RevokeRequest {
        /// Why. The holder reads it in the answer to its next renewal.
        #[schema(min_length = 1, max_length = 512)]
        reason: Option<String>,
        /// The name of the client or operator that revokes.
        #[schema(min_length = 1, max_length = 256)]
        by: Option<String>,
        /// How long the holder may keep the lease, in ms: up to the longest lease; 10 000 if absent. Then the lease ends. Less than 1 000
        /// needs the scope `admin`.
        #[schema(maximum = 31_536_000_000_u64)]
        grace_ms: Option<u64>,
        /// Only the leases with this token; all if absent. 412 `stale-token` if they have ended, and another lease has been granted since.
        #[schema(maximum = 9_007_199_254_740_991_u64)]
        token: Option<u64>,
    }

    #[schema(example = json!({"limit": 5}))]
    pub struct LimitRequest {
        /// How many permits the key has from now on. With null, the next acquire that names a limit sets it.
        #[serde(deserialize_with = "Option::deserialize")]
        #[schema(required, minimum = 1, maximum = 1_000_000_000)]
        limit: Option<u32>,
    }

    #[schema(example = json!({"token": 1_784_000_000_000_000_u64}))]
    pub struct FenceRequest {
        /// From the answer to acquire.
        #[schema(maximum = 9_007_199_254_740_991_u64)]
        token: u64,
    }
}

answers! {
    /// The leases are revoked, and end after the grace period.
    pub struct RevokeAnswer<'a> {
        key: &'a str,
        /// How many leases are revoked.
        leases: u32,
        /// When the last of them ends; null if the lock was free.
        #[schema(required)]
        deadline: Option<DateTime>,
    }

    /// All leases have ended.
    pub struct ForceAnswer<'a> {
        key: &'a str,
        /// How many leases were ended.
        ended: u32,
    }

    /// The limit is set.
    pub struct LimitAnswer<'a> {
        key: &'a str,
        /// The limit in force; null if the next acquire of permits sets it.
        #[schema(required)]
        limit: Option<u32>,
        /// Permits that are held, with those that are kept because of `min_hold_ms`. They may exceed a lowered limit until they are free.
        permits_held: u32,
    }

    /// The token is up to date.
    pub struct FenceAnswer<'a> {
        key: &'a str,
        token: u64,
    }
}

queries! {
    pub struct ForceQuery {
        /// Why.
        #[param(min_length = 1, max_length = 512)]
        reason: Option<String>,
        /// The name of the client or operator that ends the leases.
        #[param(min_length = 1, max_length = 256)]
        by: Option<String>,
        /// Only the leases with this token; all if absent. 412 `stale-token` if they have ended, and another lease has been granted since.
        #[param(maximum = 9_007_199_254_740_991_u64)]
        token: Option<u64>,
    }
}

/// Revoke a lock.
///
/// The holders learn it from their next renewal and have the grace period to end their work.
#[utoipa::path(post, path = "/v1/locks/{key}/revoke", tag = "locks", responses((status = 200, body = RevokeAnswer)))]
pub async fn revoke(call: Call, PathAddress(address): PathAddress, Json(request): Json<RevokeRequest>) -> Answered {
    let grace_ms = request.grace_ms.unwrap_or(GRACE_MS_DEFAULT);
    let grace_ms = within("grace_ms", grace_ms, 0..=call.context.limits.ttl_ms_max)?;
    if grace_ms < GRACE_MS_MIN {
        call.check_admin()?;
    }
    let note = parse_note(request.reason.as_deref(), request.by.as_deref())?;
    call.detail(|| format!("grace_ms {grace_ms}{}", shown(&note)));
    let token = request.token.map(check_token).transpose()?;
    match command(&call, &address, Command::Revoke(Revoke { note, grace_ms, token })).await? {
        Outcome::Revoking { leases, deadline } => {
            let deadline = deadline.map(rfc3339);
            Ok(answer::ok(&RevokeAnswer { key: address.key.as_str(), leases, deadline }))
        }
        Outcome::StaleToken { current } => Err(granted_since(&address, current)),
        other => Err(problem(&other)),
    }
}

/// End the leases of a lock now.
///
/// The holders learn it from their next renewal or release. The first waiter gets the lock.
#[utoipa::path(
    delete, path = "/v1/locks/{key}", tag = "locks", params(ForceQuery),
    responses((status = 200, body = ForceAnswer))
)]
pub async fn force(call: Call, PathAddress(address): PathAddress, Query(query): Query<ForceQuery>) -> Answered {
    let note = parse_note(query.reason.as_deref(), query.by.as_deref())?;
    call.detail(|| shown(&note).trim_start_matches(", ").to_owned());
    let token = query.token.map(check_token).transpose()?;
    match command(&call, &address, Command::Force(Force { note: note.clone(), token })).await? {
        Outcome::Forced { leases } => {
            call.detail(|| format!("leases ended: {leases}{}", shown(&note)));
            Ok(answer::ok(&ForceAnswer { key: address.key.as_str(), ended: leases }))
        }
        Outcome::StaleToken { current } => Err(granted_since(&address, current)),
        other => Err(problem(&other)),
    }
}

/// Set how many permits a key has.
///
/// Holders keep their permits when the limit is lowered; new grants wait until enough are released. The limit stays until it
/// is changed.
#[utoipa::path(put, path = "/v1/locks/{key}/limit", tag = "locks", responses((status = 200, body = LimitAnswer)))]
pub async fn set_limit(call: Call, PathAddress(address): PathAddress, Json(request): Json<LimitRequest>) -> Answered {
    let limit = request.limit.map(|limit| within("limit", limit, 1..=LIMIT_MAX)).transpose()?;
    call.detail(|| format!("limit: {}", limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())));
    match command(&call, &address, Command::SetLimit(limit)).await? {
        Outcome::LimitSet { limit, held } => {
            Ok(answer::ok(&LimitAnswer { key: address.key.as_str(), limit, permits_held: held }))
        }
        other => Err(problem(&other)),
    }
}

/// Check a fencing token.
///
/// For resources that cannot store the highest token themselves. 200: the token's lease is live, or no higher token has been
/// granted or presented for this key.
#[utoipa::path(post, path = "/v1/locks/{key}/fence", tag = "locks", responses((status = 200, body = FenceAnswer)))]
pub async fn fence(
    call: Call,
    PathAddress(address): PathAddress,
    Json(FenceRequest { token }): Json<FenceRequest>,
) -> Answered {
    let token = check_token(token)?;
    match command(&call, &address, Command::Fence(token)).await? {
        Outcome::Fenced => Ok(answer::ok(&FenceAnswer { key: address.key.as_str(), token })),
        Outcome::StaleToken { current } => {
            let detail = match current {
                0 => "This key has no record, so no lease of it is live.".to_owned(),
                current if token > current => format!("This token was never granted: the highest token is {current}."),
                current => format!("A higher token has been granted or presented: {current}."),
            };
            Err(Problem::new(Code::StaleToken, detail).with("key", address.key.as_str()).with("current", current))
        }
        Outcome::Refused(Refusal::HeldOff(until)) => {
            let left_ms = until.ms_since(call.context.locks.now()).max(1);
            let detail = format!(
                "The store may have lost leases, and no lease with this token is live: for {left_ms} ms more, a hold-off leaves \
                 open whether it is up to date."
            );
            Err(Problem::new(Code::StoreUnavailable, detail).retry_after_ms(left_ms))
        }
        other => Err(problem(&other)),
    }
}

/// The lease that an operator means has ended, and another one has been granted since.
fn granted_since(address: &Address, current: u64) -> Problem {
    let detail = format!("No lease with this token is live: the highest token is {current}.");
    Problem::new(Code::StaleToken, detail).with("key", address.key.as_str()).with("current", current)
}

/// A note as the end of an audit record's detail.
fn shown(note: &Note) -> String {
    let reason = note.reason.as_ref().map(|reason| format!(", reason: {reason}"));
    let by = note.by.as_ref().map(|by| format!(", by: {}", by.as_str()));
    [reason, by].into_iter().flatten().collect()
}

pub(super) async fn command(call: &Call, address: &Address, command: Command) -> Result<Outcome, Problem> {
    Ok(call.context.locks.command(address, command).await?.0)
}
