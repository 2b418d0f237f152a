//! `/metrics`, for Prometheus. No label has a value that clients choose: no key, no owner, no path.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};

use super::context::{Context, Shared};
use crate::engines::GateEngines;
use crate::observe::metrics::{self, CONTENT_TYPE, Page, Process};
use crate::observe::traces::spans_dropped;

const NODE: HeaderName = HeaderName::from_static("x-latchgate-node");

/// Metrics of this node.
#[utoipa::path(
    get, path = "/metrics", tag = "probes", operation_id = "getMetrics",
    responses((status = 200, description = "OpenMetrics text, for Prometheus.", body = String, content_type = "application/openmetrics-text"))
)]
pub async fn metrics(State(context): State<Shared>) -> Response {
    // Behind a load balancer, a browser gets those of several nodes by turns.
    let node = context.locks.node_id().as_str().to_owned();
    let page = metrics::page(move |page| write(&context, page));
    ([(header::CONTENT_TYPE, CONTENT_TYPE.to_owned()), (NODE, node)], page).into_response()
}

fn write(context: &Context, page: &mut Page<'_>) {
    let (locks, operations) = (&context.locks, &context.operations);
    context.requests.encode(page);
    let help = "1 if the node can serve: its store takes commits and it is not shutting down.";
    page.gauge("latchgate_ready", help, u32::from(locks.is_ready()));
    locks.metrics().encode(locks.now(), page);
    page.gauge("latchgate_waiters", "Requests that wait in a queue of this node.", locks.waiters());
    operations.metrics().encode(page);
    operations.encode_calls(page);
    engines(context, page);
    let help = "Connections to stores.";
    let mut connections = page.gauges("latchgate_pool_connections", help);
    let pools = [
        ("locks", locks.engines().standing().map(|used| used.store.pools()).unwrap_or_default()),
        ("gate", operations.pools()),
    ];
    for (of, pool) in pools.iter().flat_map(|(of, pools)| pools.iter().map(move |pool| (*of, pool))) {
        for (state, count) in [("used", pool.used), ("idle", pool.idle), ("max", pool.max)] {
            connections.show(&[("of", of), ("pool", pool.name), ("state", state)], count);
        }
    }
    let help = "Spans that were not sent to the collector.";
    page.counter("latchgate_spans_dropped", help, spans_dropped());
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.gauges("latchgate_build_info", "The version of this node.").show(&version, 1_u32);
    Process.encode(page);
}

fn engines(context: &Context, page: &mut Page<'_>) {
    let (locks, operations) = (&context.locks, &context.operations);
    let durable = operations.durable_engine();
    let mut used = page.gauges("latchgate_engine", "1 for the engine in use, 0 for the other one of its pair.");
    let views = [
        ("locks", Some((locks.engines().view(), locks.engines().standing().map(|standing| standing.index)))),
        ("gate", Some((operations.engines().view(), operations.engines().standing().map(|standing| standing.index)))),
        ("durable", durable.map(|engines| (engines.view(), engines.standing().map(|standing| standing.index)))),
    ];
    for (of, view) in views {
        let Some((view, standing)) = view else { continue };
        for (index, engine) in view.engines.iter().enumerate() {
            let labels = [("of", of), ("engine", engine.name.as_str()), ("kind", engine.kind)];
            used.show(&labels, u32::from(standing == Some(index)));
        }
    }
    let mut epochs = page.gauges("latchgate_epoch", "The epoch of the engine in use; 0 while none is.");
    let gate_epoch = |engines: &GateEngines| engines.standing().map_or(0, |standing| standing.epoch.number());
    epochs.show(&[("of", "locks")], locks.engines().epoch().number());
    epochs.show(&[("of", "gate")], gate_epoch(operations.engines()));
    if let Some(durable) = durable {
        epochs.show(&[("of", "durable")], gate_epoch(durable));
    }
    let help = "Time until the hold-off ends and new leases are granted.";
    let mut hold_offs = page.gauges("latchgate_hold_off_seconds", help);
    hold_offs.show(&[("of", "locks")], seconds(locks.hold_off_ms()));
    hold_offs.show(&[("of", "gate")], seconds(operations.hold_off_ms()));
    let help = "1 if a Redis of the locks or of the gate evicts keys when its memory is full.";
    let may_forget = locks.engines().risk().is_some() || operations.risk().is_some();
    page.gauge("latchgate_may_forget", help, u32::from(may_forget));
    let mut store = page.gauges("latchgate_store", "The kind of store that the locks live in.");
    store.show(&[("kind", locks.store_name())], 1_u32);
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}
