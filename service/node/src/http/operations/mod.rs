//! The endpoints of the gate.

mod answers;
mod batch;
pub mod records;
mod refusals;
pub(super) mod requests;

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use latchgate_core::gate::{Fingerprint, OperationAddress, Outcome};

use self::answers::{EnterAnswer, ForgetAnswer, HeartbeatAnswer, PostAnswer, PreAnswer, PreviewAnswer};
use self::batch::BatchAnswer;
use self::records::{OperationAnswer, OperationsAnswer};
use self::requests::{
    BatchRequest, EnterRequest, ForgetQuery, HeartbeatRequest, OperationQuery, OperationsQuery, PostRequest,
    PreRequest, PreviewRequest, ResolveRequest,
};
use super::answer::{json, ok};
use super::body::Json;
use super::call::{Answered, Call};
use super::endpoint::RequestContext;
use super::problem::{Problem, within};
use super::query::{PAGE_MAX, Query};
use crate::gate::{ListFailure, Reply, Shown};
use crate::store::Listing;

/// Longest `wait_ms` that is not taken for a mistake: a day.
const WAIT_MS_MAX: u64 = 86_400_000;

/// The operation of the caller's app whose id is in a path.
pub struct PathId(OperationAddress);

impl FromRequestParts<RequestContext> for PathId {
    type Rejection = Problem;

    /// A text that cannot be an id gets the same answer as an unknown id.
    async fn from_request_parts(parts: &mut Parts, served: &RequestContext) -> Result<Self, Problem> {
        let call = Call::from_request_parts(parts, served).await?;
        let id = call.exchange.parameter(&parts.uri).parse().map_err(|_| refusals::not_found())?;
        Ok(Self(OperationAddress { app: call.app().clone(), id }))
    }
}

/// Claim an operation before doing it.
///
/// 2xx: do the operation, then post the outcome with the `stamp`. Any other status: do not do it. With `wait_ms` the request
/// waits while another attempt runs: if that attempt fails, one waiting request may proceed; if it succeeds, all get its result.
#[utoipa::path(
    post, path = "/v1/operations/pre", tag = "operations",
    responses(
        (status = 201, description = "Proceed: the operation is yours until the lease ends.", body = PreAnswer),
        (status = 200, description = "Proceed: an earlier request with this `attempt_id` got the same stamp.", body = PreAnswer),
    )
)]
pub async fn pre(call: Call, Json(request): Json<PreRequest>) -> Answered {
    let pre = request.parse(&call)?;
    let _waits = call.enter_wait(pre.wait)?;
    let (id, attempt_id, wait) = (pre.fingerprint.id, pre.attempt_id.clone(), pre.wait);
    let answer = call.context.operations.pre(call.app(), pre).await;
    let answer = answer.map_err(|failure| refusals::unanswered(&failure, attempt_id.as_ref()))?;
    let granted = answers::pre(call.app(), id, answer).map_err(|problem| call.context.with_wait_max(problem, wait))?;
    Ok(json(granted.status, &granted.answer))
}

/// Claim several operations.
///
/// 2xx: all operations are yours. Any other status: not all are; `items` has the answer to each. With `all_or_nothing`, the
/// default, nothing is claimed then, unless an item is `outcome-unknown`. Without it, the items with status 200 or 201 are yours.
#[utoipa::path(
    post, path = "/v1/operations/pre/batch", tag = "operations",
    responses(
        (status = 201, description = "Proceed with all operations.", body = BatchAnswer),
        (status = 200, description = "Proceed with all operations; earlier requests had claimed them.", body = BatchAnswer),
    )
)]
pub async fn pre_batch(call: Call, Json(request): Json<BatchRequest>) -> Answered {
    let (pres, all_or_nothing) = request.parse(&call)?;
    call.count(pres.len() - 1)?;
    let ids: Vec<_> = pres.iter().map(|pre| (pre.fingerprint.id, pre.attempt_id.clone())).collect();
    let answer = call.context.operations.pre_all(call.app(), &pres, all_or_nothing).await;
    let (status, answer) = batch::batch(call.app(), &ids, answer, all_or_nothing)?;
    Ok(json(status, &answer))
}

