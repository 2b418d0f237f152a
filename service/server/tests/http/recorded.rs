//! Clients record every call, and the record is checked afterwards: no lock may have had two holders.

use std::time::Duration;

use clap::ValueEnum;
use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::recorded::{self, Call, Options, judge, read_file};
use latchgate_testkit::recorder::{self, Workload};
use tokio::sync::oneshot;

use crate::client::on_postgres;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_each_node_is_killed_in_turn_no_lock_has_two_holders() {
    let database = shared_database().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(on_postgres(&database).await);
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("history");
    let defaults = recorder::Args::new(nodes.iter().map(Node::base_url).collect(), out.clone());
    // Of an abandoned lease, the next client waits for the end.
    let args = recorder::Args { keys: 4, clients: 12, ttl_ms: 1_000, abandon_one_in: 20, ..defaults };
    let grants = || recorded::check(&whole_lines(&out)).grants;
    let (end, ended) = oneshot::channel::<()>();
    let recording = tokio::spawn(async move { recorder::until(async { drop(ended.await) }, &args).await });
    for node in &mut nodes {
        let before = grants();
        assert!(eventually(LONG, || async { grants() > before + 50 }).await);
        node.kill9();
        let before = grants();
        assert!(eventually(LONG, || async { grants() > before + 10 }).await, "two nodes do without the third");
        node.start_again().await;
    }
    drop(end);
    recording.await.unwrap().unwrap();
    let report = recorded::check(&read_file(&out).unwrap());
    assert_no_violations(&report);
    assert!(report.handovers > 100 && report.unknown_outcomes > 0, "{report:?}");
}

/// The complete lines of a history that is still being written.
fn whole_lines(file: &std::path::Path) -> Vec<Call> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    recorded::read(whole.as_bytes()).unwrap()
}

fn assert_no_violations(report: &recorded::Report) {
    let shown: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_lock_the_gate_and_the_events_keep_their_promises_at_three_nodes() {
    let database = shared_database().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(on_postgres(&database).await);
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("history");
    let defaults = recorder::Args::new(nodes.iter().map(Node::base_url).collect(), out.clone());
    let (mix, readers) = (Workload::value_variants().to_vec(), 2);
    let args = recorder::Args { mix, readers, keys: 3, seconds: 5, ttl_ms: 1_500, abandon_one_in: 30, ..defaults };
    recorder::run(&args).await.unwrap();
    let options = Options { granted_within_ms: 10_000, ..Options::default() };
    let report = recorded::check_with(&read_file(&out).unwrap(), &options);
    assert_no_violations(&report);
    assert!(report.grants > 100 && report.attempts > 20 && report.events > 200, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_independent_judge_finds_an_order_for_a_small_history() {
    let node = on_postgres(&shared_database().await).await;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("history");
    let defaults = recorder::Args::new(vec![node.base_url()], out.clone());
    let args = recorder::Args { keys: 1, clients: 3, seconds: 1, ttl_ms: 300, abandon_one_in: 10, ..defaults };
    recorder::run(&args).await.unwrap();
    let calls = read_file(&out).unwrap();
    assert!(calls.len() > 30 && judge(&calls), "{} calls", calls.len());
}
