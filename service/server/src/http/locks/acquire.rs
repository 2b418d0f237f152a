//! `POST /v1/locks/{key}/acquire`.

use latchgate_core::lock::{LeaseId, LeaseTerms, Mode, PRIORITY_MAX, PRIORITY_MIN, Position};
use latchgate_core::{Address, App};
use serde_json::{Map, Value};

use super::answers::{Volatility, ended, left_ms, permits, refusal, unanswered};
use super::fields::{ModeFields, ModeName, acquire_body, check_unchanged, lease_id, parse_metadata, parse_owner};
use super::ticket::{Requested, Resumed};
use crate::format::{DateTime, answers, rfc3339};
use crate::http::body::Json;
use crate::http::call::{Answered, Call};
use crate::http::context::Context;
use crate::http::path::{LockKey, PathAddress};
use crate::http::problem::{Problem, within};
use crate::http::{answer, quotas};
use crate::locks::{Acquired, Failure, Granted, LockRequest, Refused, RefusedBecause};

acquire_body! {
    pub struct AcquireRequest {
        /// `exclusive`, `shared` or `permits`; `exclusive` if absent.
        mode: Option<ModeName>,
        /// For mode `permits`: how many; 1 if absent.
        #[schema(minimum = 1, maximum = 1_000_000_000)]
        permits: Option<u32>,
        /// For mode `permits`: out of how many. While permits are held or waited for, it must equal the key's limit. If absent,
        /// the key's limit applies.
        #[schema(minimum = 1, maximum = 1_000_000_000)]
        limit: Option<u32>,
        /// With mode `permits`: the group that the permits count for, for example a tenant; at most 256 bytes. A free permit goes to the
        /// waiting group that has fewest. Requests without it are one group.
        #[schema(example = "tenant-42", min_length = 1, max_length = 256)]
        group: Option<String>,
        /// With `group`: the request is granted only if the group then has no more permits than this. At least `permits`.
        #[schema(minimum = 1, maximum = 1_000_000_000)]
        group_limit: Option<u32>,
        /// Take a free lock ahead of the queue.
        #[serde(default)]
        barge: bool,
    }
}

answers! {
    pub struct AcquireAnswer<'a> {
        #[schema(example = "orders/42")]
        key: &'a str,
        /// Proves that the lease is yours: keep it secret.
        lease_id: &'a str,
        owner: &'a str,
        #[schema(value_type = ModeName)]
        mode: &'static str,
        permits?: Option<u32>,
        limit?: Option<u32>,
        /// The numbers of the permits, each below the limit: the lowest that no other lease has. They stay the lease's until it
        /// ends. A lease of more than 256 permits has none.
        slots?: Vec<u32>,
        /// The group that the permits count for.
        group?: Option<String>,
        /// The fencing token: higher than every token granted for this key before (a nested lease of the same owner keeps its
        /// token). Let the protected resource refuse lower tokens.
        #[schema(example = 1_784_000_000_000_000_u64)]
        token: u64,
        /// What is left of the lease, in ms.
        ttl_ms: u64,
        /// When the lease ends unless renewed, by the store's clock.
        expires_at: DateTime,
        /// How long the request waited, in ms, including earlier waits of its ticket.
        waited_ms: u64,
        durability?: Option<Volatility>,
        /// After a forced switch, for how many ms other clients may hold leases of the old engine.
        forced_ms?: Option<u64>,
    }
}

/// Take a lock.
///
/// 200: the lock is yours until the lease ends. Any other status: it is not. With `wait_ms` the request waits in the key's
/// queue. A client that closes its connection leaves the queue.
#[utoipa::path(
    post, path = "/v1/locks/{key}/acquire", tag = "locks", operation_id = "acquireLock",
    params(LockKey),
    request_body(content = ref("#/components/schemas/AcquireRequest"), content_type = "application/json", example = json!({"owner": "billing-7", "ttl_ms": 30_000})),
    responses((status = 200, description = "The lock is yours.", body = AcquireAnswer))
)]
pub async fn acquire(call: Call, PathAddress(address): PathAddress, Json(request): Json<AcquireRequest>) -> Answered {
    let request = request.parse(&call.context, &address)?;
    let _waits = call.enter_wait(request.wait)?;
    let (lease_id, wait) = (request.lease.lease_id.clone(), request.wait);
    let keys = [(&address, Requested::of_lease(&request.lease))];
    match quotas::acquire(&call, &address, request).await? {
        Acquired::Granted(granted) => Ok(answer::ok(&granted_answer(&call.context, &address, &granted))),
        Acquired::Refused(refused) => {
            Err(call.context.with_wait_max(with_ticket(&call.context, &keys, &lease_id, &refused), wait))
        }
        Acquired::WaitFailed { failure, position } => {
            Err(wait_failed(&call.context, &keys, &lease_id, &failure, position))
        }
        other => Err(ended(&other)),
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
        let named = resumed.as_ref().and_then(|resumed| resumed.requested.clone());
        let Requested { mode, limit, share } = match named {
            Some(requested) => requested,
            None => self.mode_fields().parse()?,
        };
        let barge = self.barge;
        let request = self.lock_request(context, &address.app, &[mode], resumed)?;
        Ok(LockRequest { lease: LeaseTerms { mode, limit, share, barge, ..request.lease }, ..request })
    }

    fn mode_fields(&self) -> ModeFields<'_> {
        let Self { mode, permits, limit, group_limit, .. } = *self;
        ModeFields { mode, permits, limit, group: self.group.as_deref(), group_limit }
    }

    fn resumed(&self, context: &Context, address: &Address) -> Result<Option<Resumed>, Problem> {
        let Some(ticket) = &self.ticket else { return Ok(None) };
        let is_named = self.mode.is_some() || self.permits.is_some() || self.limit.is_some();
        let is_named = is_named || self.group.is_some() || self.group_limit.is_some();
        let requested = if is_named { Some(self.mode_fields().parse()?) } else { None };
        context.tickets.redeem(ticket, &[(address, requested)], context.locks.now()).map(Some)
    }
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
        slots: lease.slots.iter().collect(),
        group: lease.group.as_ref().map(|group| group.as_str().to_owned()),
        token: lease.token,
        ttl_ms: left_ms(lease, granted.now),
        expires_at: rfc3339(lease.expires_at),
        waited_ms: lease.waited_ms,
        durability: context.durability(),
        forced_ms: context.forced_ms(),
    }
}
