//! The quotas of apps, as requests meet them. See `access::quota` for how they are counted.

use std::time::Duration;

use futures::{StreamExt, stream};
use latchgate_core::gate::{OperationAddress, OperationId, Outcome, Phase};
use latchgate_core::lock::{Lease, LeaseId, LeaseTerms, Metadata};
use latchgate_core::{Address, CLOCK_BOUND_MS, Key, Timestamp};

use super::call::Call;
use super::locks::answers::{ReleaseAnswer, key_full, lease_lost, unanswered};
use super::problem::Problem;
use crate::access::quota::Reserved;
use crate::failure::Answer;
use crate::gate::PreReply;
use crate::locks::{Released, Renewed};

/// Most concurrent store reads during a quota check.
const LOOKS_AT_ONCE: usize = 64;

/// Leases that a request may get, counted from before they are granted.
pub type ReservedLeases<'a> = Option<Reserved<'a, (Key, LeaseId)>>;

/// Whether the caller's app may get a lease of each key. Leases that may nest are counted from now on, because a nested lease is
/// not given back.
///
/// # Errors
/// `quota-reached`.
pub async fn check_leases<'a>(
    call: &'a Call,
    wanted: &[&Address],
    lease: &LeaseTerms,
) -> Result<ReservedLeases<'a>, Problem> {
    let Some((table, limit)) = call.caller.app_use.leases() else { return Ok(None) };
    let leases: Vec<(Key, LeaseId)> = wanted.iter().map(|address| lease_of(address, &lease.lease_id)).collect();
    let check = || match lease.reentrant {
        true => table.reserve(&leases, limit).map(Some),
        false => table.check(&leases, limit).map(|()| None),
    };
    if let Ok(reserved) = check() {
        return Ok(reserved);
    }
    // Boxed, as it is rare: each request that waits would keep room for it.
    Box::pin(table.look(|leases| look_at_leases(call, leases))).await;
    check().map_err(|excess| call.caller.app_use.reached(excess).into())
}

/// Counts leases that were granted since [`check_leases`].
///
/// # Errors
/// `quota-reached`, if other requests of the app were granted leases meanwhile. Then these are given back.
pub fn count_leases(
    call: &Call,
    reserved: &ReservedLeases<'_>,
    granted: &[(&Address, &Lease)],
    now: Timestamp,
) -> Result<(), Problem> {
    let Some((table, limit)) = call.caller.app_use.leases() else { return Ok(()) };
    let begun = granted.iter().map(|(address, lease)| (lease_of(address, &lease.lease_id), lasts(lease, now)));
    if let Some(reserved) = reserved {
        begun.for_each(|(lease, lasts)| reserved.begin(&lease, lasts));
        return Ok(());
    }
    // A grant that is repeated has been answered before.
    let must = granted.iter().any(|(_, lease)| lease.acknowledged);
    table.begin(&begun.collect::<Vec<_>>(), limit, must).map_err(|excess| {
        granted.iter().for_each(|(address, lease)| call.context.locks.give_back(address, lease));
        call.caller.app_use.reached(excess).into()
    })
}

fn end_lease(call: &Call, address: &Address, lease_id: &LeaseId) {
    if let Some((table, _)) = call.caller.app_use.leases() {
        table.end(&lease_of(address, lease_id));
    }
}

/// Renews a lease of the caller's app.
///
/// # Errors
/// `lease-lost`, `key-full`, or that of a call that failed.
pub async fn renew(
    call: &Call,
    address: &Address,
    lease_id: &LeaseId,
    ttl_ms: Option<u64>,
    metadata: Option<Metadata>,
) -> Result<(Lease, Timestamp), Problem> {
    match call.context.locks.renew(address, lease_id.clone(), ttl_ms, metadata).await {
        Ok(Renewed::Renewed { lease, now }) => {
            if let Some((table, _)) = call.caller.app_use.leases() {
                table.extend(&lease_of(address, lease_id), lasts(&lease, now));
            }
            Ok((lease, now))
        }
        Ok(Renewed::LeaseLost(lost)) => {
            end_lease(call, address, lease_id);
            Err(lease_lost(&lost))
        }
        Ok(Renewed::KeyFull(full)) => Err(key_full(full)),
        Err(failure) => Err(unanswered(&failure, lease_id)),
    }
}

