//! The endpoints of multilocks: several keys as one lock.

use latchgate_core::lock::{Demand, LeaseTerms, Mode, PRIORITY_MAX, PRIORITY_MIN};
use latchgate_core::{Address, App, Key};
use serde_json::{Map, Value};

use super::answer;
use super::body::Json;
use super::call::{Answered, Call};
use super::context::Context;
use super::context::Volatility;
use super::locks::acquire::not_acquired;
use super::locks::fields::{
    ModeFields, ModeName, acquire_body, check_no_api_key, check_unchanged, lease_id, parse_metadata, parse_owner,
};
use super::locks::json::{left_ms, permits, unanswered};
use super::path::invalid_key;
use super::problem::{Problem, within};
use super::ticket::Resumed;
use crate::format::{DateTime, answers, ms, requests, rfc3339};
use crate::locks::{Acquired, AcquiredMany, LockManyRequest, LockRequest, MANY_MAX, RequestedLock};

acquire_body! {
    /// Beside `locks`, the fields are as for one lock. All leases have the same `lease_id`.
    #[schema(example = json!({"locks": [{"key": "accounts/1"}, {"key": "accounts/2", "mode": "shared"}], "ttl_ms": 30_000}))]
    pub struct MultilockRequest {
        /// 1 to 64 keys, each at most once.
        #[schema(min_items = 1, max_items = 64)]
        #[serde(deserialize_with = "crate::objects::objects")]
        locks: Vec<LockedKeyRequest>,
    }
}

requests! {
    pub struct LockedKeyRequest {
        /// Not percent-encoded.
        #[schema(example = "accounts/1", min_length = 1, max_length = 512)]
        key: String,
        mode: Option<ModeName>,
        #[schema(minimum = 1, maximum = 1_000_000_000)]
        permits: Option<u32>,
        #[schema(minimum = 1, maximum = 1_000_000_000)]
        limit: Option<u32>,
        /// As in an acquire of one lock.
        #[schema(min_length = 1, max_length = 256)]
        group: Option<String>,
        #[schema(minimum = 1, maximum = 1_000_000_000)]
        group_limit: Option<u32>,
    }
}

answers! {
    /// All locks are yours.
    pub struct MultilockAnswer<'a> {
        /// One for each key, in the order of the request.
        locks: Vec<LockedKeyAnswer<'a>>,
        /// Proves that the leases are yours: keep it secret.
        lease_id: &'a str,
        owner: &'a str,
        /// What is left of the shortest lease, in ms.
        ttl_ms: u64,
        expires_at: DateTime,
        waited_ms: u64,
        durability?: Option<Volatility>,
        /// After a forced switch, for how many ms other clients may hold leases of the old engine.
        forced_ms?: Option<u64>,
    }

    pub struct LockedKeyAnswer<'a> {
        key: &'a str,
        #[schema(value_type = ModeName)]
        mode: &'static str,
        permits?: Option<u32>,
        limit?: Option<u32>,
        /// The numbers of the permits.
        slots?: Vec<u32>,
        /// The group that the permits count for.
        group?: Option<String>,
        token: u64,
    }
}

