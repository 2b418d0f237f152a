//! `POST /v1/locks/{key}/acquire`.

use std::time::Duration;

use latchgate_core::lock::{Demand, Grant, LeaseId, LeaseTerms, Mode, Outcome, PRIORITY_MAX, PRIORITY_MIN, Refusal};
use latchgate_core::{Address, App};
use serde_json::{Map, Value};

use super::fields::{ModeFields, ModeName, acquire_body, check_unchanged, lease_id, parse_metadata, parse_owner};
use super::json::{left_ms, permits, problem, refusal, unanswered};
use crate::format::{DateTime, answers, rfc3339};
use crate::http::answer;
use crate::http::body::Json;
use crate::http::call::{Answered, Call};
use crate::http::context::Context;
use crate::http::context::Volatility;
use crate::http::path::PathAddress;
use crate::http::problem::{Problem, within};
use crate::http::ticket::Resumed;
use crate::locks::{Acquired, LockRequest};

acquire_body! {
    #[schema(example = json!({"owner": "billing-7", "ttl_ms": 30_000}))]
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
        barge: Option<bool>,
    }
}

answers! {
    /// The lock is yours.
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
#[utoipa::path(post, path = "/v1/locks/{key}/acquire", tag = "locks", responses((status = 200, body = AcquireAnswer)))]
pub async fn acquire(call: Call, PathAddress(address): PathAddress, Json(request): Json<AcquireRequest>) -> Answered {
    let request = request.parse(&call.context, &address)?;
    let _waits = call.enter_wait(request.wait)?;
    let (lease_id, wait) = (request.lease.lease_id.clone(), request.wait);
    let keys = [(&address, Some(request.lease.demand.clone()))];
    let acquired = call.context.locks.acquire(&address, request).await;
    let of_key = |problem: Problem| problem.with("key", address.key.as_str());
    let (Grant { lease, limit, .. }, now) = match acquired.map_err(|failure| of_key(unanswered(&failure, &lease_id)))? {
        Acquired::Outcome(Outcome::Granted(grant), now) => (grant, now),
        other => return Err(of_key(not_acquired(&call.context, &keys, &lease_id, wait, &other))),
    };
    Ok(answer::ok(&AcquireAnswer {
        key: address.key.as_str(),
        lease_id: lease.lease_id.as_str(),
        owner: lease.owner.as_str(),
        mode: lease.mode.as_str(),
        permits: permits(&lease),
        limit,
        slots: lease.slots.iter().collect(),
        group: lease.group.as_ref().map(|group| group.as_str().to_owned()),
        token: lease.token,
        ttl_ms: left_ms(&lease, now),
        expires_at: rfc3339(lease.expires_at),
        waited_ms: lease.waited_ms,
        durability: call.context.durability(),
        forced_ms: call.context.locks.forced_ms(),
    }))
}

/// The answer to an acquire that was not granted. After a wait, it has a ticket to continue it.
pub fn not_acquired(
    context: &Context,
    keys: &[(&Address, Option<Demand>)],
    lease_id: &LeaseId,
    wait: Duration,
    acquired: &Acquired,
) -> Problem {
    let ticket = |position, now| context.tickets.issue(keys, lease_id, position, now);
    match acquired {
        Acquired::Refused(refused) => {
            let has_waited = refused.why == Refusal::WaitTimeout;
            let ticket = has_waited.then(|| ticket(refused.position, refused.now));
            let hold_off_ms = if has_waited { context.locks.hold_off_ms() } else { 0 };
            context.with_wait_max(refusal(refused, hold_off_ms).with_some("ticket", ticket), wait)
        }
        Acquired::WaitFailed { failure, position } => {
            unanswered(failure, lease_id).with("ticket", ticket(*position, context.locks.now()))
        }
        Acquired::Outcome(outcome, _) => problem(outcome),
        Acquired::Notified => Problem::defect(),
    }
}

impl AcquireRequest {
    fn parse(self, context: &Context, address: &Address) -> Result<LockRequest, Problem> {
        let resumed = self.resumed(context, address)?;
        let named = resumed.as_ref().and_then(|resumed| resumed.requested.clone());
        let demand = match named {
            Some(requested) => requested,
            None => self.mode_fields().parse()?,
        };
        let barge = self.barge.unwrap_or_default();
        let request = self.lock_request(context, &address.app, &[demand.mode], resumed)?;
        Ok(LockRequest { lease: LeaseTerms { demand, barge, ..request.lease }, ..request })
    }

    fn mode_fields(&self) -> ModeFields<'_> {
        let Self { mode, permits, limit, group_limit, .. } = *self;
        ModeFields { mode, permits, limit, group: self.group.as_deref(), group_limit }
    }

    fn resumed(&self, context: &Context, address: &Address) -> Result<Option<Resumed>, Problem> {
        let Some(ticket) = &self.ticket else { return Ok(None) };
        let named = Some(self.mode_fields()).filter(|fields| *fields != ModeFields::default());
        let requested = named.map(ModeFields::parse).transpose()?;
        context.tickets.redeem(ticket, &[(address, requested)], context.locks.now()).map(Some)
    }
}
