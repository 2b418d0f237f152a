//! `/metrics`, for Prometheus, and what the console draws of them. No label has a value that clients choose: no key, no owner, no path.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use latchgate_core::{App, Timestamp};
use tokio::task::spawn_blocking;
use tokio::time::interval;

use super::answer::ok;
use super::call::Call;
use super::context::{Context, SharedContext};
use super::tls::Tls;
use crate::engines::{EngineSet, View};
use crate::format::answers;
use crate::observe::metrics::{self, CONTENT_TYPE, Page, Process, SAMPLE_EVERY};
use crate::observe::traces::spans_dropped;

const NODE: HeaderName = HeaderName::from_static("x-latchgate-node");

/// Metrics of this node, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "probes",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"))
)]
pub async fn metrics(State(context): State<SharedContext>) -> Response {
    // Behind a load balancer, a browser gets those of several nodes by turns.
    let node = context.locks.node_id().as_str().to_owned();
    let page = metrics::page(move |page| write(&context, page));
    ([(header::CONTENT_TYPE, CONTENT_TYPE.to_owned()), (NODE, node)], page).into_response()
}

answers! {
    /// What `/metrics` said in the last quarter of an hour, in samples 5 s apart.
    pub struct SamplesAnswer {
        /// The node that answers: each has its own.
        node: String,
        /// How long ago each sample was taken, in ms; the oldest first.
        ages_ms: Vec<u64>,
        /// Of each series, its value in each sample. A series is the sum of those with the same `code` or `le`.
        #[schema(value_type = BTreeMap<String, Vec<i64>>, example = json!({ "latchgate_waiters": [0, 2] }))]
        series: BTreeMap<String, VecDeque<i64>>,
    }
}

/// The last quarter of an hour of this node, for charts.
///
/// Of one app, only the requests. The first 100 apps that the node serves have figures of their own.
#[utoipa::path(get, path = "/metrics/samples", tag = "probes", responses((status = 200, body = SamplesAnswer)))]
pub async fn samples(call: Call) -> Response {
    let (ages_ms, series) = call.context.samples.of(call.apps());
    ok(&SamplesAnswer { node: call.context.locks.node_id().as_str().to_owned(), ages_ms, series })
}

/// Takes samples as long as the node serves.
pub async fn keep_samples(context: Weak<Context>) {
    let mut ticks = interval(SAMPLE_EVERY);
    loop {
        ticks.tick().await;
        let Some(context) = context.upgrade() else { return };
        // With many apps, a page is long.
        let taken = spawn_blocking(move || {
            let counted = SharedContext::clone(&context);
            context.samples.take(&metrics::page(move |page| counts(&counted, page)));
        });
        let _ = taken.await;
    }
}

fn write(context: &Context, page: &mut Page<'_>) {
    let (locks, operations) = (&context.locks, &context.operations);
    let help = "1 if the node can serve: its store takes commits and it is not shutting down.";
    page.gauge("latchgate_ready", help, u32::from(locks.is_ready()));
    counts(context, page);
    engines(context, page);
    due(context, page);
    let help = "Requests that wait, with event streams, and how many may.";
    let (waits_max, free) = (context.limits.waits_max, context.waits.available_permits());
    let mut waits = page.gauges("latchgate_waits", help);
    waits.show(&[("state", "used")], waits_max.saturating_sub(free));
    waits.show(&[("state", "max")], waits_max);
    let help = "Connections to stores.";
    let mut connections = page.gauges("latchgate_pool_connections", help);
    let pools =
        |set: Option<&EngineSet>| set.and_then(|set| Some(set.in_use().ok()?.store.pools())).unwrap_or_default();
    let pools = [("locks", pools(Some(locks.engines()))), ("gate", pools(operations.own_engines()))];
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

/// What the node has counted.
fn counts(context: &Context, page: &mut Page<'_>) {
    let locks = &context.locks;
    context.requests.retain(|app| context.access.knows_app(app));
    context.requests.encode(page);
    locks.metrics().encode(locks.now(), page);
    page.gauge("latchgate_waiters", "Requests that wait in a queue of this node.", locks.waiters());
    context.operations.metrics().encode(page);
}

fn engines(context: &Context, page: &mut Page<'_>) {
    let (locks, operations) = (&context.locks, &context.operations);
    let pairs = [used("locks", locks.engines()), used("gate", operations.engines())];
    let mut in_use = page.gauges("latchgate_engine", "1 for the engine in use, 0 for the other one of its pair.");
    for (of, view, used) in &pairs {
        for (index, engine) in view.engines.iter().enumerate() {
            let labels = [("of", *of), ("engine", engine.name.as_str()), ("kind", engine.kind)];
            in_use.show(&labels, u32::from(used.is_some_and(|(used, _)| used == index)));
        }
    }
    let mut epochs = page.gauges("latchgate_epoch", "The epoch of the engine in use; 0 while none is.");
    for (of, _, used) in &pairs {
        epochs.show(&[("of", of)], used.map_or(0, |(_, epoch)| epoch));
    }
    let help = "Time until the hold-off ends and new leases are granted.";
    let mut hold_offs = page.gauges("latchgate_hold_off_seconds", help);
    hold_offs.show(&[("of", "locks")], seconds(locks.hold_off_ms()));
    hold_offs.show(&[("of", "gate")], seconds(operations.hold_off_ms()));
    let help = "1 if a Redis of the locks or of the gate evicts keys when its memory is full.";
    let may_forget = locks.engines().risk().is_some() || operations.risk().is_some();
    page.gauge("latchgate_may_forget", help, u32::from(may_forget));
}

/// What a person must see to in time.
fn due(context: &Context, page: &mut Page<'_>) {
    let help = "Operations that a person must decide: unknown ones, and those whose lease has passed and that block.";
    let mut undecided = page.gauges("latchgate_operations_undecided", help);
    let found = context.undecided.lock().clone();
    let default = App::default();
    let none = (!found.contains_key(&default)).then_some((&default, &0));
    found.iter().chain(none).for_each(|(app, count)| undecided.show(&[("app", app.as_str())], *count));
    let help = "Time until the first API key of the app that will expire does.";
    let mut keys = page.gauges("latchgate_api_key_expires_seconds", help);
    for (app, ms) in context.access.expiring_ms() {
        keys.show(&[("app", app.as_str())], seconds(ms));
    }
    let expires_at = context.tls.as_ref().and_then(Tls::expires_at);
    // Before the first answer of the store, its clock is not known.
    let now = Some(context.locks.now()).filter(|now| *now > Timestamp::default());
    let help = "Time until the first certificate of this node's chain expires; below 0 if it has.";
    let mut certificate = page.gauges("latchgate_tls_certificate_expires_seconds", help);
    if let (Some(expires_at), Some(now)) = (expires_at, now) {
        certificate.show(&[], seconds(expires_at.ms_since(now)) - seconds(now.ms_since(expires_at)));
    }
}

/// The engines, and the index and the epoch of the one in use.
fn used(of: &'static str, engines: &EngineSet) -> (&'static str, View, Option<(usize, u64)>) {
    let used = engines.in_use().ok().map(|used| (used.index, used.epoch.number()));
    (of, engines.view(), used)
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}
