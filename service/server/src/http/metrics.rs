//! `/metrics`, for Prometheus. No label has a value that clients choose: no key, no owner, no path.

use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, Uri, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;

use super::body::NoBody;
use super::path::LockPath;
use super::query::NoQuery;
use super::{Context, Shared};
use crate::engines::GateEngines;
use crate::observe::metrics::{CONTENT_TYPE, Encode as _, Page, Process};
use crate::observe::traces::spans_dropped;

/// The kinds of requests. The last stands for every other one.
pub(super) const VERBS: [&str; 25] = [
    "acquire",
    "renew",
    "release",
    "revoke",
    "fence",
    "force",
    "limit",
    "inspect",
    "list",
    "events",
    "history",
    "multilock_acquire",
    "multilock_renew",
    "multilock_release",
    "leases_renew",
    "leases_release",
    "leases_revoke",
    "pre",
    "pre_batch",
    "preview",
    "post",
    "heartbeat",
    "operation",
    "admin",
    "other",
];

/// An index into [`VERBS`].
#[derive(Clone, Copy, Debug)]
pub struct Verb(usize);

impl Verb {
    pub fn of(method: &Method, path: &str) -> Self {
        let verb = verb_of(method, path);
        Self(VERBS.iter().position(|known| *known == verb).unwrap_or(VERBS.len() - 1))
    }

    pub fn index(self) -> usize {
        self.0
    }

    pub fn name(self) -> &'static str {
        VERBS[self.0]
    }

    /// Whether the answer is of use only to a client that receives it: a grant, a stream, or the end of a wait.
    pub fn ends_with_client(self, uri: &Uri) -> bool {
        match VERBS[self.0] {
            "acquire" | "multilock_acquire" | "pre" | "pre_batch" | "events" => true,
            "inspect" => {
                let query = percent_decode_str(uri.query().unwrap_or_default()).decode_utf8_lossy();
                query.contains("until=")
            }
            _ => false,
        }
    }

    /// Whether the request only keeps or ends what its client has begun: a client that is refused others must still be able to.
    pub fn is_of_holder(self) -> bool {
        matches!(
            VERBS[self.0],
            "renew"
                | "release"
                | "multilock_renew"
                | "multilock_release"
                | "leases_renew"
                | "leases_release"
                | "post"
                | "heartbeat"
        )
    }

    pub fn is_stream(self) -> bool {
        VERBS[self.0] == "events"
    }
}

fn verb_of(method: &Method, path: &str) -> &'static str {
    let Some(path) = path.strip_prefix("/v1/") else { return "other" };
    if let Some(rest) = path.strip_prefix("locks/").filter(|rest| !rest.is_empty()) {
        return match (method.as_str(), LockPath::split(rest)) {
            ("POST", LockPath::Verb(_, "acquire")) => "acquire",
            ("POST", LockPath::Verb(_, "renew")) => "renew",
            ("POST", LockPath::Verb(_, "release")) => "release",
            ("POST", LockPath::Verb(_, "revoke")) => "revoke",
            ("POST", LockPath::Verb(_, "fence")) => "fence",
            ("PUT", LockPath::Verb(_, "limit")) => "limit",
            ("GET", LockPath::Verb(_, "events")) => "events",
            ("GET", LockPath::Verb(_, "history")) => "history",
            ("GET" | "HEAD", LockPath::Key(_)) => "inspect",
            ("DELETE", LockPath::Key(_)) => "force",
            _ => "other",
        };
    }
    if path.starts_with("terraform/") {
        return match method.as_str() {
            "LOCK" | "POST" => "acquire",
            "UNLOCK" | "DELETE" => "release",
            _ => "other",
        };
    }
    match path {
        "locks" | "locks/" => "list",
        "multilocks/acquire" => "multilock_acquire",
        "multilocks/renew" => "multilock_renew",
        "multilocks/release" => "multilock_release",
        "leases/renew" => "leases_renew",
        "leases/release" => "leases_release",
        "leases/revoke" => "leases_revoke",
        "operations/pre" => "pre",
        "operations/pre/batch" => "pre_batch",
        "operations/preview" => "preview",
        "operations" => "list",
        "events" => "events",
        _ if path.starts_with("operations/") => match path.rsplit('/').next().unwrap_or_default() {
            "post" => "post",
            "heartbeat" => "heartbeat",
            _ => "operation",
        },
        _ if path.starts_with("admin/") => "admin",
        _ => "other",
    }
}

