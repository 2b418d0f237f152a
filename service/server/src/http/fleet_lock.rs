//! FleetLock v1, with which machines take turns to reboot: `/v1/pre-reboot` and `/v1/steady-state`.
//!
//! A machine takes one permit of the lock `fleetlock/{group}` before it reboots, and gives it back when it runs again. The protocol has
//! no lease ids: a machine is known by its id, which is the owner.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use latchgate_core::Address;
use latchgate_core::lock::{LeaseId, Mode, Owner};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::access::By;
use super::locks::answers::{ended, left_ms};
use super::locks::fields::new_lease_id;
use super::problem::{Code, Problem, ProblemBody};
use super::query::NoQuery;
use super::{Context, Shared, answer, body, path, quotas};
use crate::access::Caller;
use crate::locks::{Acquired, LockRequest};

/// How many machines of a group may reboot at once if no limit is set.
const LIMIT_DEFAULT: u32 = 1;

#[derive(Debug, Deserialize, ToSchema)]
pub struct FleetLockRequest {
    client_params: ClientParams,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct ClientParams {
    /// The name of the machine.
    #[schema(example = "c988d2509fdf4cdcbed39037c56406fb")]
    id: String,
    /// Letters, digits, dots and hyphens.
    #[schema(example = "default")]
    group: String,
}

#[derive(Serialize, ToSchema)]
pub struct SlotAnswer {
    /// What is left of the slot's lease, in ms: a machine that has not returned by then no longer keeps other machines from rebooting.
    ttl_ms: u64,
}

#[derive(Serialize, ToSchema)]
pub struct SteadyAnswer {
    /// How many slots were given back.
    released: usize,
}

/// Take a slot for a reboot (FleetLock).
///
/// A machine that has a slot keeps it, for another full lease.
#[utoipa::path(
    post, path = "/v1/pre-reboot", tag = "tools", operation_id = "takeRebootSlot",
    params(("fleet-lock-protocol" = String, Header, description = "`true`")),
    request_body(content = FleetLockRequest, example = json!({"client_params": {"id": "c988d2509fdf4cdcbed39037c56406fb", "group": "default"}})),
    responses(
        (status = 200, description = "The machine may reboot.", body = SlotAnswer),
        (status = 400, description = "`invalid-request`, with `kind` and `value`, as in all problems of this path", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`key-full`; `limit-mismatch`: the limit of the group has changed meanwhile", body = ProblemBody, content_type = "application/problem+json"),
        (status = 423, description = "`lock-held`, `lock-reserved`, `lock-delayed`: the machine may not reboot now", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn pre_reboot(
    State(context): State<Shared>,
    Extension(caller): By,
    _: NoQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let take = async {
        let (address, machine) = parse(&context, &caller, &headers, body).await?;
        take_slot(&context, &caller, &address, machine).await
    };
    take.await.map_or_else(for_fleet_lock, |answer| answer::ok(&answer))
}

/// Give back a slot for a reboot (FleetLock).
#[utoipa::path(
    post, path = "/v1/steady-state", tag = "tools", operation_id = "returnRebootSlot",
    params(("fleet-lock-protocol" = String, Header, description = "`true`")),
    request_body(content = FleetLockRequest, example = json!({"client_params": {"id": "c988d2509fdf4cdcbed39037c56406fb", "group": "default"}})),
    responses(
        (status = 200, description = "The machine has no slot any more.", body = SteadyAnswer),
        (status = 400, description = "`invalid-request`, with `kind` and `value`, as in all problems of this path", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn steady_state(
    State(context): State<Shared>,
    Extension(caller): By,
    _: NoQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let give_back = async {
        let (address, machine) = parse(&context, &caller, &headers, body).await?;
        give_back_slots(&context, &caller, &address, &machine).await
    };
    give_back.await.map_or_else(for_fleet_lock, |answer| answer::ok(&answer))
}

async fn parse(
    context: &Context,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Address, Owner), Problem> {
    if headers.get("fleet-lock-protocol").is_none_or(|value| value != "true") {
        return Err(Problem::field("fleet-lock-protocol", "is a header, and must be true"));
    }
    let request: FleetLockRequest = body::parse(&context.body(body).await?)?;
    let ClientParams { id, group } = request.client_params;
    if group.is_empty() || !group.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) {
        return Err(Problem::field("client_params.group", "must be letters, digits, dots and hyphens"));
    }
    let machine = Owner::parse(&id).map_err(|error| Problem::field("client_params.id", error))?;
    Ok((path::address(caller, &format!("fleetlock/{group}"))?, machine))
}

async fn take_slot(
    context: &Context,
    caller: &Caller,
    address: &Address,
    machine: Owner,
) -> Result<SlotAnswer, Problem> {
    let ttl_ms = context.limits.locks.ttl_ms_max;
    for lease_id in slots(context, address, &machine).await? {
        match quotas::renew(context, caller, address, &lease_id, Some(ttl_ms), None).await {
            Ok((lease, now)) => return Ok(SlotAnswer { ttl_ms: left_ms(&lease, now) }),
            Err(problem) if problem.code() == Code::LeaseLost => {}
            Err(problem) => return Err(problem),
        }
    }
    // The limit that is in force, be it an operator's or that of the machines which have slots; else the default.
    let mut acquired = acquire(context, caller, address, machine.clone(), None).await?;
    if matches!(&acquired, Acquired::LimitMismatch(mismatch) if mismatch.limit.is_none()) {
        acquired = acquire(context, caller, address, machine, Some(LIMIT_DEFAULT)).await?;
    }
    match acquired {
        Acquired::Granted(granted) => Ok(SlotAnswer { ttl_ms: left_ms(&granted.lease, granted.now) }),
        other => Err(ended(&other)),
    }
}

async fn acquire(
    context: &Context,
    caller: &Caller,
    address: &Address,
    machine: Owner,
    limit: Option<u32>,
) -> Result<Acquired, Problem> {
    let lease_id = new_lease_id();
    let request = LockRequest {
        owner: Some(machine),
        mode: Mode::Permits(1),
        limit,
        is_new_lease: true,
        ..LockRequest::new(lease_id, context.limits.locks.ttl_ms_max)
    };
    quotas::acquire(context, caller, address, request).await
}

async fn give_back_slots(
    context: &Context,
    caller: &Caller,
    address: &Address,
    machine: &Owner,
) -> Result<SteadyAnswer, Problem> {
    let mut released = 0;
    for lease_id in slots(context, address, machine).await? {
        match quotas::release(context, caller, address, &lease_id).await {
            Ok(_) => released += 1,
            // Its slot has ended by itself.
            Err(problem) if problem.code() == Code::LeaseLost => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(SteadyAnswer { released })
}

/// The leases of a machine: one, or several after requests at the same time.
async fn slots(context: &Context, address: &Address, machine: &Owner) -> Result<Vec<LeaseId>, Problem> {
    let inspected = context.locks.inspect(address).await.map_err(|failure| Problem::of_failure(&failure))?;
    let holders = inspected.state.holders().iter();
    let of_machine = holders.filter(|lease| lease.owner == *machine && matches!(lease.mode, Mode::Permits(_)));
    Ok(of_machine.map(|lease| lease.lease_id.clone()).collect())
}

/// Clients of FleetLock show `value`, and count by `kind`.
fn for_fleet_lock(problem: Problem) -> Response {
    let (kind, value) = (problem.code().info().name, problem.detail().to_owned());
    problem.with("kind", kind).with("value", value).into_response()
}
