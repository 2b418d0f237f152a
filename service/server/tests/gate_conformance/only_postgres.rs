//! Operations whose rows other sessions keep locked.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use latchgate_core::gate::{Outcome, Report};
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_testkit::eventually;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::stores::{migrated, postgres_config};

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
    let mut stamps = Vec::new();
    for number in 0..50 {
        let reply = node.pre(&operation(number).app, operation(number).call()).await;
        let Ok(Outcome::Go(go)) = reply.map(|reply| reply.outcome) else { panic!("no go") };
        stamps.push(go.stamp);
    }
    // A post of an operation that has begun, or a pre.
    let call = |number: usize| {
        let (node, operation, stamp) = (Arc::clone(&node), operation(number), stamps.get(number).copied());
        let calling = tokio::spawn(async move {
            let reply = match stamp {
                Some(stamp) => node.post(&operation.address(), post(stamp, Report::Success)).await,
                None => node.pre(&operation.app, operation.call()).await,
            };
            reply.map(|reply| reply.outcome)
        });
        (number, calling)
    };
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
        let calls = (0..50).chain(100..121).map(call);
        let (stuck, others): (Vec<_>, Vec<_>) = calls.partition(|(number, _)| [7, 100].contains(number));
        for (number, call) in others {
            let answer = call.await.unwrap();
            assert!(matches!(answer, Ok(Outcome::Posted(_) | Outcome::Go(_))), "{number}: {answer:?}");
        }
        for (number, call) in stuck {
            let answer = call.now_or_never();
            assert!(answer.as_ref().is_none_or(|answer| answer.as_ref().unwrap().is_err()), "{number}: {answer:?}");
        }
    };
    tokio::select! {
        _ = blocking => panic!("the transaction ended"),
        called = tokio::time::timeout(PATIENCE, calling) => called.expect("calls wait for a row of another operation"),
    }
}
