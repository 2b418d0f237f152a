//! `/v1/leases/`: many leases in one call. Each is its own: one may fail and another not.

use futures::{StreamExt, stream};
use latchgate_core::lock::LeaseId;
use latchgate_core::{Address, Key};
use serde::Serialize;

use super::answer;
use super::body::Json;
use super::call::{Answered, Call};
use super::context::LEASES_PER_CALL_MAX;
use super::context::Volatility;
use super::locks::fields::parse_lease_id;
use super::locks::json::{ReleaseAnswer, RevocationAnswer, left_ms};
use super::locks::leases::{released, renewed};
use super::path::invalid_key;
use super::problem::{Problem, either, within};
use crate::format::{DateTime, answers, requests, rfc3339};

/// Calls of one request that are on their way at once. The committer serves them in few commits.
const AT_ONCE: usize = 128;

requests! {
    #[schema(example = json!({"leases": [{"key": "orders", "lease_id": "the-lease_id-of-the-acquire", "ttl_ms": 60_000}]}))]
    pub struct RenewLeasesRequest {
        /// 1 to 500, unless configured otherwise.
        #[schema(min_items = 1, max_items = 500)]
        #[serde(deserialize_with = "crate::objects::objects")]
        leases: Vec<LeaseToRenew>,
    }

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

    #[schema(example = json!({"leases": [{"key": "orders", "lease_id": "the-lease_id-of-the-acquire"}]}))]
    pub struct ReleaseLeasesRequest {
        /// 1 to 500, unless configured otherwise.
        #[schema(min_items = 1, max_items = 500)]
        #[serde(deserialize_with = "crate::objects::objects")]
        leases: Vec<LeaseToRelease>,
    }

    pub struct LeaseToRelease {
        /// Not percent-encoded.
        #[schema(example = "orders/42", min_length = 1, max_length = 512)]
        key: String,
        /// From the answer to acquire.
        #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._:-]+$")]
        lease_id: String,
    }
}

answers! {
    /// All leases are renewed: each now ends its `ttl_ms` from now.
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

    /// All leases are released.
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
        #[serde(flatten)]
        released: ReleaseAnswer,
    }
}

/// Renew many leases.
///
/// Those of a multilock are one for each key, all with its `lease_id`.
/// 200: all are renewed. Otherwise `results` says which are, and what became of the others.
#[utoipa::path(post, path = "/v1/leases/renew", tag = "leases", responses((status = 200, body = RenewLeasesAnswer)))]
pub async fn renew(call: Call, Json(request): Json<RenewLeasesRequest>) -> Answered {
    let named = request.leases.iter().map(|lease| (&*lease.key, &*lease.lease_id, lease.ttl_ms));
    let renewals = stream::iter(named_leases(&call, named)?).map(async |(address, lease_id, ttl_ms)| {
        let answer = renewed(&call, &address, &lease_id, ttl_ms, None).await;
        let (lease, now) = answer.map_err(|problem| of_lease(problem, &address, &lease_id))?;
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
    let (durability, forced_ms) = (call.context.durability(), call.context.locks.forced_ms());
    Ok(answer::ok(&RenewLeasesAnswer { results, durability, forced_ms }))
}

/// Release many leases.
///
/// Those of a multilock are one for each key, all with its `lease_id`.
/// 200: all are released. Otherwise `results` says which are, and what became of the others.
#[utoipa::path(post, path = "/v1/leases/release", tag = "leases", responses((status = 200, body = ReleaseLeasesAnswer)))]
pub async fn release(call: Call, Json(request): Json<ReleaseLeasesRequest>) -> Answered {
    let named = request.leases.iter().map(|lease| (&*lease.key, &*lease.lease_id, None));
    let releases = stream::iter(named_leases(&call, named)?).map(async |(address, lease_id, _)| {
        let answer = released(&call, &address, &lease_id).await;
        let released = answer.map_err(|problem| of_lease(problem, &address, &lease_id))?;
        let (key, lease_id) = (address.key.as_str().to_owned(), lease_id.as_str().to_owned());
        Ok(ReleasedLease { key, lease_id, status: 200, released })
    });
    let results = all(releases.buffered(AT_ONCE).collect().await)?;
    Ok(answer::ok(&ReleaseLeasesAnswer { results }))
}

/// The leases that a request names, all of which its caller may use, and their new lengths.
fn named_leases<'a>(
    call: &Call,
    named: impl ExactSizeIterator<Item = (&'a str, &'a str, Option<u64>)>,
) -> Result<Vec<(Address, LeaseId, Option<u64>)>, Problem> {
    within("leases", named.len(), 1..=LEASES_PER_CALL_MAX)?;
    call.count(named.len() - 1)?;
    let parse = |(key, lease_id, ttl_ms): (&str, &str, Option<u64>)| {
        let key = Key::parse(key).map_err(|_| invalid_key(key).with("field", "leases"))?;
        let ttl_ms = ttl_ms.map(|ttl_ms| call.context.check_ttl(ttl_ms)).transpose();
        Ok((call.address(key)?, parse_lease_id(lease_id)?, ttl_ms?))
    };
    let with_index = |(index, lease)| parse(lease).map_err(|problem: Problem| problem.with("index", index));
    named.enumerate().map(with_index).collect()
}

fn of_lease(problem: Problem, address: &Address, lease_id: &LeaseId) -> Problem {
    problem.with("key", address.key.as_str()).with("lease_id", lease_id.as_str())
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
