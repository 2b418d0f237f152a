//! The start of a node, and configurations that it refuses.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use latchgate_testkit::node::{Node, NotReady, command};
use latchgate_testkit::postgres::{Postgres, shared_database};
use latchgate_testkit::{free_port, until};
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::client::{BIN, acquire, begun, embedded, granted, http, latchgate, request, send, try_send};

/// The log of a node that does not start.
pub async fn refusal(args: &[&str]) -> String {
    refusal_with(args, &[]).await
}

pub async fn refusal_with(args: &[&str], env: &[(&str, &str)]) -> String {
    match Node::try_start(BIN, args, env).await {
        Ok(_) => panic!("{args:?} {env:?} was accepted"),
        Err(NotReady { status, log }) => {
            assert!(status.is_some_and(|status| !status.success()), "{args:?} hangs:\n{log}");
            log
        }
    }
}

/// Fails unless a node that is started so says all of this, and nothing that is secret.
pub async fn refused(args: &[&str], reasons: &[&str]) -> String {
    let log = refusal(args).await;
    assert!(reasons.iter().all(|reason| log.contains(reason)) && !log.contains("s3cret"), "{reasons:?}: {log}");
    log
}

#[tokio::test]
async fn a_postgres_that_may_lose_commits_is_refused_unless_allowed() {
    for setting in ["fsync", "full_page_writes"] {
        let postgres = Postgres::start_with(&[(setting, "off")]).await;
        let database = postgres.create_database().await;
        refused(&["--locks", &database], &[setting, "--allow-volatile", "--durable-elsewhere"]).await;
        for flag in ["--allow-volatile", "--durable-elsewhere"] {
            let node = Node::start(BIN, &["--locks", &database, flag]).await;
            granted(&node, flag, json!({})).await;
        }
    }
}

#[tokio::test]
async fn a_database_that_is_no_postgres_in_utf_8_is_refused_and_left_alone() {
    let postgres = Postgres::start().await;
    for (name, encoding) in [("SQL_ASCII", "SQL_ASCII"), ("CockroachDB", "UTF8")] {
        let database = name.to_lowercase();
        let create = format!("create database {database} encoding '{encoding}' locale 'C' template template0");
        postgres.query("postgres", &create).await;
        let url = postgres.url(&database);
        if name == "CockroachDB" {
            replace_built_in(&postgres, &url, "version", "text", "return 'CockroachDB CCL v24.1.0';").await;
        }
        let migrated = latchgate(&["migrate", "--locks", &url]).await;
        let migrated = String::from_utf8_lossy(&migrated.stderr).into_owned();
        let started = ["--locks", &url, "--no-migrate"];
        for log in [migrated, refusal(&started[..2]).await, refusal(&started).await] {
            assert!(log.contains(name) && (encoding == "UTF8" || log.contains("UTF8")), "{log}");
        }
        assert_eq!(postgres.query(&database, "select to_regnamespace('latchgate') is null").await, "t");
    }
}

fn database_of(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

/// Lets a function of Postgres itself do what the body says, in this database. The body is in PL/pgSQL.
async fn replace_built_in(postgres: &Postgres, url: &str, name: &str, returns: &str, body: &str) {
    // The server calls its own functions by their number, whatever is written in their place.
    let rename = format!("alter function pg_catalog.{name}() rename to own_{name}");
    let create =
        format!("create function pg_catalog.{name}() returns {returns} language plpgsql as $$ begin {body} end $$");
    for statement in [rename, create] {
        assert_eq!(postgres.query(database_of(url), &statement).await, "");
    }
}

#[tokio::test]
async fn a_text_that_only_resembles_a_store_url_is_refused_and_makes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for url in [
        "postgresql+psycopg2://u:s3cret@127.0.0.1:1/d",
        "Postgres://u:s3cret@127.0.0.1:1/d",
        "jdbc:postgresql://127.0.0.1:1/d?password=s3cret",
        "postgres:u:s3cret@127.0.0.1:1/d",
        "\tpostgres://u:s3cret@127.0.0.1:1/d",
        "\"postgres://u:s3cret@127.0.0.1:1/d\"",
        "REDIS://:s3cret@127.0.0.1:1",
        "SQLITE:latchgate.db",
        "/var/lib/latchgate.db",
    ] {
        for (flag, args, env) in
            [("--locks", &["--locks", url][..], None), ("--gate", &[], Some(("LATCHGATE_GATE", url)))]
        {
            let refused = command(BIN).arg("serve").args(args).envs(env).current_dir(dir.path()).output().unwrap();
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && said.contains(&format!("{flag} must be sqlite:PATH")), "{said}");
            assert!(!said.contains("s3cret"), "{said}");
        }
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = command(BIN).args(["serve", "--listen", &address]).current_dir(dir.path()).output().unwrap();
    assert!(!refused.status.success(), "the port is taken");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_schema_of_another_role_is_refused_before_anything_is_created_in_it() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let name = database_of(&database);
    for statement in
        ["create role mallory login", "create role node login", "create schema latchgate authorization mallory"]
    {
        assert_eq!(postgres.query(name, statement).await, "");
    }
    let as_node = database.replace("postgres@", "node@");
    for url in [&database, &as_node] {
        refused(&["--locks", url], &["belongs to the role mallory"]).await;
    }
    let tables = "select count(*) from pg_class where relnamespace = 'latchgate'::regnamespace";
    assert_eq!(postgres.query(name, tables).await, "0");
    postgres.query(name, "alter schema latchgate owner to node").await;
    let node = Node::start(BIN, &["--locks", &as_node]).await;
    granted(&node, "k", json!({})).await;
}

