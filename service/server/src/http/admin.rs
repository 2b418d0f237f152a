//! `/v1/admin`: for whoever runs the service.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body;
use super::locks::answers::json;
use super::problem::{Code, Problem, ProblemBody};
use super::{Context, Shared};
use crate::store::engines::gate::GateStatus;
use crate::store::engines::{EngineSet, EngineSetStatus, EngineStatus, SwitchFailure};

/// How long a switch is waited for: as long as a long poll.
const PATIENCE: Duration = Duration::from_secs(50);

/// How long the locks are given to notice that their store is back.
const READY_PATIENCE: Duration = Duration::from_secs(2);

/// Which stores there are, and which is in use.
#[derive(Serialize, ToSchema)]
pub struct EnginesAnswer {
    locks: LocksEngines,
    gate: GateEngines,
}

#[derive(Serialize, ToSchema)]
pub struct LocksEngines {
    /// The engine that the locks live in, or are being moved to.
    active: String,
    /// `serving`; `moving`, while locks are carried over and nothing is granted, renewed or released; `unconfirmed`, while
    /// this node does not know whether it may use the active engine.
    phase: &'static str,
    /// Counts what the nodes have decided; 0 where there is one engine.
    epoch: u64,
    /// The engine whose leases are being carried over.
    #[serde(skip_serializing_if = "Option::is_none")]
    moving_from: Option<String>,
    /// How long nothing new is granted yet, in ms: leases of the engine before may be live.
    hold_off_ms: u64,
    /// How long leases of an engine that was left by force may be live yet, in ms.
    forced_ms: u64,
    engines: Vec<EngineAnswer>,
}

#[derive(Serialize, ToSchema)]
pub struct EngineAnswer {
    name: String,
    /// `sqlite`, `postgres` or `redis`.
    kind: &'static str,
    /// Whether it answers this node.
    answers: bool,
    /// What is the matter with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    trouble: String,
}

#[derive(Serialize, ToSchema)]
pub struct GateEngines {
    /// The engine that new operations are claimed in, or will be. Engines of the gate are called by their kinds.
    active: String,
    /// `serving`; `moving`, while nothing new is claimed because nodes may still rely on the engine before; `unconfirmed`,
    /// while this node does not know whether it may claim in the active engine.
    phase: &'static str,
    /// Counts what the nodes have decided; 0 where there is one engine.
    epoch: u64,
    /// An engine was left, or is done without, by force: while it does not answer, operations that it knows may run again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    by_force: bool,
    /// The engine that has durable operations, and takes over those of the outage mode `fallback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    second: Option<&'static str>,
    /// The first is active until all nodes are switched to the other.
    engines: Vec<EngineAnswer>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchRequest {
    /// The name of the engine to use from now on.
    #[schema(example = "spare")]
    engine: String,
    /// Do not wait for leases of the old engine that cannot be carried over, because it does not answer: others may be
    /// granted the same locks. Grants and renewals say so in `forced_ms` until the last of these leases has run out.
    #[serde(default)]
    force: bool,
    /// The active engine is stopped for good: no node can reach it. Needed where there are two engines and it does not
    /// answer; then nothing new is granted until the longest lease has run out.
    #[serde(default)]
    stopped: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GateSwitchRequest {
    /// The kind of the store to claim new operations in from now on.
    #[schema(example = "postgres")]
    engine: String,
    /// Do so though the other engine does not answer: operations that are in progress or done there may run again, and each
    /// pre that may go says `degraded` until the other engine answers again.
    #[serde(default)]
    force: bool,
}

/// Which engines there are, and which are in use.
#[utoipa::path(
    get, path = "/v1/admin/engines", tag = "admin",
    responses((status = 200, description = "As this node sees it.", body = EnginesAnswer))
)]
pub async fn engines(State(context): State<Shared>) -> Response {
    json(&answer(&context))
}

