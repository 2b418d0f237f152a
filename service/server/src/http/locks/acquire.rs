//! `POST /v1/locks/{key}/acquire`.

use axum::response::Response;
use latchgate_core::Address;
use latchgate_core::lock::{LeaseId, Position};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answers::{Volatility, ended, left_ms, permits, refusal, unanswered};
use super::fields::{ModeFields, ModeName, check_priority, new_lease_id, parse_lease_id, parse_metadata, parse_owner};
use super::ticket::{Requested, Resumed};
use crate::access::Caller;
use crate::http::answer;
use crate::http::format::rfc3339;
use crate::http::path::LockKey;
use crate::http::problem::{Code, Problem, ProblemBody};
use crate::http::{Context, body, quotas};
use crate::locks::{Acquired, Failure, Granted, LockRequest, Refused, RefusedBecause};

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcquireRequest {
    /// The client's name, at most 256 bytes; refused clients see it. The server makes one if absent, which begins with
    /// `anonymous-`; clients cannot send such a name.
    #[schema(example = "billing-7", max_length = 256)]
    owner: Option<String>,
    /// A new random id for the lease. If the answer is lost, a repeated request with the same id gets the same grant,
    /// or 410 once the lease is one of the last eight of the key that have ended. 1 to 64 characters out of `A-Z a-z 0-9 . _ : -`. The server makes one if absent.
    #[schema(max_length = 64)]
    lease_id: Option<String>,
    /// `exclusive`, `shared` or `permits`; `exclusive` if absent.
    mode: Option<ModeName>,
    /// For mode `permits`: how many; 1 if absent.
    #[schema(minimum = 1)]
    permits: Option<u32>,
    /// For mode `permits`: out of how many. While permits are held or waited for, it must equal the key's limit. If absent,
    /// the key's limit applies.
    #[schema(minimum = 1)]
    limit: Option<u32>,
    /// Length of the lease in ms: 100 to 3 600 000 unless configured otherwise; 30 000 if absent.
    #[schema(example = 30_000, minimum = 1)]
    ttl_ms: Option<u64>,
    /// How long to wait in the queue, in ms: up to 50 000 unless configured otherwise; 0, the default, does not wait.
    #[schema(example = 0)]
    wait_ms: Option<u64>,
    /// 1 to 10, higher first; 1 if absent. Equal priorities are served in the order of arrival.
    #[schema(minimum = 1, maximum = 10)]
    priority: Option<u8>,
    /// Whether an `owner` that holds the lock already gets another lease with the same token; false if absent. Permits are
    /// always counted again.
    reentrant: bool,
    /// Take a free lock ahead of the queue.
    barge: bool,
    /// Lock-delay: if this lease expires, the lock is not granted for this long, in ms; 0 if absent.
    delay_ms: Option<u64>,
    /// If the lease is released earlier than this after its grant, in ms, the lock is granted to no client until then; 0 if absent.
    /// For jobs that many machines start at about the same time. Only with the mode `exclusive`.
    min_hold_ms: Option<u64>,
    /// Renewals extend the lease no further than this, in ms from the grant.
    max_hold_ms: Option<u64>,
    /// From a wait that ended without the lock less than a minute ago: the request returns to its position in the queue.
    /// Repeat the other fields of that request.
    ticket: Option<String>,
    /// A JSON object of at most 1 KiB; refused clients see it.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Serialize, ToSchema)]
pub struct AcquireAnswer<'a> {
    #[schema(example = "orders/42")]
    key: &'a str,
    /// Proves that the lease is yours: keep it secret.
    lease_id: &'a str,
    owner: &'a str,
    #[schema(value_type = ModeName)]
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// The fencing token: higher than every token granted for this key before (a nested lease of the same owner keeps its
    /// token). Let the protected resource refuse lower tokens.
    #[schema(example = 1_784_000_000_000_000_u64)]
    token: u64,
    /// What is left of the lease, in ms, at the time of this answer.
    ttl_ms: u64,
    /// When the lease ends unless renewed, by the store's clock.
    expires_at: String,
    /// How long the request waited, in ms, including earlier waits of its ticket.
    waited_ms: u64,
    /// `volatile` if the store may lose the lease in a crash or a fail-over (Redis); absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Volatility>)]
    durability: Option<&'static str>,
    /// After a forced switch of engines: for this many ms, other clients may hold the lock with leases of the old engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced_ms: Option<u64>,
}