#[tokio::test]
async fn a_role_that_does_not_own_the_schema_is_told_which_grants_it_lacks() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    postgres.query("postgres", "create role node login").await;
    let url = database.replace("postgres@", "node@");
    refused(&["--locks", &url], &["grant create on database", "--no-migrate"]).await;
    assert!(latchgate(&["migrate", "--locks", &database]).await.status.success());
    for grant in [
        "grant usage on schema latchgate to node",
        "grant select, insert, update, delete, truncate on all tables in schema latchgate to node",
        "grant usage on all sequences in schema latchgate to node",
        "grant execute on all functions in schema latchgate to node",
    ] {
        refused(&["--locks", &url, "--no-migrate"], &[&format!("{grant};")]).await;
        postgres.query(database_of(&database), grant).await;
    }
    // A switch to this Postgres empties its tables.
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", dir.path().join("old.db").display());
    assert!(latchgate(&["migrate", "--locks", &file]).await.status.success());
    let pair = ["--locks", &format!("old={file}"), "--locks", &format!("new={url}"), "--no-migrate"];
    let node = Node::start(BIN, &pair).await;
    granted(&node, "moved", json!({})).await;
    let switched = request(&node, Method::POST, "/v1/admin/engines/locks", json!({})).await;
    assert_eq!(switched.status, 200, "{}", switched.body);
    acquire(&node, "moved", json!({})).await.assert_problem(423, "lock-held");
    begun(&node, json!({ "operation": "charge", "contents": 1 })).await;
}

