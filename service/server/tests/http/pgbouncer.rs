//! Nodes behind PgBouncer in transaction mode, with a direct route to Postgres.

use clap::ValueEnum as _;
use latchgate_testkit::node::Node;
use latchgate_testkit::pgbouncer::PgBouncer;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::{Args, Workload};

use crate::client::{BIN, get};
use crate::recorded::Recording;

#[tokio::test]
async fn two_nodes_behind_it_are_one_service_for_clients_of_every_kind() {
    let postgres = Postgres::start().await;
    let direct = postgres.create_database().await;
    let pgbouncer = PgBouncer::start(postgres.port()).await;
    let proxied = pgbouncer.in_front_of(&direct);
    let args = ["--locks", proxied.as_str(), "--locks-direct", direct.as_str()];
    let (one, other) = (Node::start(BIN, &args).await, Node::start(BIN, &args).await);
    let choose = |args| Args { mix: Workload::value_variants().to_vec(), readers: 1, keys: 3, ..args };
    let load = Recording::start([&one, &other], choose);
    load.goes_on(300).await;
    for path in ["/v1/locks?held=true", "/v1/locks/k/history", "/v1/operations"] {
        assert_eq!(get(&other, path).await.status, 200, "{path}");
    }
    let (_, report) = load.checked(&Options::default()).await;
    assert!(report.handovers > 20 && report.attempts > 0 && report.events > 0, "{report:?}");
}
