//! Tests of the fixtures. They need the programs that `make test` installs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use latchgate_testkit::redis::{Redis, shared_url};

const LONG: Duration = Duration::from_secs(30);

fn psql(url: &str, sql: &str) -> Result<String, String> {
    let output = Command::new("psql").args(["-XAtq", "-d", url, "-c", sql]).output().expect("psql can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn redis_cli(url: &str, args: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-u", url]).args(args).output().expect("redis-cli can be run");
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

fn pretend_node() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let target = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    target.join("examples/pretend_node")
}

#[tokio::test]
async fn a_private_postgres_is_durable_and_keeps_its_data_through_a_kill() {
    let mut postgres = Postgres::start().await;
    let url = postgres.create_database().await;
    assert_eq!(psql(&url, "show fsync").as_deref(), Ok("on"));
    assert_eq!(psql(&url, "show synchronous_commit").as_deref(), Ok("on"));
    psql(&url, "create table kept (n int); insert into kept values (7)").expect("a fresh database takes tables");

    postgres.kill9();
    psql(&url, "select 1").expect_err("a killed server does not answer");
    postgres.start_again().await;
    assert_eq!(psql(&url, "select n from kept").as_deref(), Ok("7"));

    postgres.stop_fast().await;
    postgres.start_again().await;
    assert_eq!(psql(&url, "select n from kept").as_deref(), Ok("7"));
}

#[tokio::test]
async fn settings_reach_a_private_postgres() {
    let postgres = Postgres::start_with(&[("fsync", "off"), ("max_connections", "20")]).await;
    assert_eq!(psql(&postgres.url("postgres"), "show fsync").as_deref(), Ok("off"));
    assert_eq!(psql(&postgres.url("postgres"), "show max_connections").as_deref(), Ok("20"));
}

#[tokio::test]
async fn a_paused_postgres_answers_only_when_resumed() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url("postgres");
    postgres.pause();
    let mut asking = Command::new("psql").args(["-XAtq", "-d", &url, "-c", "select 1"]).spawn().expect("psql");
    assert!(
        !eventually(Duration::from_millis(300), || {
            let done = asking.try_wait().expect("our child").is_some();
            async move { done }
        })
        .await
    );
    postgres.resume();
    assert!(asking.wait().expect("our child").success());
}

#[tokio::test]
async fn a_backend_in_the_middle_of_a_query_dies_with_its_server() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url("postgres");
    let mut asking =
        Command::new("psql").args(["-XAtq", "-d", &url, "-c", "select pg_sleep(600)"]).spawn().expect("psql");
    assert!(
        eventually(LONG, || {
            let asleep = psql(&url, "select count(*) from pg_stat_activity where wait_event = 'PgSleep'");
            async move { asleep.as_deref() == Ok("1") }
        })
        .await
    );
    postgres.kill9();
    assert!(!asking.wait().expect("our child").success());
    postgres.start_again().await;
    assert_eq!(psql(&url, "select 1").as_deref(), Ok("1"));
}

#[tokio::test]
async fn shared_databases_are_fresh() {
    let (one, other) = (shared_database().await, shared_database().await);
    psql(&one, "create table mine (n int)").expect("a fresh database takes tables");
    psql(&other, "create table mine (n int)").expect("so does the other");
    assert_eq!(redis_cli(&shared_url(), &["ping"]), "PONG");
}

#[tokio::test]
async fn a_redis_with_an_append_only_file_keeps_its_data_through_a_kill_and_one_without_loses_it() {
    let (mut keeps, mut forgets) = (Redis::start().await, Redis::start_with(&[("appendonly", "no")]).await);
    for redis in [&mut keeps, &mut forgets] {
        assert_eq!(redis_cli(&redis.url(), &["set", "n", "7"]), "OK");
        redis.kill9();
        redis.start_again().await;
    }
    assert_eq!(redis_cli(&keeps.url(), &["get", "n"]), "7");
    assert_eq!(redis_cli(&forgets.url(), &["get", "n"]), "");
    keeps.pause();
    keeps.resume();
    assert_eq!(redis_cli(&keeps.url(), &["get", "n"]), "7");
}

#[tokio::test]
async fn a_node_is_killed_terminated_and_started_again_on_its_port() {
    let mut node = Node::start(pretend_node(), &[]).await;
    let url = node.base_url();
    assert!(node.log().contains("listening"));
    node.kill9();
    node.start_again().await;
    assert_eq!(node.base_url(), url);
    assert_eq!(node.wait_exit(Duration::ZERO).await, None);
    node.terminate();
    assert!(node.wait_exit(LONG).await.is_some());
}

#[tokio::test]
async fn a_node_that_refuses_to_start_says_why() {
    let Err(refusal) = Node::try_start(pretend_node(), &["--refuse"], &[]).await else { panic!("it started") };
    assert_eq!(refusal.status.and_then(|status| status.code()), Some(2));
    assert!(refusal.log.contains("refused as requested"), "{}", refusal.log);
}
