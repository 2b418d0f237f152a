//! The endpoints of the gate.

mod answers;
mod batch;
mod idempotency_key;
mod refusals;
mod requests;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use latchgate_core::gate::{Fingerprint, OperationId};
use serde::Serialize;

use self::answers::{
    ForgetAnswer, HeartbeatAnswer, OperationAnswer, OperationsAnswer, PostAnswer, PreAnswer, PreviewAnswer,
};
use self::batch::BatchAnswer;
use self::idempotency_key::idempotency_key;
use self::requests::{
    BatchRequest, ForgetQuery, HeartbeatRequest, OperationsQuery, PostRequest, PreRequest, PreviewRequest,
};
use super::problem::{Problem, ProblemBody};
use super::{Shared, body, query};
use crate::runtime::operations::{ListFailure, Told};

/// The id in a path.
pub struct Id(OperationId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    /// What cannot be an id is the id of nothing.
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        id.ok().and_then(|Path(id)| id.parse().ok()).map(Self).ok_or_else(refusals::not_found)
    }
}

/// May I do it?
///
/// 2xx: do it, then post the outcome with the `stamp`. Anything else: do not. With `wait_ms` the call waits while another
/// attempt runs: if that fails, one of those who wait may go; if it succeeds, all are told its result.
#[utoipa::path(
    post, path = "/v1/operations/pre", tag = "operations",
    params(("Idempotency-Key" = Option<String>, Header, description = "Stands in for absent `contents`; quoted or bare")),
    request_body(content = PreRequest, example = json!({"operation": "charge", "contents": {"order": 42, "amount": "19.90"}})),
    responses(
        (status = 201, description = "Go: it is yours until the lease ends.", body = PreAnswer),
        (status = 200, description = "Go: this `attempt_id` had asked before and has this stamp already; or, with `guarded` false, nobody keeps others from doing it too", body = PreAnswer),
        (status = 400, description = "`invalid-request`; `field` may be a path into the contents", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`operation-in-progress`, `operation-duplicate` with `result`, `operation-unknown`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`body-too-large`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`id-collision`, `contents-mismatch`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown` with `attempt_id`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn pre(State(context): State<Shared>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let body = context.operation_body(body).await?;
    let request: PreRequest<'_> = body::parse(&body)?;
    let stand_in = if request.contents.is_none() { idempotency_key(&headers)? } else { None };
    let ask = request.into_ask(&context, stand_in.as_deref())?;
    let (id, attempt_id) = (ask.fingerprint.id, ask.attempt_id.clone());
    let told = context.operations.pre(&context.app, ask).await;
    let told = told.map_err(|failure| refusals::unanswered(&failure, attempt_id.as_ref()))?;
    let granted = answers::pre(id, told)?;
    Ok(json(granted.status, &granted.answer))
}

/// May I do all of these?
///
/// 2xx: all of them. Anything else: not all; `items` has the answer to each. With `all_or_nothing`, the default, nothing
/// is claimed then; without it, the items with status 200 or 201 are yours all the same.
#[utoipa::path(
    post, path = "/v1/operations/pre/batch", tag = "operations",
    request_body(content = BatchRequest, example = json!({"operations": [
        {"operation": "charge", "contents": {"order": 43, "amount": "5.00"}},
        {"operation": "send-mail", "contents": "order-43-confirmation"},
    ]})),
    responses(
        (status = 201, description = "Go, all of them.", body = BatchAnswer),
        (status = 200, description = "Go, all of them; none is new.", body = BatchAnswer),
        (status = 400, description = "`invalid-request`; `field` names the item: `operations[3].contents.a`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`batch-refused` with `items`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`body-too-large`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`, `shutting-down`, with `items`: nothing speaks against the operations themselves", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn pre_batch(State(context): State<Shared>, body: Body) -> Result<Response, Problem> {
    let body = context.operation_body(body).await?;
    let request: BatchRequest<'_> = body::parse(&body)?;
    let (asks, all_or_nothing) = request.into_asks(&context)?;
    let ids: Vec<_> = asks.iter().map(|ask| (ask.fingerprint.id, ask.attempt_id.clone())).collect();
    let told = context.operations.pre_all(&context.app, asks, all_or_nothing).await;
    let (status, answer) = batch::batch(&ids, told, all_or_nothing)?;
    Ok(json(status, &answer))
}

/// What would the id be?
///
/// Stores nothing and asks no store.
#[utoipa::path(
    post, path = "/v1/operations/preview", tag = "operations",
    request_body(content = PreviewRequest, example = json!({"operation": "charge", "contents": {"order": 42, "amount": "19.90"}})),
    responses(
        (status = 200, description = "The id, and the contents in the form that it is made of.", body = PreviewAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`body-too-large`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn preview(State(context): State<Shared>, body: Body) -> Result<Response, Problem> {
    let body = context.operation_body(body).await?;
    let request: PreviewRequest<'_> = body::parse(&body)?;
    let (operation, contents) = request.parse()?;
    let fingerprint = Fingerprint::of(&context.app, &operation, &contents);
    Ok(json(StatusCode::OK, &answers::preview(fingerprint, &contents)))
}

/// This is how it ended.
///
/// A success is remembered, and its result shown to whoever asks for the operation again. A failure is forgotten: the
/// next pre may go at once. Repeating the call with the same outcome is safe.
#[utoipa::path(
    post, path = "/v1/operations/{id}/post", tag = "operations",
    params(("id" = String, Path, description = "From the answer to pre", example = "7d88c00ddeafbae02d6198a43e38f30a")),
    request_body(content = PostRequest, example = json!({"stamp": "the stamp that the pre gave", "outcome": "success", "result": {"receipt": 7}})),
    responses(
        (status = 200, description = "Recorded.", body = PostAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 403, description = "`stamp-mismatch`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`operation-not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`operation-superseded`: the work may have been done twice; `outcome-conflict`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`body-too-large`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`: repeat it", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn post(State(context): State<Shared>, Id(id): Id, body: Body) -> Result<Response, Problem> {
    let body = context.operation_body(body).await?;
    let request: PostRequest<'_> = body::parse(&body)?;
    let (stamp, ask) = request.into_ask(&context)?;
    let told = context.operations.post(&context.app, id, &stamp, ask).await;
    match told.map_err(|failure| refusals::unanswered(&failure, None))? {
        Told::Outcome { outcome, now } => Ok(json(StatusCode::OK, &answers::post(id, &outcome, now)?)),
        Told::PermanentNeedsDurable => Err(permanent_needs_durable()),
    }
}

/// I am still at it.
///
/// Counts the lease anew from now. 409 `operation-superseded`: another attempt has taken over, so stop.
#[utoipa::path(
    post, path = "/v1/operations/{id}/heartbeat", tag = "operations",
    params(("id" = String, Path, description = "From the answer to pre", example = "7d88c00ddeafbae02d6198a43e38f30a")),
    request_body(content = HeartbeatRequest, example = json!({"stamp": "the stamp that the pre gave"})),
    responses(
        (status = 200, description = "The lease is counted anew from now.", body = HeartbeatAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 403, description = "`stamp-mismatch`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`operation-not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`operation-superseded`, `operation-ended`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn heartbeat(State(context): State<Shared>, Id(id): Id, body: Body) -> Result<Response, Problem> {
    let body = context.operation_body(body).await?;
    let request: HeartbeatRequest = body::parse(&body)?;
    let (stamp, lease_ms) = request.parse(&context)?;
    let told = context.operations.heartbeat(&context.app, id, &stamp, lease_ms).await;
    match told.map_err(|failure| refusals::unanswered(&failure, None))? {
        Told::Outcome { outcome, now } => Ok(json(StatusCode::OK, &answers::heartbeat(id, &outcome, now)?)),
        Told::PermanentNeedsDurable => Err(permanent_needs_durable()),
    }
}

/// Look at an operation.
#[utoipa::path(
    get, path = "/v1/operations/{id}", tag = "operations", operation_id = "inspect_operation",
    params(("id" = String, Path, description = "From the answer to pre or preview", example = "7d88c00ddeafbae02d6198a43e38f30a")),
    responses(
        (status = 200, description = "The operation as it is now.", body = OperationAnswer),
        (status = 404, description = "`operation-not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn inspect(State(context): State<Shared>, Id(id): Id) -> Result<Response, Problem> {
    let shown = context.operations.get(&context.app, id).await;
    match shown.map_err(|failure| refusals::unanswered(&failure, None))? {
        Some(shown) => Ok(json(StatusCode::OK, &answers::operation(&shown))),
        None => Err(refusals::not_found()),
    }
}

/// Forget an operation.
///
/// The next pre may go. One that is started, whether or not its lease has passed, or whose end is unknown, is forgotten
/// only with `force=true`.
#[utoipa::path(
    delete, path = "/v1/operations/{id}", tag = "operations", operation_id = "forget_operation",
    params(
        ("id" = String, Path, description = "From the answer to pre or preview", example = "7d88c00ddeafbae02d6198a43e38f30a"),
        ForgetQuery,
    ),
    responses(
        (status = 200, description = "Forgotten.", body = ForgetAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`operation-not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`operation-in-progress`, `operation-unknown`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn forget(State(context): State<Shared>, Id(id): Id, uri: Uri) -> Result<Response, Problem> {
    let ForgetQuery { force } = query::parse(&uri)?;
    let told = context.operations.forget(&context.app, id, force).await;
    match told.map_err(|failure| refusals::unanswered(&failure, None))? {
        Told::Outcome { outcome, now } => Ok(json(StatusCode::OK, &answers::forget(id, &outcome, now)?)),
        Told::PermanentNeedsDurable => Err(permanent_needs_durable()),
    }
}

/// List operations.
///
/// In an order of the store's own, without results.
#[utoipa::path(
    get, path = "/v1/operations", tag = "operations", operation_id = "list_operations", params(OperationsQuery),
    responses(
        (status = 200, description = "One page.", body = OperationsAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn list(State(context): State<Shared>, uri: Uri) -> Result<Response, Problem> {
    let query: OperationsQuery = query::parse(&uri)?;
    let (filter, limit) = query.parse()?;
    let page = context.operations.list(&context.app, &filter, query.cursor.as_deref(), limit).await;
    let page = page.map_err(|failure| match failure {
        ListFailure::InvalidCursor => Problem::field("cursor", "must be the next_cursor of a page of this listing"),
        ListFailure::Failure(failure) => refusals::unanswered(&failure, None),
    })?;
    let operations = page.records.iter().map(answers::listed).collect();
    Ok(json(StatusCode::OK, &OperationsAnswer { operations, next_cursor: page.next }))
}

fn permanent_needs_durable() -> Problem {
    Problem::field("permanent", "needs an operation that was claimed with durability durable")
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    (status, axum::Json(answer)).into_response()
}
