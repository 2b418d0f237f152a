//! The quotas of apps, as requests meet them. See `access::quota` for how they are counted.

use std::time::Duration;

use futures::{StreamExt, stream};
use latchgate_core::gate::{OperationAddress, OperationId, Outcome, Phase};

use super::call::Call;
use super::problem::Problem;
use crate::access::quota::Reserved;
use crate::failure::Answer;
use crate::gate::PreReply;

/// Most concurrent store reads during a quota check.
const LOOKS_AT_ONCE: usize = 64;

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
