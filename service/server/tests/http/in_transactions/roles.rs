//! What the roles of guards and readers may do, and databases whose owner may not create roles.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use serde_json::json;

use super::world::{Caller, code_of};
use crate::client::{BIN, begun, granted, on_postgres};

/// What other sessions may not do.
const DENIED: &str = "42501";

#[tokio::test]
async fn a_role_may_guard_and_post_or_read_the_views_and_nothing_else() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let node = on_postgres(&database).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000, "owner": "me" })).await.text("lease_id");
    let go = begun(&node, json!({ "operation": "charge", "contents": 1, "label": "bill" })).await;
    let mut caller = Caller::connect(&database).await;
    caller.run("create role reader in role latchgate_read; set role reader").await;
    let holders =
        "select count(*) from latchgate.held where key = 'k' and owner = 'me' and mode = 'exclusive' and until > now()";
    assert_eq!(caller.number(holders).await, Ok(1));
    let running = "select count(*) from latchgate.running \
                   where operation = 'charge' and label = 'bill' and attempt = 1 and since < until";
    assert_eq!(caller.number(running).await, Ok(1));
    assert_eq!(code_of(caller.guard("k", &held).await), DENIED);

    caller.run("reset role; create role worker in role latchgate_guard; set role worker").await;
    caller.guard("k", &held).await.unwrap();
    let post = format!("select latchgate.post('{}', '{}')", go.text("id"), go.text("stamp"));
    caller.number(&post).await.unwrap();
    let inner = caller.number("select latchgate.guard_lease('default', 'k', 'x', null)").await;
    assert_eq!(code_of(inner), DENIED);
    // The search path of a caller does not change what a guard reads.
    caller.run("reset role; create schema evil; grant all on schema evil to worker; set role worker").await;
    caller
        .run(
            "set search_path = evil, pg_temp;
             create function evil.guard_lease(text, text, text, bigint) returns bigint language sql as 'select 1::bigint';
             create function evil.now_ms() returns bigint language sql as 'select 0::bigint';
             create temp table locks (app text, key text, state text)",
        )
        .await;
    assert_eq!(code_of(caller.guard("k", "none").await), "LG001");

    for role in ["reader", "worker"] {
        caller.run(&format!("reset role; set role {role}")).await;
        let views = if role == "worker" { &["held", "running"][..] } else { &[] };
        for table in [&["locks", "operations", "engine_records", "documents", "lock_events"], views].concat() {
            let read = caller.number(&format!("select count(*) from latchgate.{table}")).await;
            assert_eq!(code_of(read), DENIED, "{table}");
        }
    }
}

#[tokio::test]
async fn a_database_whose_owner_may_not_create_roles_gets_the_grants_later() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let name = database.rsplit_once('/').unwrap().1;
    let mut admin = Caller::connect(&database).await;
    admin.run(&format!("create role plain login; alter database \"{name}\" owner to plain")).await;
    let url = database.replace("postgres@", "plain@");
    let node = Node::start(BIN, &["--locks", &url]).await;
    let held = granted(&node, "k", json!({ "ttl_ms": 60_000 })).await.text("lease_id");
    let mut owner = Caller::connect(&url).await;
    owner.guard("k", &held).await.unwrap();

    admin
        .run("create role latchgate_guard; create role latchgate_read; create role worker in role latchgate_guard")
        .await;
    admin.run("set role worker").await;
    assert_eq!(code_of(admin.guard("k", &held).await), DENIED);
    owner.run("select latchgate.grant_roles()").await;
    admin.guard("k", &held).await.unwrap();
    admin.run("reset role; create role reader in role latchgate_read; set role reader").await;
    assert_eq!(admin.number("select count(*) from latchgate.held").await, Ok(1));
}