#[tokio::test]
async fn a_postgres_without_a_timeline_is_refused_unless_promotions_are_trusted() {
    let postgres = Postgres::start().await;
    // Aurora answers like this, by its setting of wal_level.
    for code in ["0A000", "55000"] {
        let url = postgres.create_database().await;
        let fails = format!("raise exception 'wal_level must be set to \"logical\"' using errcode = '{code}';");
        replace_built_in(&postgres, &url, "pg_current_wal_lsn", "pg_lsn", &fails).await;
        refused(&["--locks", &url], &["does not report its timeline", "--trust-promotion"]).await;
        let address = format!("127.0.0.1:{}", postgres.port());
        let several = url.replace(&address, &format!("127.0.0.1:1,{address}"));
        for url in [&url, &several] {
            let node = Node::start(BIN, &["--locks", url, "--trust-promotion"]).await;
            granted(&node, url, json!({})).await;
            begun(&node, json!({ "operation": "charge", "contents": url })).await;
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_used_is_refused_with_the_reason_but_no_password() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
    let of_another = dir.path().join("other.db");
    rusqlite::Connection::open(&of_another).unwrap().execute_batch("create table songs (title text)").unwrap();
    let before = std::fs::read(&of_another).unwrap();
    let no_database = shared_database().await + "_and_no_other";
    for (url, reasons) in [
        (&*file("no/such/directory/x.db"), &["no/such/directory: the directory does not exist", "--locks"][..]),
        // No user can write here, not even root.
        ("sqlite:/sys/latchgate.db", &["the directory /sys: this user may not write there"]),
        (&file("other.db"), &["belongs to another program", "songs"]),
        ("postgres://someone:s3cret@127.0.0.1:1/x", &["cannot connect to Postgres"]),
        (&no_database, &["_and_no_other", "does not exist", "(from --locks)"]),
        ("redis://:s3cret@127.0.0.1:1", &["cannot connect to Redis"]),
    ] {
        let log = refused(&["--log", "debug", "--locks", url], reasons).await;
        assert!(!log.contains("at line"), "errors of Postgres come without lines of its source: {log}");
    }
    assert!(std::fs::read(&of_another).unwrap() == before, "the file was changed");
}

#[tokio::test]
async fn a_hang_up_does_not_end_a_node_without_tls() {
    let mut node = embedded().await;
    node.hang_up();
    until("the signal is logged", || std::future::ready(node.log().contains("SIGHUP"))).await;
    granted(&node, "k", json!({})).await;
    node.terminate();
    assert!(node.wait_exit(Duration::from_secs(30)).await.is_some_and(|status| status.success()));
}

#[tokio::test]
async fn health_succeeds_only_while_the_node_answers() {
    let mut node = embedded().await;
    let listen = format!("0.0.0.0:{}", node.port());
    assert!(latchgate(&["health", "--listen", &listen]).await.status.success());
    node.pause();
    let failed = latchgate(&["health", "--timeout", "1s", "--listen", &listen]).await;
    node.resume();
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("does not answer"), "{said}");
}

#[tokio::test]
async fn the_greeting_names_the_store_and_the_setting_but_no_password() {
    let database = shared_database().await.replace("postgres@", "postgres:s3cret@");
    for (args, env, said) in [
        (&["--locks", &database][..], &[][..], "(from --locks)"),
        (&[], &[], "Locks and operations live in SQLite, file /"),
        (&[], &[("LATCHGATE_LOCKS", "sqlite:named.db")], "named.db (from LATCHGATE_LOCKS)"),
        // The database of an application is left alone.
        (
            &[],
            &[("DATABASE_URL", "postgres://u:s3cret@127.0.0.1:1/d")],
            "latchgate.db (the default; DATABASE_URL is not read",
        ),
    ] {
        let node = Node::start_with(BIN, args, env).await;
        assert!(node.log().contains(said) && !node.log().contains("s3cret"), "{}", node.log());
    }
}

#[tokio::test]
async fn flags_that_contradict_each_other_and_unknown_filters_are_refused() {
    let two = ["--locks", "a=sqlite:a.db", "--locks", "b=sqlite:b.db"];
    for (args, why) in [
        (&["--locks", "redis://127.0.0.1:1", "--locks", "redis://127.0.0.1:2"][..], "name them"),
        (&[&two[..], &["--locks", "c=sqlite:c.db"]].concat(), "a pair"),
        (&[&two[..], &["--without", "c"]].concat(), "no engine of --locks"),
        (&[&two[..], &["--gate", "sqlite:b.db"]].concat(), "--gate names a store of --locks"),
        (&["--log", "latchgate=debug=info"], "--log must be a level"),
        (&["--log", "latchgate[lock]=debug"], "--log must be a level"),
    ] {
        refused(args, &[why]).await;
    }
}

#[tokio::test]
async fn a_node_whose_log_cannot_be_written_serves_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let address = format!("127.0.0.1:{}", free_port());
    let mut node = tokio::process::Command::from(command(BIN));
    node.args(["serve", "--access-log", "--listen", &address]).current_dir(dir.path()).kill_on_drop(true);
    let mut node = node.stdout(full()).stderr(full()).spawn().unwrap();
    let acquire = || http().post(format!("http://{address}/v1/locks/k/acquire")).body("{}");
    until("the lock is granted", || async { try_send(acquire()).await.is_ok_and(|answer| answer.status == 200) }).await;
    for _ in 0..3 {
        send(acquire()).await.assert_problem(423, "lock-held");
    }
    assert!(node.try_wait().unwrap().is_none(), "the node has ended");
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused_in_a_sentence() {
    let expected = "migration 9999, which this version of Latchgate does not know";
    let mut node = embedded().await;
    node.terminate();
    assert!(node.wait_exit(Duration::from_secs(20)).await.is_some());
    let path = node.dir().join("latchgate.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("pragma user_version = 9999").unwrap();
    refused(&["--locks", &format!("sqlite:{}", path.display())], &[expected]).await;

    let database = shared_database().await;
    drop(Node::start(BIN, &["--locks", &database]).await);
    let mut connection = PgConnection::connect(&database).await.unwrap();
    let tables = "select schemaname::text from pg_tables where tablename = '_sqlx_migrations'";
    let schema: String = sqlx::query_scalar(tables).fetch_one(&mut connection).await.unwrap();
    let insert = format!(
        "insert into {schema}._sqlx_migrations (version, description, success, checksum, execution_time)
        values (9999, 'later', true, '', 0)"
    );
    sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
    refused(&["--locks", &database], &[expected]).await;
}

/// As `${NAME:-}` in a compose file makes them.
#[tokio::test]
async fn an_empty_variable_is_absent_unless_stores_or_protection_depend_on_it() {
    let help = latchgate(&["serve", "--help"]).await;
    let help = String::from_utf8(help.stdout).unwrap();
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--")?.split([' ', '\n']).next());
    let variables = flags.map(|flag| format!("LATCHGATE_{}", flag.to_uppercase().replace('-', "_")));
    let needed = ["LOCKS", "LOCKS_DIRECT", "GATE", "REDIS_PREFIX", "SECRET", "TLS_CERT", "TLS_KEY"];
    let (needed, others): (Vec<String>, Vec<String>) =
        variables.partition(|variable| needed.iter().any(|name| *variable == format!("LATCHGATE_{name}")));
    assert!(needed.len() == 7 && others.len() > 30, "{needed:?} {others:?}");
    let empty: Vec<(&str, &str)> = others.iter().map(|variable| (variable.as_str(), "")).collect();
    let node = Node::start_with(BIN, &[], &empty).await;
    granted(&node, "k", json!({})).await;
    for variable in &needed {
        refusal_with(&[], &[(variable, "")]).await;
    }
}
