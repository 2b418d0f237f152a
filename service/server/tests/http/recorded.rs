//! Clients record every call, and the record is checked afterwards: no lock may have had two holders.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::recorded::{self, Call, history};
use latchgate_testkit::recorder;
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
    let args = recorder::Args {
        urls: nodes.iter().map(Node::base_url).collect(),
        keys: 4,
        clients: 12,
        seconds: 0,
        ttl_ms: 1_000,
        // The next client waits for the end of the lease.
        abandon_one_in: 20,
        out: dir.path().join("history"),
    };
    let out = args.out.clone();
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
    let report = recorded::check(&history::read(&out).unwrap());
    let shown: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
    assert!(report.handovers > 100 && report.unknown_outcomes > 0, "{report:?}");
}

/// The complete lines of a history that is still being written.
fn whole_lines(file: &std::path::Path) -> Vec<Call> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    recorded::read(whole.as_bytes()).unwrap()
}
