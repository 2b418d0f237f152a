//! `/v1/admin`: for operators.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use clap::ValueEnum as _;
use latchgate_core::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::ok;
use super::body::Json;
use super::call::{Answered, Call};
use super::context::Context;
use super::path::PathText;
use super::problem::{Code, Problem, within};
use crate::engines::{EngineInUse, EngineSet, EngineView, EnginesOf, OrderFailure, SwitchOrder};
use crate::format::{DateTime, YEAR_MS, answers, lasting, requests, rfc3339};
use crate::http::TTL_MS_MIN;
use crate::nodes::{EngineUsed, NodeReport, SeenNode};
use crate::store::engine_record::{EngineRecord, EngineState, Reading};

/// Longest wait for a switch: as long as a long poll.
const PATIENCE: Duration = Duration::from_secs(50);
/// Longest time for the locks to notice that their store is back.
const READY_PATIENCE: Duration = Duration::from_secs(2);

answers! {
    /// The engines, and which of them is in use.
    pub struct EnginesAnswer {
        locks: EnginesInUse,
        /// Those of fast operations: the same ones, unless the gate has a store of its own.
        gate: EnginesInUse,
        /// This node first, then the others that were there within the last minute, and what each has said of itself.
        nodes: Vec<NodeAnswer>,
    }

    /// A node and the engines that it uses. All nodes use the same ones in the same epochs, but for a moment during a switch.
    pub struct NodeAnswer {
        node: String,
        /// Where it listens; with the name of its machine, if it listens on all addresses.
        #[schema(example = "10.0.0.4:7070")]
        address: String,
        version: String,
        started_at: DateTime,
        /// How long ago it said so, in ms.
        seen_ms_ago: u64,
        /// Absent while it uses none.
        locks?: Option<EngineUsed>,
        /// Absent while it uses none.
        gate?: Option<EngineUsed>,
    }

    pub struct EnginesInUse {
        /// The engine that this node uses; absent while it uses none.
        active?: Option<String>,
        /// The epoch in which this node uses it.
        epoch?: Option<u64>,
        /// Time until the hold-off ends, in ms.
        hold_off_ms: u64,
        /// Why the hold-off began.
        hold_off_why?: Option<String>,
        /// After a hold-off that an operator has ended: for how long leases or records may be missing, in ms.
        forced_ms: u64,
        /// Why this node uses no engine.
        trouble?: Option<String>,
        engines: Vec<EngineAnswer>,
    }

    /// An engine, and what its engine record says.
    pub struct EngineAnswer {
        name: String,
        #[schema(value_type = EngineKind)]
        kind: &'static str,
        /// Whether it answers this node.
        answers: bool,
        /// Why it does not answer.
        trouble?: Option<String>,
        /// Absent if the store has no record.
        state?: Option<EngineState>,
        epoch?: Option<u64>,
        /// How many states have been copied to it, while it is filling.
        copied?: Option<u64>,
        /// When its hold-off ends, by its clock.
        hold_off_until?: Option<DateTime>,
        /// The longest lease that any node grants, in ms. A hold-off lasts as long.
        ttl_ms_max?: Option<u64>,
        /// How many states the last copy of it left out, because they cannot be decoded; absent if none.
        unreadable?: Option<u64>,
    }

    /// The hold-off is in force: the store refuses grants that were evaluated without it.
    pub struct HoldOffAnswer {
        /// How long the hold-off lasts, in ms.
        hold_off_ms: u64,
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described, not built: see `engine`")]
pub enum EngineKind {
    Sqlite,
    Postgres,
    Redis,
}

requests! {
    #[schema(example = json!({}))]
    pub struct SwitchRequest {
        /// The name of the engine to use from now on. If absent: the one that is not active.
        #[schema(example = "spare", min_length = 1, max_length = 32)]
        engine: Option<String>,
        /// The active engine is stopped, and stays so until every node reaches the other one. Its leases are lost, so a hold-off
        /// begins.
        stopped: Option<bool>,
        /// Skip the hold-off, now or at any later time: another caller may be granted a lock whose holder has not noticed yet that
        /// its lease was lost. Grants and renewals say so in `forced_ms` until the hold-off would have ended.
        force: Option<bool>,
        /// No switch: lower the longest lease that hold-offs last for, in ms, as in `ttl_ms_max` of the engine that is active. You
        /// vouch that no longer lease is live, and that no node allows longer ones. Not beside the other fields.
        #[schema(minimum = 100, maximum = 31_536_000_000_u64)]
        ttl_ms_max: Option<u64>,
    }

    #[schema(example = json!({"of": "locks", "for_ms": 60_000}))]
    pub struct HoldOffRequest {
        /// Which hold-off: `locks`, the default, or `gate`, that of the store of fast operations.
        of: Option<EnginesOf>,
        /// How long from now, in ms; 0 ends a hold-off. If absent: as long as the longest lease that any node grants.
        #[schema(maximum = 31_536_000_000_u64)]
        for_ms: Option<u64>,
    }
}

impl SwitchRequest {
    /// Carries it out.
    async fn carry_out(self, engines: &EngineSet, call: &Call) -> Result<(), Problem> {
        let Self { engine, stopped, force, ttl_ms_max } = self;
        let order =
            SwitchOrder { to: engine, is_stopped: stopped.unwrap_or_default(), force: force.unwrap_or_default() };
        let carried_out = match ttl_ms_max {
            None => {
                call.detail(|| order.to_string());
                engines.switch(&order, PATIENCE).await
            }
            Some(ttl_ms_max) if order == SwitchOrder::default() => {
                let ttl_ms_max = within("ttl_ms_max", ttl_ms_max, TTL_MS_MIN..=YEAR_MS)?;
                call.detail(|| format!("ttl_ms_max {ttl_ms_max}"));
                engines.lower_ttl_max(ttl_ms_max).await
            }
            Some(_) => return Err(Problem::field("ttl_ms_max", "is allowed only without other fields")),
        };
        carried_out.map_err(|failure| refused(&failure))
    }
}

/// Show the engines.
#[utoipa::path(get, path = "/v1/admin/engines", tag = "admin", responses((status = 200, body = EnginesAnswer)))]
pub async fn engines(call: Call) -> Response {
    ok(&answer(&call.context))
}

/// Switch all nodes to the other engine of a pair: that of the locks, or that of the gate.
///
/// While the active engine answers, it is frozen, all states are copied, and then the other engine is active: live leases, attempts and
/// stamps stay valid, and waiters stay where they are. Calls during the copy get 503 and can be repeated. If the active engine does not
/// answer, say with `stopped` that it is stopped: what it holds is lost, so a hold-off begins. `force` on the active engine ends a hold-off.
/// Returns when this node uses the engine.
#[utoipa::path(
    post, path = "/v1/admin/engines/{of}", tag = "admin",
    params(("of" = inline(EnginesOf), Path, description = "Whose engine")),
    responses((status = 200, body = EnginesAnswer))
)]
pub async fn switch(call: Call, PathText(of): PathText, Json(request): Json<SwitchRequest>) -> Answered {
    match EnginesOf::from_str(&of, false).map_err(|_| Problem::field("of", "must be locks or gate"))? {
        EnginesOf::Locks => {
            request.carry_out(call.context.locks.engines(), &call).await?;
            // So that the next call does not find the store unavailable.
            call.context.locks.until_ready(READY_PATIENCE).await;
        }
        EnginesOf::Gate => request.carry_out(call.context.operations.engines(), &call).await?,
    }
    Ok(ok(&answer(&call.context)))
}

