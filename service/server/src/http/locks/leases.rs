//! `POST /v1/locks/{key}/renew` and `release`.

use axum::response::Response;
use latchgate_core::Address;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::{RevocationAnswer, json, lease_lost, left_ms, unanswered};
use super::terms::parse_lease_id;
use crate::http::format::rfc3339;
use crate::http::problem::{Problem, ProblemBody};
use crate::http::{Context, body};
use crate::runtime::{Released, Renewed};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// From the answer to acquire.
    lease_id: String,
    /// The lease's new length in ms, from now; as before if absent.
    #[serde(default)]
    ttl_ms: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub struct RenewAnswer<'a> {
    key: &'a str,
    lease_id: &'a str,
    owner: &'a str,
    mode: &'static str,
    token: u64,
    /// What is left of the lease, in ms, at the time of this answer.
    ttl_ms: u64,
    expires_at: String,
    /// Set when somebody asks for the lock back: the lease ends at its deadline.
    revocation: Option<RevocationAnswer>,
    /// `volatile` where the store may forget the lease when it crashes or fails over (Redis); absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
    /// An engine was left by force: for so many ms others may hold the lock by leases of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// From the answer to acquire.
    lease_id: String,
}

#[derive(Serialize, ToSchema)]
pub struct ReleaseAnswer {
    released: bool,
    /// Leases that the same owner still has on this key.
    still_held: u32,
    /// The lease had been released before: this is a repetition.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    already: bool,
}

/// Keep a lock for longer.
#[utoipa::path(
    post, path = "/v1/locks/{key}/renew", tag = "locks",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders")),
    request_body(content = RenewRequest),
    responses(
        (status = 200, description = "The lease is counted anew from now.", body = RenewAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`, with `why`, `at` and the key's `token`: stop", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn renew(context: &Context, address: &Address, body: &[u8]) -> Result<Response, Problem> {
    let request: RenewRequest = body::parse(body)?;
    let lease_id = parse_lease_id(&request.lease_id)?;
    let ttl_ms = request.ttl_ms.map(|ttl_ms| context.check_ttl(ttl_ms)).transpose()?;
    match context.locks.renew(address, lease_id.clone(), ttl_ms).await {
        Ok(Renewed::Renewed { lease, now }) => Ok(json(&RenewAnswer {
            key: address.key.as_str(),
            lease_id: lease.lease_id.as_str(),
            owner: lease.owner.as_str(),
            mode: lease.mode.as_str(),
            token: lease.token,
            ttl_ms: left_ms(&lease, now),
            expires_at: rfc3339(lease.expires_at),
            revocation: RevocationAnswer::of(&lease, now),
            durability: context.durability(),
            forced_ms: context.forced_ms(),
        })),
        Ok(Renewed::LeaseLost(lost)) => Err(lease_lost(&lost)),
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}

/// Give a lock back.
#[utoipa::path(
    post, path = "/v1/locks/{key}/release", tag = "locks",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders")),
    request_body(content = ReleaseRequest),
    responses(
        (status = 200, description = "Released; the first in the queue has it.", body = ReleaseAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`: it had ended before, so your work may have overlapped another's", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn release(context: &Context, address: &Address, body: &[u8]) -> Result<Response, Problem> {
    let request: ReleaseRequest = body::parse(body)?;
    let lease_id = parse_lease_id(&request.lease_id)?;
    match context.locks.release(address, lease_id.clone()).await {
        Ok(Released::Released { still_held, already }) => {
            Ok(json(&ReleaseAnswer { released: true, still_held, already }))
        }
        Ok(Released::LeaseLost(lost)) => Err(lease_lost(&lost)),
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}