/// Take a lock.
///
/// 200: the lock is yours until the lease ends. Any other status: it is not. With `wait_ms` the request waits in the key's
/// queue. A client that closes its connection leaves the queue.
#[utoipa::path(
    post, path = "/v1/locks/{key}/acquire", tag = "locks", operation_id = "acquireLock",
    params(LockKey),
    request_body(content = Option<AcquireRequest>, example = json!({"owner": "billing-7", "ttl_ms": 30_000})),
    responses(
        (status = 200, description = "The lock is yours.", body = AcquireAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`, `invalid-ticket`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`lease-id-reused`, `limit-mismatch`, `key-full`, `upgrade-blocked`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`lease-lost`: this lease id was granted before and has ended", body = ProblemBody, content_type = "application/problem+json"),
        (status = 423, description = "`lock-held`, `lock-reserved`, `lock-delayed`, `wait-timeout`; with the first 16 `holders`, `holders_count`, `waiters`, `position`, and a `ticket` after a wait", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn acquire(
    context: &Context,
    caller: &Caller,
    address: &Address,
    body: &[u8],
) -> Result<Response, Problem> {
    let request: AcquireRequest = body::parse(body)?;
    let ask = request.parse(context, address)?;
    quotas::check_leases(context, caller, &[address], &ask.lease_id).await?;
    let _waits = context.waits.enter_for(caller, ask.wait)?;
    let (lease_id, requested) = (ask.lease_id.clone(), (ask.mode, ask.limit));
    match context.locks.acquire(address, ask).await {
        Ok(Acquired::Granted(granted)) => {
            quotas::count_leases(context, caller, &[(address, &granted.lease)], granted.now)?;
            Ok(answer::ok(&granted_answer(context, address, &granted)))
        }
        Ok(Acquired::Refused(refused)) => Err(with_ticket(context, &[(address, requested)], &lease_id, &refused)),
        Ok(Acquired::WaitFailed { failure, position }) => {
            Err(wait_failed(context, &[(address, requested)], &lease_id, &failure, position))
        }
        Ok(other) => Err(ended(&other)),
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}

/// A refusal; after a wait, with a ticket to continue it.
pub fn with_ticket(
    context: &Context,
    keys: &[(&Address, Requested)],
    lease_id: &LeaseId,
    refused: &Refused,
) -> Problem {
    let problem = refusal(refused);
    match refused.why {
        RefusedBecause::WaitTimeout => {
            problem.with("ticket", context.tickets.issue(keys, lease_id, refused.position, refused.now))
        }
        _ => problem,
    }
}

/// The answer to a wait that ended while the store did not answer, with a ticket to continue it.
pub fn wait_failed(
    context: &Context,
    keys: &[(&Address, Requested)],
    lease_id: &LeaseId,
    failure: &Failure,
    position: Position,
) -> Problem {
    let ticket = context.tickets.issue(keys, lease_id, position, context.locks.now());
    unanswered(failure, lease_id).with("ticket", ticket)
}

impl AcquireRequest {
    fn parse(self, context: &Context, address: &Address) -> Result<LockRequest, Problem> {
        let resumed = self.resumed(context, address)?;
        let (mode, limit) = match resumed.as_ref().and_then(|resumed| resumed.requested) {
            Some(requested) => requested,
            None => self.mode_fields().parse()?,
        };
        Ok(LockRequest {
            owner: parse_owner(self.owner.as_deref())?,
            mode,
            limit,
            ttl_ms: context.ttl_or_default(self.ttl_ms)?,
            reentrant: self.reentrant,
            barge: self.barge,
            delay_ms: context.check_delay(self.delay_ms)?,
            min_hold_ms: context.check_min_hold(self.min_hold_ms, [mode])?,
            max_hold_ms: context.check_max_hold(self.max_hold_ms)?,
            warn_after_ms: context.access.warn_after_ms(&address.app),
            priority: check_priority(self.priority)?,
            metadata: self.metadata.map(parse_metadata).transpose()?,
            wait: context.check_wait(self.wait_ms)?,
            position: resumed.as_ref().map(|resumed| resumed.position),
            is_new_lease: resumed.is_none() && self.lease_id.is_none(),
            lease_id: lease_id(resumed, self.lease_id.as_deref())?,
        })
    }

    fn mode_fields(&self) -> ModeFields {
        ModeFields { mode: self.mode, permits: self.permits, limit: self.limit }
    }

    fn resumed(&self, context: &Context, address: &Address) -> Result<Option<Resumed>, Problem> {
        let Some(ticket) = &self.ticket else { return Ok(None) };
        let is_named = self.mode.is_some() || self.permits.is_some() || self.limit.is_some();
        let requested = if is_named { Some(self.mode_fields().parse()?) } else { None };
        let resumed = context.tickets.redeem(ticket, &[(address, requested)], context.locks.now())?;
        check_unchanged(&resumed, self.lease_id.as_deref(), self.priority)?;
        Ok(Some(resumed))
    }
}

/// The ticket's lease id, else the client's, else a new one.
pub fn lease_id(resumed: Option<Resumed>, proposed: Option<&str>) -> Result<LeaseId, Problem> {
    match (resumed, proposed) {
        (Some(resumed), _) => Ok(resumed.lease_id),
        (None, Some(lease_id)) => parse_lease_id(lease_id),
        (None, None) => Ok(new_lease_id()),
    }
}

/// A ticket continues one wait. It is not valid for another request, nor for a higher priority.
pub fn check_unchanged(resumed: &Resumed, lease_id: Option<&str>, priority: Option<u8>) -> Result<(), Problem> {
    let invalid = |detail: &str| Err(Problem::new(Code::InvalidTicket, detail).with("field", "ticket"));
    if lease_id.is_some_and(|lease_id| lease_id != resumed.lease_id.as_str()) {
        return invalid("This ticket is for another lease_id.");
    }
    if priority.is_some_and(|priority| priority != resumed.position.priority) {
        return invalid("This ticket is for another priority.");
    }
    Ok(())
}

pub fn granted_answer<'a>(context: &Context, address: &'a Address, granted: &'a Granted) -> AcquireAnswer<'a> {
    let lease = &granted.lease;
    AcquireAnswer {
        key: address.key.as_str(),
        lease_id: lease.lease_id.as_str(),
        owner: lease.owner.as_str(),
        mode: lease.mode.as_str(),
        permits: permits(lease),
        limit: granted.limit,
        token: lease.token,
        ttl_ms: left_ms(lease, granted.now),
        expires_at: rfc3339(lease.expires_at),
        waited_ms: lease.waited_ms,
        durability: context.durability(),
        forced_ms: context.forced_ms(),
    }
}
