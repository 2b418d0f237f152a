//! `/v1/leases/`: many leases in one call. Each is its own: one may fail and another not.

use futures::{StreamExt, stream};
use latchgate_core::lock::{Lease, LeaseId, LockState, Revoke};
use latchgate_core::{Address, Key};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Json;
use super::call::{Answered, Call};
use super::context::LEASES_PER_CALL_MAX;
use super::locks::answers::{RevocationAnswer, Volatility, left_ms};
use super::locks::fields::{parse_lease_id, parse_note, parse_owner};
use super::locks::interventions::{check_grace, revoke_leases};
use super::locks::search::{Found, Search};
use super::path::invalid_key;
use super::problem::{Code, Problem, either, within};
use super::{answer, quotas};
use crate::format::{DateTime, answers, rfc3339};

/// Calls of one request that are on their way at once. The shards serve them in few commits.
const AT_ONCE: usize = 128;
/// Most keys that one request revokes.
const REVOKED_MAX: usize = 500;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewLeasesRequest {
    /// 1 to 500, unless configured otherwise.
    #[schema(min_items = 1, max_items = 500)]
    #[serde(deserialize_with = "crate::objects::objects")]
    leases: Vec<LeaseToRenew>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseToRenew {
    /// Not percent-encoded.
    #[schema(example = "orders/42", min_length = 1, max_length = 512)]
    key: String,
    /// From the answer to acquire.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._:-]+$")]
    lease_id: String,
    /// The lease's new length in ms, from now; its current length if absent.
    #[schema(minimum = 1, maximum = 31_536_000_000_u64)]
    ttl_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseLeasesRequest {
    /// 1 to 500, unless configured otherwise.
    #[schema(min_items = 1, max_items = 500)]
    #[serde(deserialize_with = "crate::objects::objects")]
    leases: Vec<LeaseToRelease>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseToRelease {
    /// Not percent-encoded.
    #[schema(example = "orders/42", min_length = 1, max_length = 512)]
    key: String,
    /// From the answer to acquire.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._:-]+$")]
    lease_id: String,
}

answers! {
    pub struct RenewLeasesAnswer {
        /// One for each lease, in the order of the request.
        results: Vec<RenewedLease>,
        durability?: Option<Volatility>,
        /// After a forced switch, for how many ms other clients may hold leases of the old engine.
        forced_ms?: Option<u64>,
    }

    pub struct RenewedLease {
        key: String,
        lease_id: String,
        /// 200, as a renewal of this lease alone would have got.
        #[schema(example = 200)]
        status: u16,
        /// What is left of the lease, in ms.
        ttl_ms: u64,
        expires_at: DateTime,
        /// Set if the lock has been revoked: the lease ends at the deadline.
        #[schema(required)]
        revocation: Option<RevocationAnswer>,
    }

    pub struct ReleaseLeasesAnswer {
        /// One for each lease, in the order of the request.
        results: Vec<ReleasedLease>,
    }

    pub struct ReleasedLease {
        key: String,
        lease_id: String,
        /// 200, as a release of this lease alone would have got.
        #[schema(example = 200)]
        status: u16,
        /// Leases of this key that the same owner still holds.
        still_held: u32,
        /// The lease had been released by an earlier request.
        already?: bool,
    }
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeLeasesRequest {
    /// Only the leases of this owner. `owner` or `prefix` is needed.
    #[schema(example = "billing-7", max_length = 256, min_length = 1)]
    owner: Option<String>,
    /// Only keys that begin with this. `owner` or `prefix` is needed.
    #[schema(example = "jobs/", max_length = 512)]
    prefix: Option<String>,
    /// Why. The holders read it in the answers to their next renewals.
    #[schema(min_length = 1, max_length = 512)]
    reason: Option<String>,
    /// The name of the client or operator that revokes.
    #[schema(min_length = 1, max_length = 256)]
    by: Option<String>,
    /// How long the holders may keep their leases, in ms: up to the longest lease; 10 000 if absent. Then the leases end. Less than
    /// 1 000 needs the scope `admin`.
    #[schema(maximum = 31_536_000_000_u64)]
    grace_ms: Option<u64>,
    /// `next_cursor` of the answer before.
    #[schema(min_length = 1, max_length = 512)]
    cursor: Option<String>,
}

answers! {
    pub struct RevokeLeasesAnswer {
        /// The locks whose leases are revoked, in the order of their keys.
        results: Vec<RevokedLock>,
        /// How many leases are revoked in all.
        leases: u32,
        /// Keys whose state in the store cannot be read: see the error `state-unreadable`.
        unreadable?: Vec<String>,
        /// There may be more locks: repeat the request with it as `cursor`.
        next_cursor?: Option<String>,
    }

    pub struct RevokedLock {
        key: String,
        #[schema(example = 200)]
        status: u16,
        leases: u32,
        /// When the last of them ends.
        #[schema(required)]
        deadline: Option<DateTime>,
    }
}

/// Renew many leases.
///
/// Those of a multilock are one for each key, all with its `lease_id`.
/// 200: all are renewed. Otherwise `results` says which are, and what became of the others.
#[utoipa::path(
    post, path = "/v1/leases/renew", tag = "leases", operation_id = "renewLeases",
    request_body(content = RenewLeasesRequest, example = json!({"leases": [{"key": "orders", "lease_id": "the-lease_id-of-the-acquire", "ttl_ms": 60_000}]})),
    responses((status = 200, description = "Each lease now ends its `ttl_ms` from now.", body = RenewLeasesAnswer))
)]
pub async fn renew(call: Call, Json(request): Json<RenewLeasesRequest>) -> Answered {
    let named = request.leases.iter().map(|lease| (&*lease.key, &*lease.lease_id));
    let leases = named_leases(&call, named)?;
    let mut renewals = Vec::with_capacity(leases.len());
    for (index, (lease, requested)) in leases.into_iter().zip(request.leases).enumerate() {
        let ttl_ms = requested.ttl_ms.map(|ttl_ms| call.context.check_ttl(ttl_ms)).transpose();
        renewals.push((lease, ttl_ms.map_err(|problem| problem.with("index", index))?));
    }
    let renewals = stream::iter(renewals).map(async |((address, lease_id), ttl_ms)| {
        let renewed = quotas::renew(&call, &address, &lease_id, ttl_ms, None).await;
        let (lease, now) = renewed.map_err(|problem| of_lease(problem, &address, &lease_id))?;
        Ok(RenewedLease {
            key: address.key.as_str().to_owned(),
            lease_id: lease_id.as_str().to_owned(),
            status: 200,
            ttl_ms: left_ms(&lease, now),
            expires_at: rfc3339(lease.expires_at),
            revocation: RevocationAnswer::of(&lease, now),
        })
    });
    let results = all(renewals.buffered(AT_ONCE).collect().await)?;
    let (durability, forced_ms) = (call.context.durability(), call.context.forced_ms());
    Ok(answer::ok(&RenewLeasesAnswer { results, durability, forced_ms }))
}

/// Release many leases.
///
/// Those of a multilock are one for each key, all with its `lease_id`.
/// 200: all are released. Otherwise `results` says which are, and what became of the others.
#[utoipa::path(
    post, path = "/v1/leases/release", tag = "leases", operation_id = "releaseLeases",
    request_body(content = ReleaseLeasesRequest, example = json!({"leases": [{"key": "orders", "lease_id": "the-lease_id-of-the-acquire"}]})),
    responses((status = 200, description = "All leases are released.", body = ReleaseLeasesAnswer))
)]
pub async fn release(call: Call, Json(request): Json<ReleaseLeasesRequest>) -> Answered {
    let named = request.leases.iter().map(|lease| (&*lease.key, &*lease.lease_id));
    let leases = named_leases(&call, named)?;
    let releases = stream::iter(leases).map(async |(address, lease_id)| {
        let released = quotas::release(&call, &address, &lease_id).await;
        let (still_held, already) = released.map_err(|problem| of_lease(problem, &address, &lease_id))?;
        let (key, lease_id) = (address.key.as_str().to_owned(), lease_id.as_str().to_owned());
        Ok(ReleasedLease { key, lease_id, status: 200, still_held, already })
    });
    let results = all(releases.buffered(AT_ONCE).collect().await)?;
    Ok(answer::ok(&ReleaseLeasesAnswer { results }))
}

