//! Typical failures of programs that use locks, on two nodes.

use latchgate_testkit::postgres::shared_database;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::client::{
    acquire, granted, inspect, on_postgres, owners, release, renew, two_nodes, until_waiting, verb, waiting,
};

/// The protected resource of README.md.
async fn account(database: &str) -> PgConnection {
    let mut connection = PgConnection::connect(database).await.unwrap();
    for statement in [
        "create table account (id int primary key, balance int not null, fence bigint not null default 0)",
        "insert into account (id, balance) values (1, 0)",
    ] {
        sqlx::query(statement).execute(&mut connection).await.unwrap();
    }
    connection
}

/// Writes with this token; returns whether the resource accepted it.
async fn write(connection: &mut PgConnection, balance: i32, token: u64) -> bool {
    let statement = "update account set balance = $2, fence = $3 where id = $1 and fence <= $3";
    let update = sqlx::query(statement).bind(1).bind(balance).bind(i64::try_from(token).unwrap());
    update.execute(connection).await.unwrap().rows_affected() == 1
}

async fn balance(connection: &mut PgConnection) -> i32 {
    sqlx::query_scalar("select balance from account where id = 1").fetch_one(connection).await.unwrap()
}

/// The holder's process was paused, or its virtual machine was moved, and it does not know that.
#[tokio::test]
async fn a_holder_that_was_paused_past_its_lease_cannot_write_any_more() {
    let database = shared_database().await;
    let (one, other) = (on_postgres(&database).await, on_postgres(&database).await);
    let mut account = account(&database).await;
    let paused = granted(&one, "k", json!({ "owner": "paused", "ttl_ms": 300 })).await;
    assert!(write(&mut account, 10, paused.token()).await);
    assert_eq!(verb(&one, "k", "fence", json!({ "token": paused.token() })).await.status, 200);

    let next = granted(&other, "k", json!({ "owner": "next", "wait_ms": 30_000 })).await;
    // The fence knows the new grant even before its holder has written anything.
    let refused = verb(&one, "k", "fence", json!({ "token": paused.token() })).await;
    refused.assert_problem(412, "stale-token");
    assert_eq!(refused.body["current"], next.token());
    assert!(write(&mut account, 20, next.token()).await);
    assert_eq!(verb(&one, "k", "fence", json!({ "token": next.token() })).await.status, 200);

    // The old holder continues.
    assert!(!write(&mut account, 11, paused.token()).await);
    assert_eq!(balance(&mut account).await, 20);
    verb(&other, "k", "fence", json!({ "token": paused.token() })).await.assert_problem(412, "stale-token");
    let lost = renew(&one, "k", &paused.text("lease_id")).await;
    lost.assert_problem(410, "lease-lost");
    assert_eq!(lost.body["why"], "expired");
    // The paused holder must not find its successor's token, which would pass the fence.
    assert!(!lost.body.to_string().contains(&next.token().to_string()), "{}", lost.body);
    assert!(write(&mut account, 21, next.token()).await);
}

#[tokio::test]
async fn two_sharers_that_upgrade_do_not_wait_for_each_other() {
    let (one, other) = two_nodes().await;
    let mine = granted(&one, "k", json!({ "owner": "me", "mode": "shared" })).await;
    granted(&other, "k", json!({ "owner": "you", "mode": "shared" })).await;
    let upgrades = [
        waiting(&one, "k", json!({ "owner": "me", "reentrant": true, "wait_ms": 50_000 })),
        waiting(&other, "k", json!({ "owner": "you", "reentrant": true, "wait_ms": 50_000 })),
        // The answer is the same at both nodes.
        waiting(&other, "k", json!({ "owner": "me", "reentrant": true })),
    ];
    for upgrade in upgrades {
        upgrade.await.unwrap().assert_problem(409, "upgrade-blocked");
    }
    assert_eq!(owners(&one, "k").await, ["me", "you"]);
    // After one of them has released its lease, the other can upgrade.
    assert_eq!(release(&other, "k", &mine.text("lease_id")).await.status, 200);
    let alone = granted(&one, "k", json!({ "owner": "you", "reentrant": true })).await;
    assert!(alone.token() > mine.token());
    acquire(&other, "k", json!({ "mode": "shared" })).await.assert_problem(423, "lock-held");
}

#[tokio::test]
async fn a_stream_of_readers_does_not_starve_a_writer() {
    let (one, other) = two_nodes().await;
    let reader = |owner: &str| json!({ "owner": owner, "mode": "shared", "wait_ms": 50_000 });
    let first = granted(&one, "k", reader("reader-1")).await;
    let writer = waiting(&other, "k", json!({ "owner": "writer", "wait_ms": 50_000 }));
    until_waiting(&one, "k", 1).await;
    for node in [&one, &other] {
        let refused = acquire(node, "k", json!({ "mode": "shared" })).await;
        refused.assert_problem(423, "lock-reserved");
        assert_eq!((&refused.body["waiters"], &refused.body["position"]), (&json!(1), &json!(2)));
    }
    let later = [waiting(&one, "k", reader("reader-2")), waiting(&other, "k", reader("reader-3"))];
    until_waiting(&one, "k", 3).await;
    release(&other, "k", &first.text("lease_id")).await;
    let writer = writer.await.unwrap();
    assert_eq!((writer.status.as_u16(), owners(&one, "k").await), (200, vec!["writer".to_owned()]));
    release(&one, "k", &writer.text("lease_id")).await;
    for reader in later {
        let reader = reader.await.unwrap();
        assert!(reader.status == 200 && reader.token() > writer.token(), "{}", reader.body);
    }
    let mut together = owners(&one, "k").await;
    together.sort_unstable();
    assert_eq!(together, ["reader-2", "reader-3"]);
}

#[tokio::test]
async fn an_urgent_request_waits_only_for_the_holder() {
    let (one, other) = two_nodes().await;
    let request = |owner: &str, priority: u8| json!({ "owner": owner, "priority": priority, "wait_ms": 50_000 });
    let mut lease_id = granted(&one, "k", request("low", 1)).await.text("lease_id");
    let mut queue = Vec::new();
    for (node, owner, priority) in [
        (&one, "medium-1", 5),
        (&one, "medium-2", 5),
        (&other, "medium-3", 5),
        (&one, "low-2", 1),
        (&other, "high", 10),
    ] {
        let before = inspect(&one, "k").await["waiters"].as_u64().unwrap();
        queue.push((owner, waiting(node, "k", request(owner, priority))));
        until_waiting(&one, "k", before + 1).await;
        until_waiting(&other, "k", before + 1).await;
    }
    let mut served = Vec::new();
    while !queue.is_empty() {
        release(&other, "k", &lease_id).await;
        let (finished, _, _) = futures::future::select_all(queue.iter_mut().map(|(_, waiting)| waiting)).await;
        let grant = finished.unwrap();
        let owner = grant.text("owner");
        queue.retain(|(name, _)| *name != owner);
        lease_id = grant.text("lease_id");
        served.push(owner);
    }
    assert_eq!((served[0].as_str(), served[4].as_str()), ("high", "low-2"));
    // At one node the order of arrival is exact; across nodes it is exact to within the clock bound.
    let of_one: Vec<&String> = served[1..4].iter().filter(|owner| **owner != "medium-3").collect();
    assert_eq!(of_one, ["medium-1", "medium-2"]);
}
