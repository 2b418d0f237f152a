//! The endpoints of multilocks: several keys as one lock.

use axum::extract::State;
use axum::response::Response;
use latchgate_core::lock::{LeaseTerms, Lost, Mode};
use latchgate_core::{Address, App, Key};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::body::Json;
use super::context::{Context, Shared};
use super::exchange::Authenticated;
use super::locks::acquire::{wait_failed, with_ticket};
use super::locks::answers::{LostWhy, RevocationAnswer, Volatility, ended, left_ms, permits, unanswered};
use super::locks::fields::{
    ModeFields, ModeName, acquire_body, check_priority, check_unchanged, lease_id, parse_lease_id, parse_metadata,
    parse_owner,
};
use super::locks::ticket::{Requested, Resumed};
use super::permissions::check_keys;
use super::problem::{Code, Problem, ProblemBody};
use super::{answer, quotas};
use crate::access::Caller;
use crate::format::{ms, rfc3339};
use crate::locks::{AcquiredMany, LockManyRequest, LockRequest, MANY_MAX, ReleasedMany, RenewedMany, RequestedLock};

acquire_body! {
    /// Beside `locks`, the fields are as for one lock. All leases have the same `lease_id`.
    pub struct MultilockRequest {
        /// 1 to 64 keys, each at most once.
        locks: Vec<LockedKeyRequest>,
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedKeyRequest {
    /// Not percent-encoded.
    #[schema(example = "accounts/1")]
    key: String,
    #[serde(default)]
    mode: Option<ModeName>,
    #[serde(default)]
    permits: Option<u32>,
    #[serde(default)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub struct MultilockAnswer<'a> {
    /// One for each key, in the order of the request.
    locks: Vec<LockedKeyAnswer<'a>>,
    /// Proves that the leases are yours: keep it secret.
    lease_id: &'a str,
    owner: &'a str,
    /// What is left of the shortest lease, in ms, at the time of this answer.
    ttl_ms: u64,
    expires_at: String,
    waited_ms: u64,
    /// `volatile` if the store may lose the leases in a crash or a fail-over (Redis); absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Volatility>)]
    durability: Option<&'static str>,
    /// After a forced switch of engines: for this many ms, other clients may hold the locks with leases of the old engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_ms: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub struct LockedKeyAnswer<'a> {
    key: &'a str,
    #[schema(value_type = ModeName)]
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    token: u64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MultilockRenewRequest {
    lease_id: String,
    /// The keys of the multilock.
    #[schema(example = json!(["accounts/1", "accounts/2"]))]
    keys: Vec<String>,
    /// The leases' new length in ms, from now; their current length if absent.
    #[serde(default)]
    ttl_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MultilockReleaseRequest {
    lease_id: String,
    /// The keys of the multilock.
    #[schema(example = json!(["accounts/1", "accounts/2"]))]
    keys: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub struct MultilockRenewAnswer<'a> {
    locks: Vec<RenewedKey<'a>>,
    lease_id: &'a str,
    /// What is left of the shortest lease, in ms, at the time of this answer.
    ttl_ms: u64,
    expires_at: String,
    /// `volatile` if the store may lose the leases in a crash or a fail-over (Redis); absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Volatility>)]
    durability: Option<&'static str>,
    /// After a forced switch of engines: for this many ms, other clients may hold the locks with leases of the old engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_ms: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub struct RenewedKey<'a> {
    key: &'a str,
    token: u64,
    /// Set if this lock has been revoked: the lease ends at the deadline.
    #[schema(required)]
    revocation: Option<RevocationAnswer>,
}

#[derive(Serialize, ToSchema)]
pub struct MultilockReleaseAnswer {
    released: bool,
    /// Leases that the same owner still holds, for each key.
    still_held: Vec<u32>,
    /// All had been released by an earlier request.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    already: bool,
}

/// A key of a multilock whose lease has ended.
#[derive(Serialize, ToSchema)]
pub struct LostKey<'a> {
    key: &'a str,
    #[schema(value_type = LostWhy)]
    why: &'static str,
    /// When, if that is known.
    #[schema(required)]
    at: Option<String>,
}

/// Take several locks, all or none.
///
/// 200: all locks are yours. Any other status: none is. With `wait_ms` the request waits in the queue of the first key that
/// refuses it; meanwhile it holds no lock.
#[utoipa::path(
    post, path = "/v1/multilocks/acquire", tag = "multilocks", operation_id = "acquireMultilock",
    request_body(content = MultilockRequest, example = json!({"locks": [{"key": "accounts/1"}, {"key": "accounts/2", "mode": "shared"}], "ttl_ms": 30_000})),
    responses(
        (status = 200, description = "All locks are yours.", body = MultilockAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`, `invalid-ticket`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`lease-id-reused`, `limit-mismatch`, `key-full`, `upgrade-blocked`, with the `key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`, with the `key`: this lease id was granted before and has ended", body = ProblemBody, content_type = "application/problem+json"),
        (status = 423, description = "`lock-held`, `lock-reserved`, `lock-delayed`, `wait-timeout`: as for one lock, with the `key` that refuses", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn acquire(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    Json(request): Json<MultilockRequest>,
) -> Result<Response, Problem> {
    let request = request.parse(&context, &caller)?;
    let _waits = context.waits.enter_for(&caller, request.wait)?;
    let locks: Vec<(Address, Requested)> =
        request.locks.iter().map(|wanted| (wanted.address.clone(), (wanted.mode, wanted.limit))).collect();
    let (lease_id, wait) = (request.lease.lease_id.clone(), request.wait);
    let wanted: Vec<&Address> = locks.iter().map(|(address, _)| address).collect();
    let reserved = quotas::check_leases(&context, &caller, &wanted, &request.lease).await?;
    match context.locks.acquire_many(request).await {
        Ok(AcquiredMany::Granted { leases, waited, now }) => {
            let granted: Vec<_> = wanted.iter().copied().zip(leases.iter().map(|(lease, _)| lease)).collect();
            quotas::count_leases(&context, &caller, &reserved, &granted, now)?;
            let first = leases.iter().map(|(lease, _)| lease).min_by_key(|lease| lease.expires_at);
            let Some(first) = first else {
                return Err(Problem::defect());
            };
            let keys = leases.iter().zip(&locks).map(|((lease, limit), (address, _))| LockedKeyAnswer {
                key: address.key.as_str(),
                mode: lease.mode.as_str(),
                permits: permits(lease),
                limit: *limit,
                token: lease.token,
            });
            Ok(answer::ok(&MultilockAnswer {
                locks: keys.collect(),
                lease_id: lease_id.as_str(),
                owner: first.owner.as_str(),
                ttl_ms: left_ms(first, now),
                expires_at: rfc3339(first.expires_at),
                waited_ms: ms(waited),
                durability: context.durability(),
                forced_ms: context.forced_ms(),
            }))
        }
        Ok(AcquiredMany::Refused { index, refused }) => {
            let keys: Vec<(&Address, Requested)> =
                locks.iter().map(|(address, requested)| (address, *requested)).collect();
            let problem = context.with_wait_max(with_ticket(&context, &keys, &lease_id, &refused), wait);
            Err(problem.with("key", locks[index].0.key.as_str()))
        }
        Ok(AcquiredMany::Ended { index, acquired }) => Err(ended(&acquired).with("key", locks[index].0.key.as_str())),
        Ok(AcquiredMany::WaitFailed { failure, position }) => {
            let keys: Vec<(&Address, Requested)> =
                locks.iter().map(|(address, requested)| (address, *requested)).collect();
            Err(wait_failed(&context, &keys, &lease_id, &failure, position))
        }
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}

/// Renew several leases, all or none.
#[utoipa::path(
    post, path = "/v1/multilocks/renew", tag = "multilocks", operation_id = "renewMultilock",
    request_body(content = MultilockRenewRequest, example = json!({"lease_id": "the-lease_id-of-the-acquire", "keys": ["accounts/1", "accounts/2"]})),
    responses(
        (status = 200, description = "All leases now end `ttl_ms` from now.", body = MultilockRenewAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`, with the keys in `lost`: stop. No lease was renewed.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn renew(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    Json(request): Json<MultilockRenewRequest>,
) -> Result<Response, Problem> {
    let lease_id = parse_lease_id(&request.lease_id)?;
    let addresses = addresses(&caller, "keys", &request.keys)?;
    let ttl_ms = request.ttl_ms.map(|ttl_ms| context.check_ttl(ttl_ms)).transpose()?;
    match context.locks.renew_many(addresses.clone(), lease_id.clone(), ttl_ms).await {
        Ok(RenewedMany::Renewed { leases, now }) => {
            for (address, lease) in addresses.iter().zip(&leases) {
                quotas::extend_lease(&caller, address, lease, now);
            }
            let first = leases.iter().min_by_key(|lease| lease.expires_at);
            let locks = request.keys.iter().zip(&leases).map(|(key, lease)| RenewedKey {
                key,
                token: lease.token,
                revocation: RevocationAnswer::of(lease, now),
            });
            Ok(answer::ok(&MultilockRenewAnswer {
                locks: locks.collect(),
                lease_id: lease_id.as_str(),
                ttl_ms: first.map_or(0, |lease| left_ms(lease, now)),
                expires_at: first.map(|lease| rfc3339(lease.expires_at)).unwrap_or_default(),
                durability: context.durability(),
                forced_ms: context.forced_ms(),
            }))
        }
        Ok(RenewedMany::Lost(lost)) => {
            lost.iter().for_each(|(index, _)| quotas::end_lease(&caller, &addresses[*index], &lease_id));
            Err(lost_keys(&request.keys, &lost))
        }
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}

/// Release several locks.
#[utoipa::path(
    post, path = "/v1/multilocks/release", tag = "multilocks", operation_id = "releaseMultilock",
    request_body(content = MultilockReleaseRequest, example = json!({"lease_id": "the-lease_id-of-the-acquire", "keys": ["accounts/1", "accounts/2"]})),
    responses(
        (status = 200, description = "All locks are released.", body = MultilockReleaseAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`, with the keys in `lost`. The other locks are released.", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn release(
    State(context): State<Shared>,
    Authenticated(caller): Authenticated,
    Json(request): Json<MultilockReleaseRequest>,
) -> Result<Response, Problem> {
    let lease_id = parse_lease_id(&request.lease_id)?;
    let addresses = addresses(&caller, "keys", &request.keys)?;
    let released = context.locks.release_many(addresses.clone(), lease_id.clone()).await;
    if released.is_ok() {
        // None is held afterwards.
        addresses.iter().for_each(|address| quotas::end_lease(&caller, address, &lease_id));
    }
    match released {
        Ok(ReleasedMany::Released { still_held, already }) => {
            Ok(answer::ok(&MultilockReleaseAnswer { released: true, still_held, already }))
        }
        Ok(ReleasedMany::Lost(lost)) => Err(lost_keys(&request.keys, &lost)),
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}

impl MultilockRequest {
    fn parse(self, context: &Context, caller: &Caller) -> Result<LockManyRequest, Problem> {
        let addresses = addresses(caller, "locks", self.locks.iter().map(|lock| &lock.key))?;
        let mut locks = Vec::with_capacity(addresses.len());
        for (index, (address, lock)) in addresses.into_iter().zip(&self.locks).enumerate() {
            let fields = ModeFields { mode: lock.mode, permits: lock.permits, limit: lock.limit };
            let (mode, limit) = fields.parse().map_err(|problem| problem.with("index", index))?;
            locks.push(RequestedLock { address, mode, limit });
        }
        let resumed = self.resumed(context, &locks)?;
        let modes: Vec<Mode> = locks.iter().map(|lock| lock.mode).collect();
        let LockRequest { lease, priority, wait, position, .. } =
            self.lock_request(context, caller.app(), &modes, resumed)?;
        Ok(LockManyRequest { locks, lease, priority, wait, position })
    }

    fn resumed(&self, context: &Context, locks: &[RequestedLock]) -> Result<Option<Resumed>, Problem> {
        let Some(ticket) = &self.ticket else { return Ok(None) };
        let keys: Vec<(&Address, Option<Requested>)> =
            locks.iter().map(|wanted| (&wanted.address, Some((wanted.mode, wanted.limit)))).collect();
        context.tickets.redeem(ticket, &keys, context.locks.now()).map(Some)
    }
}

fn addresses<'a>(
    caller: &Caller,
    field: &str,
    keys: impl IntoIterator<Item = &'a String>,
) -> Result<Vec<Address>, Problem> {
    let mut addresses: Vec<Address> = Vec::new();
    for (index, key) in keys.into_iter().enumerate() {
        let invalid = |error| Problem::new(Code::InvalidKey, format!("The key {error}.")).with("field", field);
        let key = Key::parse(key).map_err(|error| invalid(error).with("index", index))?;
        check_keys(caller, key.as_str()).map_err(|problem| problem.with("index", index))?;
        let address = Address { app: caller.app().clone(), key };
        if addresses.len() == MANY_MAX {
            return Err(Problem::field(field, format!("must name at most {MANY_MAX} keys")));
        }
        if addresses.contains(&address) {
            return Err(Problem::field(field, "must name each key once").with("index", index));
        }
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err(Problem::field(field, "must name at least one key"));
    }
    Ok(addresses)
}

fn lost_keys(keys: &[String], lost: &[(usize, Lost)]) -> Problem {
    let name = |(index, lost): &(usize, Lost)| LostKey {
        key: &keys[*index],
        why: lost.why.map_or("unknown", |why| why.as_str()),
        at: lost.at.map(rfc3339),
    };
    let lost: Vec<LostKey<'_>> = lost.iter().map(name).collect();
    Problem::new(Code::LeaseLost, "The leases in lost have ended.").with("lost", lost)
}
