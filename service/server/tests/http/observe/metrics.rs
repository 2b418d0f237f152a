//! `/metrics`, and the files that name its metrics.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::access::world::{Caller, operated};
use crate::client::{acquire, begun, embedded, get, granted, pre, release, report, until_waiting, waiting};

const HOUR_MS: u64 = 3_600_000;

async fn page(node: &Node) -> String {
    get(node, "/metrics").await.body.as_str().unwrap().to_owned()
}

/// The value of the line that begins with this; 0 if there is none.
fn value(page: &str, metric: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn a_node_keeps_samples_of_its_metrics_for_the_console() {
    let node = embedded().await;
    granted(&node, "secret-key", json!({ "owner": "secret-owner" })).await;
    let last = |samples: &Value, series: &str| samples["series"][series].as_array()?.last()?.as_i64();
    until("two samples, the last one after the grant", || async {
        let samples = get(&node, "/metrics/samples?app=*").await.body;
        last(&samples, "latchgate_leases_granted_total") == Some(1) && samples["ages_ms"][1].is_u64()
    })
    .await;
    let samples = get(&node, "/metrics/samples?app=*").await.body;
    let ages = samples["ages_ms"].as_array().unwrap();
    assert!(ages.is_sorted_by_key(|age| Reverse(age.as_u64())), "{samples}");
    assert!(!samples.to_string().contains("secret-"), "{samples}");
    let of_own_app = get(&node, "/metrics/samples").await.body;
    let of_requests = |name: &String| name.starts_with("latchgate_request");
    assert!(of_own_app["series"].as_object().unwrap().keys().all(of_requests), "{of_own_app}");
}

#[tokio::test]
async fn metrics_count_what_a_node_did_and_name_no_key_and_no_owner() {
    let node = embedded().await;
    let held = granted(&node, "secret-key", json!({ "owner": "secret-owner" })).await;
    acquire(&node, "secret-key", json!({})).await.assert_problem(423, "lock-held");
    let waits = waiting(&node, "secret-key", json!({ "wait_ms": 20_000 }));
    until_waiting(&node, "secret-key", 1).await;
    assert_eq!(value(&page(&node).await, "latchgate_waiters"), 1.0);
    assert_eq!(release(&node, "secret-key", &held.text("lease_id")).await.status, 200);
    assert_eq!(waits.await.unwrap().status, 200);
    granted(&node, "another", json!({ "ttl_ms": 1_000 })).await;
    let first = begun(&node, json!({ "operation": "pay", "contents": 1 })).await;
    pre(&node, json!({ "operation": "pay", "contents": 1 })).await.assert_problem(409, "operation-in-progress");
    assert_eq!(report(&node, &first, json!({ "outcome": "success" })).await.status, 200);
    get(&node, "/nowhere").await.assert_problem(404, "not-found");
    let expired = r#"latchgate_leases_ended_total{why="expired"}"#;
    until("the expiry", || async { value(&page(&node).await, expired) == 1.0 }).await;
    let page = page(&node).await;
    for (metric, expected) in [
        (r#"latchgate_requests_total{route="acquire",code="200",app="default"}"#, 3.0),
        (r#"latchgate_requests_total{route="other",code="404",app="default"}"#, 1.0),
        // The fourth one had a wait_ms.
        (r#"latchgate_request_seconds_count{route="acquire",app="default"}"#, 3.0),
        ("latchgate_wait_seconds_count", 1.0),
        ("latchgate_handoff_seconds_count", 1.0),
        ("latchgate_leases_granted_total", 3.0),
        (r#"latchgate_leases_ended_total{why="released"}"#, 1.0),
        ("latchgate_leases_live", 1.0),
        ("latchgate_waiters", 0.0),
        ("latchgate_ready", 1.0),
        (r#"latchgate_operations_total{outcome="go"}"#, 1.0),
        (r#"latchgate_operations_total{outcome="in_progress"}"#, 1.0),
        (r#"latchgate_operations_total{outcome="success"}"#, 1.0),
        (r#"latchgate_engine{of="locks",engine="sqlite",kind="sqlite"}"#, 1.0),
    ] {
        assert_eq!(value(&page, metric), expected, "{metric} in\n{page}");
    }
    for metric in [
        r#"latchgate_commit_seconds_count{store="sqlite"}"#,
        "latchgate_batch_calls_count",
        "latchgate_committer_queue_seconds_count",
        "latchgate_cache_misses_total",
        r#"latchgate_epoch{of="locks"}"#,
        "process_open_fds",
    ] {
        assert!(value(&page, metric) > 0.0, "{metric} in\n{page}");
    }
    assert!(!page.contains("secret-") && page.ends_with("\n# EOF\n"), "{page}");
}

#[tokio::test]
async fn operations_that_a_person_must_decide_are_counted_by_app() {
    let (node, operator) = operated().await;
    let billing = Caller::of_app(&node, "billing").await;
    let pre = |contents: u32, on_expiry: &str| {
        billing.begun(json!({ "operation": "pay", "contents": contents, "ttl_ms": 1_000, "on_expiry": on_expiry }))
    };
    let (blocks, _retried, unknown, done) =
        (pre(1, "block").await, pre(2, "retry").await, pre(3, "block").await, pre(4, "block").await);
    for (go, outcome) in [(&unknown, "unknown"), (&done, "success")] {
        let path = format!("/v1/operations/{}/post", go.text("id"));
        billing.ok(Method::POST, &path, json!({ "stamp": go.text("stamp"), "outcome": outcome })).await;
    }
    let undecided = async |app: &str| {
        let page = operator.get("/metrics").await.body;
        value(page.as_str().unwrap(), &format!("latchgate_operations_undecided{{app=\"{app}\"}}"))
    };
    until("the passed lease and the unknown one", || async { undecided("billing").await == 2.0 }).await;
    for go in [&blocks, &unknown] {
        let path = format!("/v1/operations/{}/resolve?app=billing", go.text("id"));
        operator.ok(Method::POST, &path, json!({ "outcome": "failure", "reason": "the bank has none" })).await;
    }
    until("the decisions", || async { undecided("billing").await == 0.0 }).await;
}

#[tokio::test]
async fn the_first_api_key_of_an_app_that_expires_is_shown() {
    let (_node, operator) = operated().await;
    operator.ok(Method::POST, "/v1/admin/apps", json!({ "app": "billing" })).await;
    let mut ids = Vec::new();
    for expires_in_ms in [2 * HOUR_MS, HOUR_MS] {
        let body = json!({ "app": "billing", "scopes": ["read"], "expires_in_ms": expires_in_ms });
        ids.push(operator.ok(Method::POST, "/v1/admin/api-keys", body).await.text("id"));
    }
    for (least, most) in [(3_000.0, 3_600.0), (6_600.0, 7_200.0)] {
        let page = operator.get("/metrics").await.body;
        let left = value(page.as_str().unwrap(), r#"latchgate_api_key_expires_seconds{app="billing"}"#);
        assert!(left > least && left <= most, "{left}");
        operator.revoke(&ids.pop().unwrap()).await;
    }
}

/// The metrics that a text names, as families.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let is_metric = |word: &&str| word.starts_with("latchgate_") || word.starts_with("process_");
    let family = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count", "_total"];
        suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word).to_owned()
    };
    words.filter(is_metric).map(family).collect()
}

#[tokio::test]
async fn the_dashboard_uses_real_metrics_and_every_metric_is_documented() {
    let page = page(&embedded().await).await;
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let served: BTreeSet<String> = families.map(str::to_owned).collect();
    let documented = named(include_str!("../../../../../docs/OPERATIONS.md"));
    for (file, names) in [
        ("deploy/grafana.json", named(include_str!("../../../../../deploy/grafana.json"))),
        ("docs/OPERATIONS.md", documented.clone()),
    ] {
        let unknown: Vec<_> = names.difference(&served).collect();
        assert!(!names.is_empty() && unknown.is_empty(), "{file} names {unknown:?}, which no node has");
    }
    let undocumented: Vec<_> = served.difference(&documented).collect();
    assert!(undocumented.is_empty(), "docs/OPERATIONS.md lacks {undocumented:?}");
}