/// Revoke the leases of an owner, or of the keys that begin with a text.
///
/// As a revocation of each lock: the holders learn it from their next renewal and have the grace period to end their work. One
/// request revokes the leases of at most 500 locks. A lock that is taken during the request may be missed.
#[utoipa::path(
    post, path = "/v1/leases/revoke", tag = "leases", operation_id = "revokeLeases",
    request_body(content = RevokeLeasesRequest, example = json!({"owner": "billing-7", "prefix": "jobs/", "reason": "deploy", "grace_ms": 10_000})),
    responses(
        (status = 200, description = "The leases that matched are revoked. With `next_cursor`, there may be more.", body = RevokeLeasesAnswer),
    )
)]
pub async fn revoke(call: Call, Json(request): Json<RevokeLeasesRequest>) -> Answered {
    let owner = parse_owner(request.owner.as_deref())?;
    if let Some(prefix) = &request.prefix {
        Key::parse(prefix).map_err(|error| Problem::field("prefix", error))?;
    }
    let search = Search::parse(&call, request.prefix, request.cursor.as_deref())?;
    let of_owner = owner.as_ref().map(|owner| format!("owner {:?}", owner.as_str()));
    let of_prefix = (!search.prefix.is_empty()).then(|| format!("prefix {:?}", search.prefix));
    if of_owner.is_none() && of_prefix.is_none() {
        return Err(Problem::field("owner", "or prefix is needed: no request revokes every lease"));
    }
    let of = of_owner.into_iter().chain(of_prefix).collect::<Vec<_>>().join(", ");
    call.resource(&format!("leases of {of}"));
    let grace_ms = check_grace(&call, request.grace_ms)?;
    let note = parse_note(request.reason.as_deref(), request.by.as_deref())?;
    let is_revoked = |lease: &Lease| owner.as_ref().is_none_or(|owner| *owner == lease.owner);
    let held = |address: &Address, state: LockState, _| {
        let is_found = state.holders().iter().any(is_revoked);
        is_found.then(|| address.clone())
    };
    let found = search.run(&call, REVOKED_MAX, true, held).await?;
    let revoke = Revoke { note, grace_ms, token: None, owner };
    let revoked = stream::iter(found.locks).map(async |address: Address| {
        let key = address.key.as_str();
        let revoked = revoke_leases(&call, &address, revoke.clone()).await;
        let (leases, deadline) = revoked.map_err(|problem| problem.with("key", key))?;
        Ok(RevokedLock { key: key.to_owned(), status: 200, leases, deadline })
    });
    let results: Vec<Result<RevokedLock, Problem>> = revoked.buffered(AT_ONCE).collect().await;
    // The leases of the others have ended since the search.
    let revoked = || results.iter().flatten().filter(|revoked| revoked.leases > 0);
    let leases = revoked().map(|revoked| revoked.leases).fold(0, u32::saturating_add);
    call.detail(|| format!("{leases} leases of {} locks", revoked().count()));
    let mut results: Vec<RevokedLock> = all(results)?;
    results.retain(|revoked| revoked.leases > 0);
    let Found { unreadable, next_cursor, .. } = found;
    Ok(answer::ok(&RevokeLeasesAnswer { results, leases, unreadable, next_cursor }))
}