/// Begin, shorten, extend or end a hold-off.
///
/// During a hold-off no node grants new leases; known leases can be renewed and released. An operator begins one when leases
/// may have been lost, and ends one when none were. If it ends early, grants say in `forced_ms` for how long it would have lasted.
///
/// During a hold-off of the gate, an operation without a record is 409 `operation-unknown` if its pre says `on_expiry: block`; other
/// pres go and say `possibly_repeated`. If the gate has no store of its own, both are one: a hold-off that ends early ends for locks and
/// operations, and an operation that was running may run again.
#[utoipa::path(post, path = "/v1/admin/hold-off", tag = "admin", responses((status = 200, body = HoldOffAnswer)))]
pub async fn hold_off(call: Call, Json(HoldOffRequest { of, for_ms }): Json<HoldOffRequest>) -> Answered {
    let of = of.unwrap_or_default();
    let for_ms = for_ms.map(|for_ms| within("for_ms", for_ms, 0..=YEAR_MS)).transpose()?;
    call.resource(of.as_str());
    call.detail(|| {
        for_ms.map_or_else(|| "as long as the longest lease".to_owned(), |ms| format!("for {}", lasting(ms)))
    });
    let ordered = match of {
        EnginesOf::Locks => call.context.locks.engines().order_hold_off(for_ms).await.map(|(locks_ms, _)| locks_ms),
        EnginesOf::Gate => call.context.operations.engines().order_hold_off(for_ms).await.map(|(_, gate_ms)| gate_ms),
    };
    Ok(ok(&HoldOffAnswer { hold_off_ms: ordered.map_err(|failure| refused(&failure))? }))
}

