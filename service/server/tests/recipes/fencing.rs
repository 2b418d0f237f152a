//! fenced-write.

use std::process::Command;

use latchgate_testkit::postgres::shared_database;

use crate::world::World;

/// Pauses between the work and the write, as a machine may.
const PAUSING_PSQL: &str = r#"#!/usr/bin/env bash
if [[ "$*" == *after=* ]]; then
  touch before-the-write
  until [[ -e resume ]]; do sleep 0.02; done
fi
PATH=${PATH#*:} exec psql "$@"
"#;

fn sql(database: &str, statement: &str) -> String {
    let output = Command::new("psql").args([database, "-XAtqc", statement]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn add(amount: u32) -> String {
    format!("read -r balance; echo $((balance + {amount}))")
}

#[tokio::test]
async fn a_paused_holder_is_refused_and_the_balance_is_right() {
    let world = World::new().await;
    // The table of the page, with one account.
    let database = shared_database().await;
    let columns = "id text primary key, balance numeric not null, fence bigint not null default 0";
    sql(&database, &format!("create table account ({columns}); insert into account values ('it''s 7', 100)"));
    let env = [("DATABASE_URL", database.as_str())];
    world.put("paused/psql", PAUSING_PSQL);
    let args = ["it's 7", "sh", "-c", &add(1)];
    let mut paused = world.run_with("paused", "fenced-write", &args, &[env[0], ("TTL_MS", "5000")]);
    world.until_there("before-the-write").await;
    // This script waits until the lease of the paused one has expired.
    world.run_with("b", "fenced-write", &["it's 7", "sh", "-c", &add(10)], &env).succeeds().await;
    world.touch("resume");
    assert_eq!(paused.code().await, Some(1), "{}", paused.errors());
    assert!(paused.errors().contains("refused: a later lease has begun"), "{}", paused.errors());
    assert_eq!(sql(&database, "select balance from account"), "110");
}