/// Take several locks, all or none.
///
/// Renew and release them with `/v1/leases/renew` and `/v1/leases/release`: a lease for each key, all with the same `lease_id`.
/// 200: all locks are yours. Any other status: none is. With `wait_ms` the request waits in the queue of the first key that
/// refuses it; meanwhile it holds no lock.
#[utoipa::path(post, path = "/v1/multilocks/acquire", tag = "multilocks", responses((status = 200, body = MultilockAnswer)))]
pub async fn acquire(call: Call, Json(request): Json<MultilockRequest>) -> Answered {
    let request = request.parse(&call)?;
    call.count(request.locks.len() - 1)?;
    let _waits = call.enter_wait(request.wait)?;
    let (locks, lease_id, wait) = (request.locks.clone(), request.lease.lease_id.clone(), request.wait);
    let failed = |index: Option<usize>, acquired| {
        let problem = not_acquired(&call.context, &keys_of(&locks), &lease_id, wait, &acquired);
        Err(problem.with_some("key", index.map(|index| locks[index].address.key.as_str())))
    };
    match call.context.locks.acquire_many(request).await {
        Ok(AcquiredMany::Granted { leases, waited, now }) => {
            let first = leases.iter().map(|(lease, _)| lease).min_by_key(|lease| lease.expires_at);
            let first = first.ok_or_else(Problem::defect)?;
            let keys = leases.iter().zip(&locks).map(|((lease, limit), lock)| LockedKeyAnswer {
                key: lock.address.key.as_str(),
                mode: lease.mode.as_str(),
                permits: permits(lease),
                limit: *limit,
                slots: lease.slots.iter().collect(),
                group: lease.group.as_ref().map(|group| group.as_str().to_owned()),
                token: lease.token,
            });
            Ok(answer::ok(&MultilockAnswer {
                locks: keys.collect(),
                lease_id: lease_id.as_str(),
                owner: first.owner.as_str(),
                ttl_ms: left_ms(first, now),
                expires_at: rfc3339(first.expires_at),
                waited_ms: ms(waited),
                durability: call.context.durability(),
                forced_ms: call.context.locks.forced_ms(),
            }))
        }
        Ok(AcquiredMany::Refused { index, refused }) => failed(Some(index), Acquired::Refused(refused)),
        Ok(AcquiredMany::Ended { index, outcome }) => {
            failed(Some(index), Acquired::Outcome(outcome, call.context.locks.now()))
        }
        Ok(AcquiredMany::WaitFailed { failure, position }) => failed(None, Acquired::WaitFailed { failure, position }),
        Err(failure) => Err(unanswered(&failure, &lease_id)),
    }
}

fn keys_of(locks: &[RequestedLock]) -> Vec<(&Address, Option<Demand>)> {
    locks.iter().map(|lock| (&lock.address, Some(lock.demand.clone()))).collect()
}

impl MultilockRequest {
    fn parse(self, call: &Call) -> Result<LockManyRequest, Problem> {
        within("locks", self.locks.len(), 1..=MANY_MAX)?;
        let mut locks: Vec<RequestedLock> = Vec::with_capacity(self.locks.len());
        for (index, wanted) in self.locks.iter().enumerate() {
            let LockedKeyRequest { key, mode, permits, limit, group, group_limit } = wanted;
            let with_index = |problem: Problem| problem.with("index", index);
            let key = Key::parse(key).map_err(|_| with_index(invalid_key(key).with("field", "locks")))?;
            check_no_api_key("locks", key.as_str()).map_err(with_index)?;
            let address = call.address(key).map_err(with_index)?;
            if locks.iter().any(|lock| lock.address == address) {
                return Err(with_index(Problem::field("locks", "must name each key once")));
            }
            let (group, group_limit) = (group.as_deref(), *group_limit);
            let fields = ModeFields { mode: *mode, permits: *permits, limit: *limit, group, group_limit };
            let demand = fields.parse().map_err(with_index)?;
            locks.push(RequestedLock { address, demand });
        }
        let resumed = self.resumed(&call.context, &locks)?;
        let modes: Vec<Mode> = locks.iter().map(|lock| lock.demand.mode).collect();
        let LockRequest { lease, priority, wait, position, .. } =
            self.lock_request(&call.context, call.app(), &modes, resumed)?;
        Ok(LockManyRequest { locks, lease, priority, wait, position })
    }

    fn resumed(&self, context: &Context, locks: &[RequestedLock]) -> Result<Option<Resumed>, Problem> {
        let Some(ticket) = &self.ticket else { return Ok(None) };
        context.tickets.redeem(ticket, &keys_of(locks), context.locks.now()).map(Some)
    }
}
