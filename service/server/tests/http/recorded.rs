//! Clients record every call and event, and the record is checked afterwards: no promise may have been broken.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::{Postgres, shared_database};
use latchgate_testkit::recorded::{self, Call, Options, Report, read_file};
use latchgate_testkit::recorder::{self, Workload};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use crate::client::{BIN, get, granted, on_postgres, release};

const LONG: Duration = Duration::from_secs(60);
/// To check what there is takes time, of which the clients need some.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// A recording that goes on until the test ends it.
pub struct Recording {
    dir: TempDir,
    end: oneshot::Sender<()>,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Recording {
    pub fn start<'a>(
        nodes: impl IntoIterator<Item = &'a Node>,
        choose: impl FnOnce(recorder::Args) -> recorder::Args,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let urls = nodes.into_iter().map(Node::base_url).collect();
        let args = choose(recorder::Args::new(urls, dir.path().join("history")));
        let (end, ended) = oneshot::channel::<()>();
        let running = tokio::spawn(async move { recorder::until(async { drop(ended.await) }, &args).await });
        Self { dir, end, running }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("history")
    }

    /// What there is so far. In a thread of its own: the clients may be in that of the test.
    async fn report(&self) -> Report {
        let file = self.file();
        let reading = spawn_blocking(move || {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            recorded::check(&recorded::read(whole.as_bytes()).unwrap())
        });
        reading.await.unwrap()
    }

    pub async fn until(&self, what: &str, is_enough: impl Fn(&Report) -> bool) {
        let is_reached = || async {
            sleep(REPORT_EVERY).await;
            is_enough(&self.report().await)
        };
        assert!(eventually(LONG, is_reached).await, "{what}: {:?}", self.report().await);
    }

    /// Returns after so many more grants or goes.
    pub async fn goes_on(&self, count: usize) {
        let seen = |report: &Report| report.grants + report.attempts;
        let before = seen(&self.report().await);
        self.until("clients go on", |report| seen(report) >= before + count).await;
    }

    /// All calls and events, without a broken promise.
    pub async fn checked(self, options: &Options) -> (Vec<Call>, Report) {
        let file = self.file();
        drop(self.end);
        self.running.await.unwrap().unwrap();
        let calls = read_file(&file).unwrap();
        let report = recorded::check_with(&calls, options);
        let shown: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
        assert!(shown.is_empty(), "{}", shown.join("\n"));
        (calls, report)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_breaks_no_promise() {
    let database = shared_database().await;
    let nodes = tokio::join!(on_postgres(&database), on_postgres(&database), on_postgres(&database));
    let mut nodes: [Node; 3] = nodes.into();
    let kept = granted(&nodes[0], "kept", json!({ "ttl_ms": 300_000 })).await;
    // Of an abandoned lease, the next client waits for the end.
    let (mix, readers) = (Workload::value_variants().to_vec(), 1);
    let choose = |args| recorder::Args { mix, readers, keys: 4, ttl_ms: 1_000, abandon_one_in: 20, ..args };
    let recording = Recording::start(&nodes, choose);
    for node in &mut nodes {
        recording.goes_on(50).await;
        node.terminate();
        let status = node.wait_exit(Duration::from_secs(10)).await;
        assert!(status.is_some_and(|status| status.success()), "it did not drain within 10 s: {}", node.log());
        recording.goes_on(10).await;
        node.start_again().await;
    }
    let (_, report) = recording.checked(&Options::default()).await;
    assert!(report.handovers > 100, "{report:?}");
    // This lease was not used during the restarts.
    assert_eq!(release(&nodes[2], "kept", &kept.text("lease_id")).await.status, 200);
}

#[tokio::test]
async fn behind_a_pgbouncer_two_nodes_are_one_service_for_all_clients() {
    // The PgBouncer is in transaction mode, and the nodes have a direct route to Postgres, too.
    let postgres = Postgres::start().await;
    let direct = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&direct);
    let args = ["--locks", proxied.as_str(), "--locks-direct", direct.as_str()];
    let (one, other) = (Node::start(BIN, &args).await, Node::start(BIN, &args).await);
    let choose = |args| recorder::Args { mix: Workload::value_variants().to_vec(), readers: 1, keys: 3, ..args };
    let load = Recording::start([&one, &other], choose);
    load.goes_on(100).await;
    for path in ["/v1/locks?held=true", "/v1/locks/k/history", "/v1/operations"] {
        assert_eq!(get(&other, path).await.status, 200, "{path}");
    }
    let (_, report) = load.checked(&Options::default()).await;
    assert!(report.handovers > 20 && report.attempts > 0 && report.events > 0, "{report:?}");
}