/// Releases a lease of the caller's app.
///
/// # Errors
/// `lease-lost`, or that of a call that failed.
pub async fn release(call: &Call, address: &Address, lease_id: &LeaseId) -> Result<ReleaseAnswer, Problem> {
    let released = call.context.locks.release(address, lease_id.clone()).await;
    let released = released.map_err(|failure| unanswered(&failure, lease_id))?;
    // Neither a released nor a lost lease is live.
    end_lease(call, address, lease_id);
    match released {
        Released::Released { still_held, already } => Ok(ReleaseAnswer { still_held, already }),
        Released::LeaseLost(lost) => Err(lease_lost(&lost)),
    }
}

/// Operations that a request may start.
pub type ReservedOperations<'a> = Reserved<'a, OperationId>;

/// Counts operations from before they start; `None` if the caller's app has no such quota.
///
/// # Errors
/// `quota-reached`.
pub async fn reserve_operations<'a>(
    call: &'a Call,
    ids: &[OperationId],
) -> Result<Option<ReservedOperations<'a>>, Problem> {
    let Some((table, limit)) = call.caller.app_use.operations() else { return Ok(None) };
    if let Ok(reserved) = table.reserve(ids, limit) {
        return Ok(Some(reserved));
    }
    Box::pin(table.look(|ids| look_at_operations(call, ids))).await;
    table.reserve(ids, limit).map(Some).map_err(|excess| call.caller.app_use.reached(excess).into())
}

/// Counts an operation that has started.
pub fn count_operation(reserved: Option<&ReservedOperations<'_>>, id: OperationId, answer: &Answer<PreReply>) {
    if let (Some(reserved), Ok(PreReply::Go { go, .. })) = (reserved, answer) {
        reserved.begin(&id, Duration::from_millis(go.remaining_ms));
    }
}

pub fn extend_operation(call: &Call, id: OperationId, outcome: &Outcome) {
    if let (Some((table, _)), Outcome::Beating { remaining_ms, .. }) = (call.caller.app_use.operations(), outcome) {
        table.extend(&id, Duration::from_millis(*remaining_ms));
    }
}

pub fn end_operation(call: &Call, id: OperationId) {
    if let Some((table, _)) = call.caller.app_use.operations() {
        table.end(&id);
    }
}

fn lease_of(address: &Address, lease_id: &LeaseId) -> (Key, LeaseId) {
    (address.key.clone(), lease_id.clone())
}

/// How much longer a lease lasts, unless it is renewed.
fn lasts(lease: &Lease, now: Timestamp) -> Duration {
    Duration::from_millis(lease.expires_at.ms_since(now) + CLOCK_BOUND_MS)
}

async fn look_at_leases(call: &Call, leases: Vec<(Key, LeaseId)>) -> Vec<((Key, LeaseId), Option<Duration>)> {
    let look = |(key, lease_id): (Key, LeaseId)| async move {
        let address = Address { app: call.app().clone(), key };
        let inspected = call.context.locks.inspect(&address).await.ok()?;
        let held = inspected.state.holders().iter().find(|lease| lease.lease_id == lease_id);
        let left = held.map(|lease| lasts(lease, inspected.now));
        Some(((address.key, lease_id), left))
    };
    stream::iter(leases).map(look).buffer_unordered(LOOKS_AT_ONCE).filter_map(std::future::ready).collect().await
}

async fn look_at_operations(call: &Call, ids: Vec<OperationId>) -> Vec<(OperationId, Option<Duration>)> {
    let look = |id: OperationId| async move {
        let address = OperationAddress { app: call.app().clone(), id };
        let shown = call.context.operations.get(&address).await.ok()?;
        let left_ms = shown.and_then(|shown| match &shown.record.phase {
            Phase::Started(started) => Some(started.lease_until.ms_since(shown.now)),
            Phase::Succeeded(_) | Phase::Unknown { .. } | Phase::Vacant { .. } => None,
        });
        Some((id, left_ms.filter(|left_ms| *left_ms > 0).map(Duration::from_millis)))
    };
    stream::iter(ids).map(look).buffer_unordered(LOOKS_AT_ONCE).filter_map(std::future::ready).collect().await
}
