//! The endpoints of locks.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use latchgate_core::lock::{Lease, LeaseId, LockState, Lost, Metadata, Owner, PRIORITY_MAX, PRIORITY_MIN};
use latchgate_core::{Address, App, Key, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::body;
use super::format::{ms, rfc3339};
use super::path::{self, LockPath};
use super::problem::{Code, Problem, ProblemBody};
use super::{Context, Shared, query};
use crate::runtime::{Acquired, Ask, Failure, Granted, Refused, RefusedBecause, Released, Renewed};

/// Longest `metadata`, in bytes of compact JSON.
const METADATA_MAX_BYTES: usize = 1_024;
/// Longest advice to wait: a lock may be released long before its lease ends.
const RETRY_AFTER_MAX_MS: u64 = 1_000;
const LIST_LIMIT_DEFAULT: usize = 100;
const LIST_LIMIT_MAX: usize = 1_000;
/// Most states that one listing reads to find those that match.
const LIST_SCAN_MAX: usize = 10_000;

/// `POST /v1/locks/{key}/{verb}`.
pub async fn post(State(context): State<Shared>, uri: Uri, body: Body) -> Response {
    let rest = rest_of(&uri);
    let (key, verb) = match LockPath::split(rest) {
        LockPath::Verb(key, verb) => (key, verb),
        LockPath::Key(key) if key.contains('/') => return no_such_verb().into_response(),
        LockPath::Key(_) => return not_allowed("GET").into_response(),
    };
    let answer = match path::address(&context.app, key) {
        Ok(address) => match body::read(body, context.limits.body_bytes_max, context.limits.body_timeout).await {
            Ok(body) => match verb {
                "acquire" => acquire(&context, &address, &body).await,
                "renew" => renew(&context, &address, &body).await,
                _ => release(&context, &address, &body).await,
            },
            Err(problem) => Err(problem),
        },
        Err(problem) => Err(problem),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
}

/// `GET /v1/locks/{key}`.
pub async fn get(State(context): State<Shared>, uri: Uri) -> Response {
    match LockPath::split(rest_of(&uri)) {
        LockPath::Key(key) => inspect(&context, key).await.unwrap_or_else(IntoResponse::into_response),
        LockPath::Verb(..) => not_allowed("POST").into_response(),
    }
}

fn rest_of(uri: &Uri) -> &str {
    uri.path().strip_prefix("/v1/locks/").unwrap_or_default()
}

fn no_such_verb() -> Problem {
    Problem::new(Code::NotFound, "A key has acquire, renew and release. Send a slash inside a key as %2F.")
}

fn not_allowed(allowed: &'static str) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("This path has {allowed}.")).allow(allowed)
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcquireRequest {
    /// Who asks, at most 256 bytes; shown to whoever is refused. Made up if absent.
    #[schema(example = "billing-7", max_length = 256)]
    owner: Option<String>,
    /// A fresh random id, proposed so that the call can be repeated when its answer was lost: the same id gets the same
    /// grant. 1 to 64 characters out of `A-Z a-z 0-9 . _ : -`. Made up if absent.
    #[schema(max_length = 64)]
    lease_id: Option<String>,
    /// How the lock is shared.
    mode: ModeName,
    /// Length of the lease in ms: 100 to 3 600 000 unless configured otherwise; 30 000 if absent.
    #[schema(example = 30_000, minimum = 1)]
    ttl_ms: Option<u64>,
    /// How long to wait in the queue, in ms: up to 50 000 unless configured otherwise; 0, the default, does not wait.
    #[schema(example = 0)]
    wait_ms: Option<u64>,
    /// 1 to 10, higher first; 1 if absent. First come, first served within one.
    #[schema(minimum = 1, maximum = 10)]
    priority: Option<u8>,
    /// A JSON object of at most 1 KiB, shown to whoever is refused.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModeName {
    #[default]
    Exclusive,
}

#[derive(Serialize, ToSchema)]
pub struct AcquireAnswer<'a> {
    #[schema(example = "orders/42")]
    key: &'a str,
    /// Proves that the lease is yours: keep it to yourself.
    lease_id: &'a str,
    owner: &'a str,
    mode: &'static str,
    /// Strictly higher than every token granted for this key before: let the resource refuse lower ones.
    #[schema(example = 1_784_000_000_000_000_u64)]
    token: u64,
    /// What is left of the lease, in ms, at the time of this answer.
    ttl_ms: u64,
    /// When the lease ends unless renewed, by the store's clock.
    expires_at: String,
    /// How long you stood in the queue, in ms.
    waited_ms: u64,
}

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
    /// Set when somebody asks for the lock back.
    #[schema(value_type = Option<Object>)]
    revocation: (),
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

/// A lease as others may see it: without its id.
#[derive(Serialize, ToSchema)]
pub struct Holder {
    owner: String,
    mode: &'static str,
    token: u64,
    granted_at: String,
    expires_at: String,
    /// What is left of the lease, in ms.
    ttl_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
}

#[derive(Serialize, ToSchema)]
pub struct LockAnswer {
    #[schema(example = "orders/42")]
    key: String,
    held: bool,
    /// The highest token granted so far; 0 if none is known.
    token: u64,
    holders: Vec<Holder>,
    /// How many wait for it.
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
    /// Send it as `cursor` for the next page; absent on the last. A page may be short, or empty, before the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Take a lock.
///
/// 200: it is yours until the lease ends. Anything else: it is not. With `wait_ms` the call stands in the key's queue
/// and answers when its turn has come; a client that goes away leaves the queue.
#[utoipa::path(
    post, path = "/v1/locks/{key}/acquire", tag = "locks",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders")),
    request_body(content = Option<AcquireRequest>, example = json!({"owner": "billing-7", "ttl_ms": 30_000})),
    responses(
        (status = 200, description = "The lock is yours.", body = AcquireAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`lease-id-reused`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`: this lease id was granted before and has ended", body = ProblemBody, content_type = "application/problem+json"),
        (status = 423, description = "`lock-held`, `lock-reserved`, `wait-timeout`; with `holders`, `waiters`, `position`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn acquire(context: &Context, address: &Address, body: &[u8]) -> Result<Response, Problem> {
    let request: AcquireRequest = body::parse(body)?;
    let ask = request.into_ask(context)?;
    let lease_id = ask.lease_id.clone();
    match context.locks.acquire(address, ask).await {
        Ok(Acquired::Granted(granted)) => Ok(json(&acquire_answer(address, &granted))),
        Ok(Acquired::Refused(refused)) => Err(refusal(&refused)),
        Ok(Acquired::LeaseIdReused) => Err(Problem::new(
            Code::LeaseIdReused,
            "This lease_id is in use under another owner: propose a fresh one for every acquire.",
        )),
        Ok(Acquired::LeaseLost(lost)) => Err(lease_lost(&lost)),
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
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
pub(super) async fn renew(context: &Context, address: &Address, body: &[u8]) -> Result<Response, Problem> {
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
            revocation: (),
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
pub(super) async fn release(context: &Context, address: &Address, body: &[u8]) -> Result<Response, Problem> {
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

/// Look at a lock.
#[utoipa::path(
    get, path = "/v1/locks/{key}", tag = "locks",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders")),
    responses(
        (status = 200, description = "The lock as it is now; one that was never taken is free.", body = LockAnswer),
        (status = 400, description = "`invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn inspect(context: &Context, key: &str) -> Result<Response, Problem> {
    let address = path::address(&context.app, key)?;
    let inspected = context.locks.inspect(&address).await.map_err(|failure| Problem::of_failure(&failure))?;
    Ok(json(&LockAnswer {
        key: address.key.as_str().to_owned(),
        held: !inspected.holders.is_empty(),
        token: inspected.token,
        holders: holders(&inspected.holders, inspected.now),
        waiters: inspected.waiters,
    }))
}

/// List locks in key order.
#[utoipa::path(
    get, path = "/v1/locks", tag = "locks", params(ListQuery),
    responses(
        (status = 200, description = "One page.", body = ListAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn list(State(context): State<Shared>, uri: Uri) -> Result<Response, Problem> {
    let query: ListQuery = query::parse(&uri)?;
    let limit = query.limit.unwrap_or(LIST_LIMIT_DEFAULT);
    if limit == 0 || limit > LIST_LIMIT_MAX {
        return Err(Problem::field("limit", format!("must be 1 to {LIST_LIMIT_MAX}")));
    }
    let cursor = query.cursor.as_deref().map(Key::parse).transpose();
    let mut after = cursor.map_err(|error| Problem::field("cursor", error))?;
    let prefix = query.prefix.as_deref().unwrap_or_default();
    if !prefix.is_empty() {
        Key::parse(prefix).map_err(|error| Problem::field("prefix", error))?;
    }
    // One more than asked for tells whether there is another page; a filter may leave few of many.
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
                return Ok(json(&ListAnswer { locks, next_cursor: after.map(|key| key.as_str().to_owned()) }));
            }
            after = Some(key.clone());
            locks.extend(listed(&key, state, now, &query));
        }
        if is_last || scanned >= LIST_SCAN_MAX {
            let next_cursor = after.filter(|_| !is_last).map(|key| key.as_str().to_owned());
            return Ok(json(&ListAnswer { locks, next_cursor }));
        }
    }
}

fn listed(key: &Key, mut state: LockState, now: Timestamp, query: &ListQuery) -> Option<LockAnswer> {
    state.settle(now);
    let is_held = !state.holders().is_empty();
    let is_owned = |owner: &String| state.holders().iter().any(|lease| lease.owner.as_str() == owner);
    if query.held.is_some_and(|held| held != is_held) || !query.owner.as_ref().is_none_or(is_owned) {
        return None;
    }
    Some(LockAnswer {
        key: key.as_str().to_owned(),
        held: is_held,
        token: state.token(),
        holders: holders(state.holders(), now),
        waiters: state.turns().iter().map(|turn| u64::from(turn.waiting)).sum(),
    })
}

impl AcquireRequest {
    fn into_ask(self, context: &Context) -> Result<Ask, Problem> {
        let ModeName::Exclusive = self.mode;
        let lease_id = match self.lease_id {
            Some(lease_id) => parse_lease_id(&lease_id)?,
            None => made_up_lease_id(),
        };
        let owner = self.owner.map(|owner| Owner::parse(&owner)).transpose();
        let wait_ms = self.wait_ms.unwrap_or(0);
        if wait_ms > context.limits.wait_ms_max {
            return Err(Problem::field("wait_ms", format!("must be at most {}", context.limits.wait_ms_max)));
        }
        let priority = self.priority.unwrap_or(PRIORITY_MIN);
        if !(PRIORITY_MIN..=PRIORITY_MAX).contains(&priority) {
            return Err(Problem::field("priority", format!("must be {PRIORITY_MIN} to {PRIORITY_MAX}")));
        }
        Ok(Ask {
            lease_id,
            owner: owner.map_err(|error| Problem::field("owner", error))?,
            ttl_ms: match self.ttl_ms {
                Some(ttl_ms) => context.check_ttl(ttl_ms)?,
                None => context.limits.ttl_ms_default,
            },
            priority,
            metadata: self.metadata.map(parse_metadata).transpose()?,
            wait: Duration::from_millis(wait_ms),
        })
    }
}

impl Context {
    fn check_ttl(&self, ttl_ms: u64) -> Result<u64, Problem> {
        let (min, max) = (self.limits.ttl_ms_min, self.limits.ttl_ms_max);
        if (min..=max).contains(&ttl_ms) {
            Ok(ttl_ms)
        } else {
            Err(Problem::field("ttl_ms", format!("must be {min} to {max}")))
        }
    }
}

fn parse_lease_id(text: &str) -> Result<LeaseId, Problem> {
    LeaseId::parse(text).map_err(|error| Problem::field("lease_id", error))
}

fn made_up_lease_id() -> LeaseId {
    let mut buffer = uuid::Uuid::encode_buffer();
    let text = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
    LeaseId::parse(text).expect("a UUID is a lease id")
}

fn parse_metadata(metadata: Map<String, Value>) -> Result<Metadata, Problem> {
    let text = Value::Object(metadata).to_string();
    if text.len() > METADATA_MAX_BYTES {
        let rule = format!("must be at most {METADATA_MAX_BYTES} bytes of compact JSON, not {}", text.len());
        return Err(Problem::field("metadata", rule));
    }
    Ok(Metadata::from_json_text(&text))
}

fn acquire_answer<'a>(address: &'a Address, granted: &'a Granted) -> AcquireAnswer<'a> {
    let lease = &granted.lease;
    AcquireAnswer {
        key: address.key.as_str(),
        lease_id: lease.lease_id.as_str(),
        owner: lease.owner.as_str(),
        mode: lease.mode.as_str(),
        token: lease.token,
        ttl_ms: left_ms(lease, granted.now),
        expires_at: rfc3339(lease.expires_at),
        waited_ms: ms(granted.waited),
    }
}

/// What is left of a lease. The estimate of the store's clock may go back by a ms: no lease is longer than asked.
fn left_ms(lease: &Lease, now: Timestamp) -> u64 {
    lease.expires_at.ms_since(now).min(lease.ttl_ms)
}

fn holders(leases: &[Lease], now: Timestamp) -> Vec<Holder> {
    leases.iter().map(|lease| holder(lease, now)).collect()
}

fn holder(lease: &Lease, now: Timestamp) -> Holder {
    let metadata = lease.metadata.as_ref();
    Holder {
        owner: lease.owner.as_str().to_owned(),
        mode: lease.mode.as_str(),
        token: lease.token,
        granted_at: rfc3339(lease.granted_at),
        expires_at: rfc3339(lease.expires_at),
        ttl_ms: lease.expires_at.ms_since(now),
        metadata: metadata.and_then(|metadata| RawValue::from_string(metadata.as_json_text().to_owned()).ok()),
    }
}

fn refusal(refused: &Refused) -> Problem {
    let first = refused.holders.first().map_or("somebody", |lease| lease.owner.as_str());
    let (code, detail) = match refused.why {
        RefusedBecause::Held => (Code::LockHeld, format!("{first} holds this lock.")),
        RefusedBecause::Reserved => (Code::LockReserved, "The lock is free, but others are before you.".to_owned()),
        RefusedBecause::WaitTimeout => {
            (Code::WaitTimeout, format!("You waited {} ms without getting the lock.", ms(refused.waited)))
        }
    };
    let expiry = refused.holders.iter().map(|lease| lease.ends_at().ms_since(refused.now)).min();
    let problem = Problem::new(code, detail)
        .with("holders", holders(&refused.holders, refused.now))
        .with("waiters", refused.waiters)
        .with("position", refused.position)
        .retry_after_ms(expiry.unwrap_or(RETRY_AFTER_MAX_MS).clamp(1, RETRY_AFTER_MAX_MS));
    if refused.why == RefusedBecause::WaitTimeout { problem.with("waited_ms", ms(refused.waited)) } else { problem }
}

fn lease_lost(lost: &Lost) -> Problem {
    let why = lost.why.map_or("unknown", |why| why.as_str());
    let detail = match lost.why {
        Some(why) => format!("This lease has ended: {why}."),
        None => "This key has no such lease, or does not remember it.".to_owned(),
    };
    Problem::new(Code::LeaseLost, detail).with("why", why).with("at", lost.at.map(rfc3339)).with("token", lost.token)
}

fn unanswered(failure: &Failure, lease_id: &LeaseId) -> Problem {
    let problem = Problem::of_failure(failure);
    match failure {
        Failure::OutcomeUnknown(_) => problem.with("lease_id", lease_id.as_str()),
        _ => problem,
    }
}

fn json(answer: &impl Serialize) -> Response {
    axum::Json(answer).into_response()
}

/// Every key belongs to this app until apps are made.
pub fn default_app() -> App {
    App::default()
}