/// Show the id that an operation would have.
///
/// Stores nothing.
#[utoipa::path(post, path = "/v1/operations/preview", tag = "operations", responses((status = 200, body = PreviewAnswer)))]
pub async fn preview(call: Call, Json(request): Json<PreviewRequest>) -> Answered {
    let (operation, canonical) = request.parse()?;
    let fingerprint = Fingerprint::of(call.app(), &operation, &canonical);
    Ok(ok(&PreviewAnswer {
        id: fingerprint.id.to_string(),
        sha256: fingerprint.sha256.to_string(),
        canonical: String::from_utf8_lossy(canonical.as_bytes()).into_owned(),
    }))
}

/// Post the outcome of an attempt.
///
/// A success is kept, and later requests for the operation get its result. After a failure the next pre may proceed at once. It
/// is safe to repeat the request with the same outcome.
#[utoipa::path(post, path = "/v1/operations/{id}/post", tag = "operations", responses((status = 200, body = PostAnswer)))]
pub async fn post(call: Call, PathId(address): PathId, Json(request): Json<PostRequest>) -> Answered {
    let post = request.parse()?;
    Ok(ok(&answers::post(address.id, &call.context.operations.post(&address, post).await?)?))
}

/// Enter a run that was made without a claim.
///
/// For a client that did the work although the gate did not answer its pre. The operation has succeeded from then on. If another attempt
/// runs, it is superseded. If another has succeeded, or may have, this is a suspected double run: counted, listed, and answered with
/// `double_run` true. It is safe to repeat the request with the same `attempt_id`.
#[utoipa::path(post, path = "/v1/operations/enter", tag = "operations", responses((status = 200, body = EnterAnswer)))]
pub async fn enter(call: Call, Json(request): Json<EnterRequest>) -> Answered {
    let (pre, run, ran_at) = request.parse(&call)?;
    let entered = call.context.operations.enter(call.app(), &pre, run, ran_at).await?;
    Ok(ok(&answers::enter(pre.fingerprint.id, &entered)?))
}

/// Renew the lease of an attempt.
///
/// 409 `operation-superseded`: another attempt has taken over, so stop.
#[utoipa::path(
    post, path = "/v1/operations/{id}/heartbeat", tag = "operations",
    responses((status = 200, body = HeartbeatAnswer))
)]
pub async fn heartbeat(call: Call, PathId(address): PathId, Json(request): Json<HeartbeatRequest>) -> Answered {
    let (stamp, ttl_ms) = request.parse(&call.context)?;
    let reply = call.context.operations.heartbeat(&address, stamp, ttl_ms).await?;
    Ok(ok(&answers::heartbeat(address.id, &reply)?))
}

/// Show an operation.
///
/// With `wait_ms` the request waits for the outcome and claims nothing: it is answered 200 only if the operation has succeeded. After a
/// failure there is no record: 404.
#[utoipa::path(
    get, path = "/v1/operations/{id}", tag = "operations", params(OperationQuery),
    responses((status = 200, body = OperationAnswer))
)]
pub async fn inspect(call: Call, Query(query): Query<OperationQuery>, address: Result<PathId, Problem>) -> Answered {
    let wait_ms = query.wait_ms.map(|wait_ms| within("wait_ms", wait_ms, 0..=WAIT_MS_MAX)).transpose()?;
    let PathId(address) = address?;
    let shown = match wait_ms {
        Some(_) => succeeded(&call, &address, call.context.wait(wait_ms)).await?,
        None => call.context.operations.get(&address).await?.ok_or_else(refusals::not_found)?,
    };
    Ok(ok(&records::operation(&shown, &call.context.access)))
}