/// Metrics of this node.
#[utoipa::path(
    get, path = "/metrics", tag = "probes", operation_id = "getMetrics",
    responses((status = 200, description = "OpenMetrics text, for Prometheus.", body = String, content_type = "application/openmetrics-text"))
)]
pub async fn metrics(State(context): State<Shared>, _: NoQuery, _: NoBody) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], page(&context)).into_response()
}

fn page(context: &Context) -> String {
    let (locks, operations) = (&context.locks, &context.operations);
    let mut page = Page::default();
    context.requests.encode(&mut page);
    let help = "1 if the node can serve: its store takes commits and it is not shutting down.";
    page.gauge("latchgate_ready", help, u8::from(locks.is_ready()));
    locks.metrics().encode(locks.now(), &mut page);
    page.gauge("latchgate_waiters", "Requests that wait in a queue of this node.", locks.waiters());
    operations.metrics().encode(&mut page);
    operations.encode_calls(&mut page);
    engines(context, &mut page);
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
    page.gauges("latchgate_build_info", "The version of this node.").show(&version, 1);
    Process.encode(&mut page);
    page.finish()
}

fn engines(context: &Context, page: &mut Page) {
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
            used.show(&labels, u8::from(standing == Some(index)));
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
    page.gauge("latchgate_may_forget", help, u8::from(may_forget));
    let mut store = page.gauges("latchgate_store", "The kind of store that the locks live in.");
    store.show(&[("kind", locks.store_name())], 1);
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_counted_under_one_of_the_verbs() {
        let post = |path| verb_of(&Method::POST, path);
        let get = |path| verb_of(&Method::GET, path);
        assert_eq!(post("/v1/locks/orders%2F42/acquire"), "acquire");
        assert_eq!(post("/v1/locks/acquire/nonsense"), "other");
        assert_eq!([get("/v1/locks/release"), get("/v1/locks/events"), get("/v1/locks/a/b")], ["inspect"; 3]);
        assert_eq!(verb_of(&Method::HEAD, "/v1/locks/a"), "inspect");
        assert_eq!(get("/v1/locks"), "list");
        assert_eq!(get("/v1/locks/a/events"), "events");
        assert_eq!(verb_of(&Method::DELETE, "/v1/locks/a"), "force");
        assert_eq!(post("/v1/operations/0123/post"), "post");
        assert_eq!(post("/v1/multilocks/renew"), "multilock_renew");
        assert_eq!(post("/v1/admin/engines/locks"), "admin");
        assert_eq!(get("/nonsense"), "other");
        for verb in ["acquire", "force", "multilock_release", "pre_batch", "operation", "admin", "other"] {
            assert!(VERBS.contains(&verb));
        }
    }

    #[test]
    fn only_what_keeps_or_ends_something_is_of_a_holder() {
        let is_of_holder = |method: &str, path| Verb::of(&method.parse().unwrap(), path).is_of_holder();
        for (method, path) in [
            ("POST", "/v1/locks/a/renew"),
            ("POST", "/v1/locks/a/b/release"),
            ("POST", "/v1/leases/renew"),
            ("POST", "/v1/leases/release"),
            ("POST", "/v1/multilocks/renew"),
            ("POST", "/v1/operations/x/post"),
            ("POST", "/v1/operations/x/heartbeat"),
            ("UNLOCK", "/v1/terraform/a"),
            ("DELETE", "/v1/terraform/a"),
        ] {
            assert!(is_of_holder(method, path), "{method} {path}");
        }
        for (method, path) in [
            ("GET", "/v1/locks/a/renew"),
            ("POST", "/v1/locks/renew/acquire"),
            ("POST", "/v1/locks/release"),
            ("POST", "/v1/leases/revoke"),
            ("POST", "/v1/operations/pre"),
            ("POST", "/v1/terraform/a/release"),
            ("LOCK", "/v1/terraform/release"),
        ] {
            assert!(!is_of_holder(method, path), "{method} {path}");
        }
    }
}
