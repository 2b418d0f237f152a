//! `/metrics`, for Prometheus. No label has a value that clients choose: no key, no owner, no path.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::body::NoBody;
use super::query::NoQuery;
use super::{Context, Shared};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The kinds of requests. The last stands for every other one.
const VERBS: [&str; 22] = [
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
    "pre",
    "pre_batch",
    "preview",
    "post",
    "heartbeat",
    "operation",
    "admin",
    "other",
];

/// The status codes of answers. The last stands for every other one.
const STATUSES: [u16; 20] =
    [200, 201, 204, 400, 401, 403, 404, 405, 409, 410, 412, 413, 422, 423, 500, 501, 503, 431, 408, 0];

/// Counts the answers of this process.
#[derive(Debug)]
pub struct Answers {
    counts: [[AtomicU64; STATUSES.len()]; VERBS.len()],
}

impl Default for Answers {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))) }
    }
}

impl Answers {
    pub fn count(&self, Verb(verb): Verb, status: StatusCode) {
        let status = STATUSES.iter().position(|known| *known == status.as_u16()).unwrap_or(STATUSES.len() - 1);
        self.counts[verb][status].fetch_add(1, Ordering::Relaxed);
    }
}

/// An index into [`VERBS`].
#[derive(Clone, Copy, Debug)]
pub struct Verb(usize);

impl Verb {
    pub fn of(method: &Method, path: &str) -> Self {
        let verb = verb_of(method, path);
        Self(VERBS.iter().position(|known| *known == verb).unwrap_or(VERBS.len() - 1))
    }

    /// Whether the answer is of use only to a client that receives it: a grant, or a stream.
    pub fn ends_with_client(self) -> bool {
        matches!(VERBS[self.0], "acquire" | "multilock_acquire" | "pre" | "pre_batch" | "events")
    }

    pub fn is_stream(self) -> bool {
        VERBS[self.0] == "events"
    }
}

fn verb_of(method: &Method, path: &str) -> &'static str {
    let Some(path) = path.strip_prefix("/v1/") else { return "other" };
    let last = path.rsplit('/').next().unwrap_or_default();
    if let Some(rest) = path.strip_prefix("locks") {
        return match (method.as_str(), last) {
            _ if rest.trim_matches('/').is_empty() => "list",
            ("POST", "acquire") => "acquire",
            ("POST", "renew") => "renew",
            ("POST", "release") => "release",
            ("POST", "revoke") => "revoke",
            ("POST", "fence") => "fence",
            ("PUT", "limit") => "limit",
            ("GET", "events") => "events",
            ("GET", "history") => "history",
            ("GET", _) => "inspect",
            ("DELETE", _) => "force",
            _ => "other",
        };
    }
    match path {
        "multilocks/acquire" => "multilock_acquire",
        "multilocks/renew" => "multilock_renew",
        "multilocks/release" => "multilock_release",
        "operations/pre" => "pre",
        "operations/pre/batch" => "pre_batch",
        "operations/preview" => "preview",
        "operations" => "list",
        "events" => "events",
        _ if path.starts_with("operations/") => match last {
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
    let mut registry = Registry::with_prefix("latchgate");
    registry.register_collector(Box::new(Scrape::of(&context)));
    let mut page = String::new();
    match text::encode(&mut page, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The values at the moment of one scrape.
#[derive(Debug)]
struct Scrape {
    answers: Vec<(&'static str, String, u64)>,
    /// Name, help, value.
    gauges: Vec<(&'static str, &'static str, i64)>,
    store: &'static str,
}

impl Scrape {
    fn of(context: &Context) -> Self {
        let mut answers = Vec::new();
        for (verb, counts) in VERBS.iter().zip(&context.answers.counts) {
            for (status, count) in STATUSES.iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let status = if *status == 0 { "other".to_owned() } else { status.to_string() };
                    answers.push((*verb, status, count));
                }
            }
        }
        let gauges = vec![
            (
                "ready",
                "1 if the node can serve: its store takes commits and it is not shutting down.",
                i64::from(context.locks.is_ready()),
            ),
            (
                "may_forget",
                "1 if a Redis of the locks or of the gate evicts keys when its memory is full.",
                i64::from(context.locks.engines().risk().is_some() || context.operations.risk().is_some()),
            ),
            ("waiters", "Requests that wait in a queue of this node.", signed(context.locks.waiters())),
            (
                "hold_off_ms",
                "Time until the hold-off ends and new leases are granted, in ms.",
                signed(context.locks.hold_off_ms()),
            ),
        ];
        Self { answers, gauges, store: context.locks.store_name() }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl prometheus_client::collector::Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let help = "Answers by kind of request and status code.";
        let mut answers = encoder.encode_descriptor("answers", help, None, MetricType::Counter)?;
        for (verb, status, count) in &self.answers {
            let labels = [("verb", *verb), ("status", status.as_str())];
            ConstCounter::new(*count).encode(answers.encode_family(&labels)?)?;
        }
        for (name, help, value) in &self.gauges {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(*value).encode(gauge)?;
        }
        let mut store =
            encoder.encode_descriptor("store", "The kind of store that the locks live in.", None, MetricType::Gauge)?;
        ConstGauge::new(1_i64).encode(store.encode_family(&[("kind", self.store)])?)
    }
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
        assert_eq!(get("/v1/locks/release"), "inspect");
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
}
