//! `POST /v1/locks/{key}/renew` and `release`.

use latchgate_core::lock::{Lease, LeaseId, Metadata, Outcome};
use latchgate_core::{Address, Timestamp};
use serde_json::{Map, Value};

use super::fields::{ModeName, parse_lease_id, parse_metadata};
use super::json::{ReleaseAnswer, RevocationAnswer, left_ms, problem, unanswered};
use crate::format::{DateTime, answers, requests, rfc3339};
use crate::http::answer;
use crate::http::body::Json;
use crate::http::call::{Answered, Call};
use crate::http::context::Volatility;
use crate::http::path::PathAddress;
use crate::http::problem::Problem;

requests! {
    #[schema(example = json!({"lease_id": "the-lease_id-of-the-acquire", "ttl_ms": 60_000}))]
    pub struct RenewRequest {
        /// From the answer to acquire.
        #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._:-]+$")]
        lease_id: String,
        /// The lease's new length in ms, from now; its current length if absent.
        #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
        ttl_ms: Option<u64>,
        /// Replaces the metadata of the lease, as a whole: a JSON object of at most 1 KiB; unchanged if absent.
        #[schema(value_type = Option<Object>)]
        metadata: Option<Map<String, Value>>,
    }

    #[schema(example = json!({"lease_id": "the-lease_id-of-the-acquire"}))]
    pub struct ReleaseRequest {
        /// From the answer to acquire.
        #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._:-]+$")]
        lease_id: String,
    }
}

answers! {
    /// The lease now ends `ttl_ms` from now.
    pub struct RenewAnswer<'a> {
        key: &'a str,
        lease_id: &'a str,
        owner: &'a str,
        #[schema(value_type = ModeName)]
        mode: &'static str,
        token: u64,
        /// What is left of the lease, in ms.
        ttl_ms: u64,
        expires_at: DateTime,
        /// Set if the lock has been revoked: the lease ends at the deadline.
        #[schema(required)]
        revocation: Option<RevocationAnswer>,
        durability?: Option<Volatility>,
        /// After a forced switch, for how many ms other clients may hold leases of the old engine.
        forced_ms?: Option<u64>,
    }
}

/// Renew a lease.
#[utoipa::path(post, path = "/v1/locks/{key}/renew", tag = "locks", responses((status = 200, body = RenewAnswer)))]
pub async fn renew(call: Call, PathAddress(address): PathAddress, Json(request): Json<RenewRequest>) -> Answered {
    let lease_id = parse_lease_id(&request.lease_id)?;
    let ttl_ms = request.ttl_ms.map(|ttl_ms| call.context.check_ttl(ttl_ms)).transpose()?;
    let metadata = request.metadata.map(|fields| parse_metadata("metadata", fields)).transpose()?;
    let renewed = renewed(&call, &address, &lease_id, ttl_ms, metadata).await;
    let (lease, now) = renewed.map_err(|problem| problem.with("key", address.key.as_str()))?;
    Ok(answer::ok(&RenewAnswer {
        key: address.key.as_str(),
        lease_id: lease.lease_id.as_str(),
        owner: lease.owner.as_str(),
        mode: lease.mode.as_str(),
        token: lease.token,
        ttl_ms: left_ms(&lease, now),
        expires_at: rfc3339(lease.expires_at),
        revocation: RevocationAnswer::of(&lease, now),
        durability: call.context.durability(),
        forced_ms: call.context.locks.forced_ms(),
    }))
}

/// Release a lock.
#[utoipa::path(post, path = "/v1/locks/{key}/release", tag = "locks", responses((status = 200, body = ReleaseAnswer)))]
pub async fn release(call: Call, PathAddress(address): PathAddress, Json(request): Json<ReleaseRequest>) -> Answered {
    let lease_id = parse_lease_id(&request.lease_id)?;
    let released = released(&call, &address, &lease_id).await;
    Ok(answer::ok(&released.map_err(|problem| problem.with("key", address.key.as_str()))?))
}

/// Renews a lease, alone or as one of many.
///
/// # Errors
/// `lease-lost`, `key-full`, or that of a call that failed.
pub async fn renewed(
    call: &Call,
    address: &Address,
    lease_id: &LeaseId,
    ttl_ms: Option<u64>,
    metadata: Option<Metadata>,
) -> Result<(Lease, Timestamp), Problem> {
    match call.context.locks.renew(address, lease_id.clone(), ttl_ms, metadata).await {
        Ok((Outcome::Renewed(lease), now)) => Ok((lease, now)),
        Ok((other, _)) => Err(problem(&other)),
        Err(failure) => Err(unanswered(&failure, lease_id)),
    }
}

/// Releases a lease, alone or as one of many.
///
/// # Errors
/// `lease-lost`, or that of a call that failed.
pub async fn released(call: &Call, address: &Address, lease_id: &LeaseId) -> Result<ReleaseAnswer, Problem> {
    match call.context.locks.release(address, lease_id.clone()).await {
        Ok(Outcome::Released { still_held }) => Ok(ReleaseAnswer { still_held: Some(still_held), already: false }),
        Ok(Outcome::AlreadyReleased) => Ok(ReleaseAnswer { still_held: None, already: true }),
        Ok(other) => Err(problem(&other)),
        Err(failure) => Err(unanswered(&failure, lease_id)),
    }
}
