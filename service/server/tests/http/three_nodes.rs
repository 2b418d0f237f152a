//! Three nodes, and clients that use any of them, as behind a load balancer: many waiters, and lost notifications.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use serde_json::json;
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::client::{granted, inspect, on_postgres, post, release};

const LONG: Duration = Duration::from_secs(60);

pub async fn three_nodes(database: &str) -> Vec<Node> {
    let (one, two, three) = tokio::join!(on_postgres(database), on_postgres(database), on_postgres(database));
    vec![one, two, three]
}

/// A protected resource, which fails if two clients are inside at once.
#[derive(Default)]
struct Inside(AtomicUsize);

impl Inside {
    async fn visit(&self) {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
        tokio::task::yield_now().await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Queues `count` waiters at all nodes behind a holder. Each releases at another node than it was granted at.
async fn crowd(nodes: &[Node], count: usize) {
    let holder = granted(&nodes[0], "k", json!({ "ttl_ms": 300_000 })).await;
    let inside: Arc<Inside> = Arc::default();
    let mut waiting = JoinSet::new();
    for number in 0..count {
        let (here, there) = (nodes[number % nodes.len()].base_url(), nodes[(number + 1) % nodes.len()].base_url());
        let inside = Arc::clone(&inside);
        waiting.spawn(async move {
            let request = json!({ "wait_ms": 50_000, "ttl_ms": 60_000 }).to_string();
            let grant = post(format!("{here}/v1/locks/k/acquire"), request).await;
            assert_eq!(grant.status, 200, "{}", grant.body);
            inside.visit().await;
            let lease = json!({ "lease_id": grant.body["lease_id"] }).to_string();
            assert_eq!(post(format!("{there}/v1/locks/k/release"), lease).await.status, 200);
            grant.token()
        });
    }
    let has_all = || async { inspect(&nodes[1], "k").await["waiters"].as_u64().is_some_and(|n| n >= count as u64) };
    // A node knows the waiters of other nodes as of their last refresh.
    assert!(eventually(LONG, has_all).await, "{}", inspect(&nodes[1], "k").await);
    assert_eq!(release(&nodes[2], "k", &holder.text("lease_id")).await.status, 200);
    let served: BTreeSet<u64> = waiting.join_all().await.into_iter().collect();
    assert_eq!(served.len(), count, "every waiter was served, each with its own token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_every_notification_lost_all_waiters_are_served() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let nodes = three_nodes(&database).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let killed = Arc::new(AtomicU64::new(0));
    let killing = tokio::spawn({
        let (is_over, killed, database) = (Arc::clone(&is_over), Arc::clone(&killed), database.clone());
        async move {
            let mut connection = sqlx::PgConnection::connect(&database).await.unwrap();
            let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                where datname = current_database() and query ilike 'listen%'";
            while !is_over.load(Ordering::SeqCst) {
                let count: i64 = sqlx::query_scalar(kill).fetch_one(&mut connection).await.unwrap();
                killed.fetch_add(count.unsigned_abs(), Ordering::SeqCst);
            }
        }
    });
    crowd(&nodes, 12).await;
    is_over.store(true, Ordering::SeqCst);
    killing.await.unwrap();
    assert!(killed.load(Ordering::SeqCst) > 0, "no listener was found");
}