fn refused(failure: &OrderFailure) -> Problem {
    let (code, field) = match failure {
        OrderFailure::UnknownEngine => (Code::UnknownEngine, Some("engine")),
        OrderFailure::OneEngine => (Code::UnknownEngine, None),
        OrderFailure::NoAnswer(_) => (Code::EngineUnreachable, None),
        OrderFailure::InDoubt(_) => (Code::EngineInDoubt, None),
        OrderFailure::NotStopped(_) => (Code::EngineNotStopped, None),
        OrderFailure::GivenUp(_) | OrderFailure::Contended => (Code::EnginesUndecided, None),
        OrderFailure::NotLower(_) => (Code::InvalidRequest, Some("ttl_ms_max")),
    };
    Problem::new(code, format!("{failure}.")).with_some("field", field)
}

fn answer(context: &Context) -> EnginesAnswer {
    EnginesAnswer {
        locks: in_use(context.locks.engines(), context.locks.now(), |used| used.hold_off_until),
        gate: in_use(context.operations.engines(), context.operations.now(), |used| {
            used.hold_off_of_operations().until
        }),
        nodes: context.nodes.list().into_iter().map(node).collect(),
    }
}

fn node(seen: SeenNode) -> NodeAnswer {
    let NodeReport { version, address, started_at, locks, gate } = seen.report;
    let started_at = rfc3339(started_at);
    NodeAnswer { node: seen.node, address, version, started_at, seen_ms_ago: seen.age_ms, locks, gate }
}

fn in_use(engines: &EngineSet, now: Timestamp, hold_off: fn(&Arc<EngineInUse>) -> Timestamp) -> EnginesInUse {
    let view = engines.view();
    let used = engines.in_use().ok();
    // The estimate of the clock is 0 before the first call.
    let shown = used.as_ref().and_then(|used| view.engines.get(used.index));
    let shown = shown.and_then(|engine| engine.reading.as_ref().ok());
    let now = shown.map_or(now, |reading| now.max(reading.now));
    let why = shown.and_then(|reading| reading.record.as_ref()?.hold_off_why.clone());
    let left = |until: fn(&Arc<EngineInUse>) -> Timestamp| used.as_ref().map_or(0, |used| until(used).ms_since(now));
    let hold_off_ms = left(hold_off);
    EnginesInUse {
        active: used.as_ref().and_then(|used| Some(view.engines.get(used.index)?.name.clone())),
        epoch: used.as_ref().map(|used| used.epoch.number()),
        hold_off_ms,
        hold_off_why: why.filter(|_| hold_off_ms > 0),
        forced_ms: left(|used| used.forced_until),
        trouble: view.trouble,
        engines: view.engines.into_iter().map(engine).collect(),
    }
}

fn engine(EngineView { name, kind, reading }: EngineView) -> EngineAnswer {
    let (reading, trouble) = match reading {
        Ok(reading) => (Some(reading), None),
        Err(trouble) => (None, Some(trouble)),
    };
    let answers = reading.is_some();
    let Reading { record, copied, now, .. } = reading.unwrap_or_default();
    let of = |value: fn(&EngineRecord) -> u64| record.as_ref().map(value);
    let is_filling = record.as_ref().is_some_and(|record| record.state == EngineState::Filling);
    let held_off = record.as_ref().map(|record| record.hold_off_until).filter(|until| *until > now);
    EngineAnswer {
        name,
        kind,
        answers,
        trouble,
        state: record.as_ref().map(|record| record.state),
        epoch: of(|record| record.epoch.number()),
        copied: is_filling.then_some(copied),
        hold_off_until: held_off.map(rfc3339),
        ttl_ms_max: of(|record| record.ttl_ms_max),
        unreadable: of(|record| record.unreadable).filter(|unreadable| *unreadable > 0),
    }
}
