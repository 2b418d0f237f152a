//! Operations whose rows other sessions keep locked.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use latchgate_core::gate::{Outcome, Report};
use latchgate_node::failure::Answer;
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::stores::{migrated, postgres_config};
use tokio::task::JoinSet;

use crate::worlds::{Operation, PATIENCE, post, start};

/// Neither a row that is locked, nor one that a transaction is inserting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_another_session_keeps_locked_delays_no_other_operation() {
    let postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    let config = migrated(postgres_config(url.clone())).await;
    let config = PostgresConfig { row_wait: Duration::from_millis(50), ..config };
    let node = Arc::new(start(Arc::new(PostgresStore::open(&config).await.unwrap()), PATIENCE).await);
    let operation = |number: usize| Operation::of("charge", &number.to_string());
    let pre = |number: usize| {
        let (node, operation) = (Arc::clone(&node), operation(number));
        async move { node.pre(&operation.app, operation.call()).await.map(|reply| reply.outcome) }
    };
    let mut stamps = Vec::new();
    for number in 0..50 {
        let Ok(Outcome::Go(go)) = pre(number).await else { panic!("no go") };
        stamps.push(go.stamp);
    }
    let database = url.rsplit('/').next().unwrap().to_owned();
    let id = |number| operation(number).address().id;
    let blocking = format!(
        "begin; select from latchgate.operations where key = '{}' for update; \
         insert into latchgate.operations (app, key, version, replaces, keep_until, state, suspect) \
         values ('default', '{}', 1, 0, 0, 'null', false); select pg_sleep(600)",
        id(7),
        id(100)
    );
    let blocking = postgres.query(&database, &blocking);
    let calling = async {
        let is_blocked = || async {
            let sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
            postgres.query(&database, sleeping).await.trim() == "1"
        };
        assert!(eventually(PATIENCE, is_blocked).await);
        let mut stuck = vec![tokio::spawn(pre(100))];
        let mut posts = JoinSet::new();
        for (number, stamp) in stamps.iter().enumerate() {
            let (node, address, ended) =
                (Arc::clone(&node), operation(number).address(), post(*stamp, Report::Success));
            let posting = async move { node.post(&address, ended).await.map(|reply| reply.outcome) };
            if number == 7 {
                stuck.push(tokio::spawn(posting));
            } else {
                posts.spawn(posting);
            }
        }
        for answer in posts.join_all().await {
            assert!(matches!(answer, Ok(Outcome::Posted(_))), "{answer:?}");
        }
        let pres: JoinSet<Answer<Outcome>> = (101..121).map(pre).collect();
        for answer in pres.join_all().await {
            assert!(matches!(answer, Ok(Outcome::Go(_))), "{answer:?}");
        }
        for stuck in stuck {
            let answer = stuck.now_or_never();
            assert!(answer.as_ref().is_none_or(|answer| answer.as_ref().unwrap().is_err()), "{answer:?}");
        }
    };
    tokio::select! {
        _ = blocking => panic!("the transaction ended"),
        called = tokio::time::timeout(PATIENCE, calling) => called.expect("calls wait for a row of another operation"),
    }
}