/// The leases that a request names, all of which its caller may use.
fn named_leases<'a>(
    call: &Call,
    named: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<(Address, LeaseId)>, Problem> {
    within("leases", named.len(), 1..=LEASES_PER_CALL_MAX)?;
    call.count(named.len() - 1)?;
    let parse = |(key, lease_id): (&str, &str)| {
        let key = Key::parse(key).map_err(|_| invalid_key(key).with("field", "leases"))?;
        Ok((call.address(key)?, parse_lease_id(lease_id)?))
    };
    let with_index = |(index, lease)| parse(lease).map_err(|problem: Problem| problem.with("index", index));
    named.enumerate().map(with_index).collect()
}

fn of_lease(problem: Problem, address: &Address, lease_id: &LeaseId) -> Problem {
    let problem = problem.with("key", address.key.as_str());
    // The answer to an unknown outcome names the lease already.
    let is_named = problem.code() == Code::OutcomeUnknown;
    if is_named { problem } else { problem.with("lease_id", lease_id.as_str()) }
}

/// The results, if all have succeeded.
///
/// # Errors
/// The most serious of the problems, with all results: that of the request before that of the node or its store, because the
/// client must know of a lost lease.
fn all<T: Serialize>(results: Vec<Result<T, Problem>>) -> Result<Vec<T>, Problem> {
    let failed = results.iter().filter(|result| result.is_err()).count();
    let worst = results.iter().filter_map(|result| result.as_ref().err()).max_by_key(|problem| problem.severity());
    let Some(worst) = worst else { return Ok(results.into_iter().flatten().collect()) };
    let problem = worst.of_many(format!("{failed} of {} did not succeed: see results.", results.len()));
    Err(problem.with("results", results.iter().map(either).collect::<Vec<_>>()))
}
