//! Starting, and refusing to.

use std::time::Duration;

use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::postgres::{Postgres, shared_database};
use serde_json::json;

use crate::client::{BIN, embedded, granted};

async fn refusal(args: &[&str]) -> String {
    match Node::try_start(BIN, args, &[]).await {
        Ok(_) => panic!("{args:?} was accepted"),
        Err(NotReady { status, log }) => {
            assert!(status.is_some_and(|status| !status.success()), "{args:?} hangs:\n{log}");
            log
        }
    }
}

#[tokio::test]
async fn a_postgres_that_may_forget_is_refused_unless_allowed() {
    for setting in ["fsync", "synchronous_commit"] {
        let postgres = Postgres::start_with(&[(setting, "off")]).await;
        let database = postgres.create_database().await;
        let log = refusal(&["--locks", &database]).await;
        assert!(log.contains(setting) && log.contains("--allow-volatile"), "{log}");
        let node = Node::start(BIN, &["--locks", &database, "--allow-volatile"]).await;
        granted(&node, "k", json!({})).await;
    }
}

#[tokio::test]
async fn a_postgres_that_does_not_tell_its_timeline_must_be_trusted() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (_, name) = database.rsplit_once('/').unwrap();
    // As Aurora answers.
    let mute = "create function pg_current_wal_lsn() returns pg_lsn language plpgsql as $$ begin
        raise exception 'not supported' using errcode = '0A000'; end $$";
    postgres.query(name, mute).await;
    postgres.query(name, &format!("alter database {name} set search_path = public, pg_catalog")).await;
    let log = refusal(&["--locks", &database]).await;
    assert!(log.contains("does not tell its timeline") && log.contains("--trust-promotion"), "{log}");
    let node = Node::start(BIN, &["--locks", &database, "--trust-promotion"]).await;
    granted(&node, "k", json!({})).await;
}

#[tokio::test]
async fn an_sqlite_file_has_one_process() {
    let node = embedded().await;
    let path = format!("sqlite:{}", node.dir().join("latchgate.db").display());
    let log = refusal(&["--locks", &path]).await;
    assert!(log.contains("in use by another latchgate process"), "{log}");
}

#[tokio::test]
async fn an_sqlite_file_that_cannot_be_used_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let missing = format!("sqlite:{}", dir.path().join("no/such/directory/x.db").display());
    assert!(refusal(&["--locks", &missing]).await.contains("cannot write beside"));
    let nonsense = dir.path().join("nonsense.db");
    std::fs::write(&nonsense, "this is no database, though it is long enough to be read as one".repeat(20)).unwrap();
    let log = refusal(&["--locks", &format!("sqlite:{}", nonsense.display())]).await;
    assert!(log.contains("not an SQLite database"), "{log}");
}

#[tokio::test]
async fn without_migration_an_empty_database_is_refused() {
    let database = shared_database().await;
    let log = refusal(&["--locks", &database, "--migrate=false"]).await;
    assert!(log.contains("latchgate migrate"), "{log}");
    let done = tokio::process::Command::new(BIN).args(["migrate", "--locks", &database]).output().await.unwrap();
    assert!(done.status.success(), "{done:?}");
    Node::start(BIN, &["--locks", &database, "--migrate=false"]).await;
}

#[tokio::test]
async fn a_public_address_without_keys_is_refused() {
    let output = tokio::time::timeout(
        Duration::from_secs(20),
        tokio::process::Command::new(BIN)
            .args(["serve", "--listen", "0.0.0.0:0", "--locks", "sqlite:never.db"])
            .kill_on_drop(true)
            .output(),
    );
    let output = output.await.expect("no hang").unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--insecure-open"));
}

#[tokio::test]
async fn an_unreachable_database_is_an_error_that_keeps_the_password() {
    let log = refusal(&["--locks", "postgres://someone:s3cret@127.0.0.1:1/x"]).await;
    assert!(log.contains("cannot connect to Postgres") && !log.contains("s3cret"), "{log}");
}

#[tokio::test]
async fn settings_come_from_the_environment_too() {
    let database = shared_database().await;
    let env = [("LATCHGATE_TTL_MS_MAX", "40000"), ("DATABASE_URL", database.as_str())];
    let node = Node::start_with(BIN, &[], &env).await;
    assert!(node.log().contains("Postgres"), "{}", node.log());
    crate::client::acquire(&node, "k", json!({ "ttl_ms": 40_001 })).await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn health_succeeds_only_while_the_node_answers() {
    let health = async |listen: String| {
        let args = ["health", "--timeout-ms", "1000", "--listen", &listen];
        let ended = tokio::process::Command::new(BIN).args(args).output().await.unwrap();
        (ended.status.success(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let mut node = embedded().await;
    let port = node.port();
    assert_eq!(health(format!("0.0.0.0:{port}")).await, (true, String::new()));
    node.pause();
    let (is_healthy, said) = health(format!("127.0.0.1:{port}")).await;
    assert!(!is_healthy && said.contains("does not answer"), "{said}");
    node.resume();
}
