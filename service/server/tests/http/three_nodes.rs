//! Three nodes, and clients that use any of them, as behind a load balancer: notifications are lost.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::Args;
use sqlx::Connection as _;

use crate::client::on_postgres;
use crate::recorded::Recording;

pub async fn three_nodes(database: &str) -> Vec<Node> {
    let (one, two, three) = tokio::join!(on_postgres(database), on_postgres(database), on_postgres(database));
    vec![one, two, three]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_every_notification_lost_waiters_are_served() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let mut connection = sqlx::PgConnection::connect(&database).await.unwrap();
    let nodes = three_nodes(&database).await;
    let load = Recording::start(&nodes, |args| Args { keys: 1, clients: 12, ..args });
    let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and query ilike 'listen%'";
    let mut killed = 0;
    let killing = async {
        loop {
            killed += sqlx::query_scalar::<_, i64>(kill).fetch_one(&mut connection).await.unwrap();
        }
    };
    tokio::select! {
        () = load.until("waiters are served", |report| report.handovers > 10) => {}
        () = killing => {}
    }
    assert!(killed > 0, "no listener was found");
    load.checked(&Options::default()).await;
}