/// The operation, once it has succeeded.
async fn succeeded(call: &Call, address: &OperationAddress, wait: Duration) -> Result<Shown, Problem> {
    call.exchange.client.end_with_client(true);
    let _waits = call.enter_wait(wait)?;
    let Reply { outcome, record, waited, now, .. } = call.context.operations.outcome(address, wait).await?;
    let id = address.id;
    match (outcome, record) {
        (Outcome::Duplicate(_), Some(record)) => Ok(Shown { address: address.clone(), record, now }),
        (outcome, record) => {
            let description = record.and_then(|record| record.description);
            let problem = refusals::refusal(id, &outcome, Some(waited), now);
            let problem = records::describe(problem, call.app(), &outcome, description.as_deref());
            Err(call.context.with_wait_max(problem, wait))
        }
    }
}

/// Say what became of an operation whose outcome is unknown.
///
/// An operator calls this when the attempt has posted `unknown`, or has let its lease pass, and its real outcome has been checked. After
/// `success` every later request gets the result; after `failure` the next pre may proceed. An attempt that still runs is not resolved:
/// 409 `operation-in-progress`.
#[utoipa::path(post, path = "/v1/operations/{id}/resolve", tag = "operations", responses((status = 200, body = PostAnswer)))]
pub async fn resolve(call: Call, PathId(address): PathId, Json(request): Json<ResolveRequest>) -> Answered {
    let resolve = request.parse(&call)?;
    call.detail(|| {
        let outcome = if resolve.has_succeeded { "success" } else { "failure" };
        let by = resolve.resolution.by.as_deref().map(|by| format!(", by: {by}")).unwrap_or_default();
        format!("{outcome}, reason: {}{by}", resolve.resolution.reason)
    });
    Ok(ok(&answers::post(address.id, &call.context.operations.resolve(&address, resolve).await?)?))
}

/// Delete the record of an operation.
///
/// The next pre may proceed then. While an attempt is started, even if its lease has passed, while the outcome is unknown, or if the
/// record cannot be read, this needs `force=true` and the scope `admin`.
#[utoipa::path(
    delete, path = "/v1/operations/{id}", tag = "operations", params(ForgetQuery),
    responses((status = 200, body = ForgetAnswer))
)]
pub async fn forget(call: Call, PathId(address): PathId, Query(ForgetQuery { force }): Query<ForgetQuery>) -> Answered {
    call.detail(|| format!("force: {force}"));
    if force {
        // It ends what another client may still be doing.
        call.check_admin()?;
    }
    Ok(ok(&answers::forget(address.id, &call.context.operations.forget(&address, force).await?)?))
}

/// List operations.
///
/// Without results; in the store's own order, or by time.
#[utoipa::path(
    get, path = "/v1/operations", tag = "operations", params(OperationsQuery),
    responses((status = 200, body = OperationsAnswer))
)]
pub async fn list(call: Call, Query(query): Query<OperationsQuery>) -> Answered {
    let (filter, limit) = query.parse()?;
    call.count_listed(if query.sort.is_some() { PAGE_MAX } else { limit })?;
    let listing = Listing { app: call.apps().cloned(), filter, cursor: query.cursor, limit };
    let page = match query.sort {
        Some(order) => call.context.operations.list_by_time(&listing, order).await,
        None => call.context.operations.list(&listing).await,
    };
    let page = page.map_err(|failure| match failure {
        ListFailure::InvalidCursor => Problem::field("cursor", "must be the next_cursor of a page of this listing"),
        ListFailure::Failure(failure) => failure.into(),
    })?;
    let listed = |shown: &Shown| records::listed(shown, call.shown_app(&shown.address.app), &call.context.access);
    let operations = page.records.iter().map(listed).collect();
    let unreadable = page.unreadable.iter().map(|one| call.shown_name(&one.app, &one.id.to_string())).collect();
    Ok(ok(&OperationsAnswer { operations, unreadable, next_cursor: page.next, incomplete: page.is_incomplete }))
}