/// Switch all nodes to another engine of the set.
///
/// While the old engine answers, live leases are carried over, with their tokens and expiries. If it does not, nothing new is
/// granted until the longest lease of any node has run out. Returns when this node uses the new engine, or after 50 s with
/// how it stands.
#[utoipa::path(
    post, path = "/v1/admin/engines/locks", tag = "admin",
    request_body(content = SwitchRequest),
    responses(
        (status = 200, description = "Decided; `phase` tells whether it is done.", body = EnginesAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-engine`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`engine-unreachable`, `engine-in-doubt`, `engine-not-stopped`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`engines-undecided`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn switch_locks(State(context): State<Shared>, body: Body) -> Result<Response, Problem> {
    let body = context.body(body).await?;
    let request: SwitchRequest = body::parse(&body)?;
    match &context.engines {
        Some(set) => {
            let switched = set.switch(&request.engine, request.force, request.stopped, PATIENCE).await;
            switched.map_err(|failure| refused(&failure))?;
            // Whoever asks next is not to be told that there is no store.
            context.locks.until_ready(READY_PATIENCE).await;
        }
        None if request.engine == context.locks.store_name() => {}
        None => return Err(refused(&SwitchFailure::UnknownEngine)),
    }
    Ok(json(&answer(&context)))
}

/// Have all nodes claim new operations in the other store of the gate.
///
/// Each operation goes on living where it was claimed; a pre looks there first. Nothing new is claimed for some seconds,
/// until no node can rely on the engine before. Returns when this node claims in the new one, or after 50 s with how it
/// stands.
#[utoipa::path(
    post, path = "/v1/admin/engines/gate", tag = "admin",
    request_body(content = GateSwitchRequest),
    responses(
        (status = 200, description = "Decided; `phase` tells whether it is done.", body = EnginesAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-engine`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`engine-unreachable`, `engine-in-doubt`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`engines-undecided`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn switch_gate(State(context): State<Shared>, body: Body) -> Result<Response, Problem> {
    let body = context.body(body).await?;
    let request: GateSwitchRequest = body::parse(&body)?;
    let switched = context.operations.switch(&request.engine, request.force, PATIENCE).await;
    switched.map_err(|failure| refused(&failure))?;
    Ok(json(&answer(&context)))
}

fn refused(failure: &SwitchFailure) -> Problem {
    let code = match failure {
        SwitchFailure::UnknownEngine => Code::UnknownEngine,
        SwitchFailure::NoAnswer(_) => Code::EngineUnreachable,
        SwitchFailure::InDoubt(_) => Code::EngineInDoubt,
        SwitchFailure::NotStopped(_) => Code::EngineNotStopped,
        SwitchFailure::NoMajority => Code::EnginesUndecided,
        SwitchFailure::ShuttingDown => Code::ShuttingDown,
    };
    let mut detail = failure.to_string();
    detail[..1].make_ascii_uppercase();
    let problem = Problem::new(code, format!("{detail}."));
    if failure == &SwitchFailure::UnknownEngine { problem.with("field", "engine") } else { problem }
}

fn answer(context: &Context) -> EnginesAnswer {
    let locks = context.engines.as_deref().map_or_else(|| only(context), |set| of_set(context, set));
    EnginesAnswer { locks, gate: of_gate(context) }
}

fn of_gate(context: &Context) -> GateEngines {
    let GateStatus { epoch, active, is_serving, is_moving, is_by_force, engines } = context.operations.engines();
    let phase = phase(is_moving, is_serving);
    let engines = engines.into_iter().map(engine).collect();
    GateEngines { active, phase, epoch, by_force: is_by_force, second: context.operations.second_name(), engines }
}

const fn phase(is_moving: bool, is_serving: bool) -> &'static str {
    match (is_moving, is_serving) {
        (true, _) => "moving",
        (false, true) => "serving",
        (false, false) => "unconfirmed",
    }
}

fn engine(EngineStatus { name, kind, answers, trouble }: EngineStatus) -> EngineAnswer {
    EngineAnswer { name, kind, answers, trouble }
}

fn of_set(context: &Context, set: &EngineSet) -> LocksEngines {
    let EngineSetStatus { epoch, active, is_serving, moving_from, is_moving, hold_off_ms, forced_ms, engines } =
        set.status();
    let phase = phase(is_moving, is_serving && context.locks.is_ready());
    let engines = engines.into_iter().map(engine).collect();
    LocksEngines { active, phase, epoch, moving_from, hold_off_ms, forced_ms, engines }
}

/// There is one engine, called by its kind.
fn only(context: &Context) -> LocksEngines {
    let kind = context.locks.store_name();
    let answers = context.locks.is_ready();
    LocksEngines {
        active: kind.to_owned(),
        phase: "serving",
        epoch: 0,
        moving_from: None,
        hold_off_ms: 0,
        forced_ms: 0,
        engines: vec![EngineAnswer { name: kind.to_owned(), kind, answers, trouble: String::new() }],
    }
}
