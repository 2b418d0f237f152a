//! The start of a node, and configurations that it refuses.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use latchgate_testkit::node::{Node, NotReady, command};
use latchgate_testkit::postgres::{Postgres, shared_database};
use latchgate_testkit::{eventually, free_port, until};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::{BIN, embedded, granted, latchgate, send, try_send};

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
async fn a_postgres_that_may_lose_commits_is_refused_unless_allowed() {
    for setting in ["fsync", "full_page_writes"] {
        let postgres = Postgres::start_with(&[(setting, "off")]).await;
        let database = postgres.create_database().await;
        let log = refusal(&["--locks", &database]).await;
        for flag in ["--allow-volatile", "--durable-elsewhere"] {
            assert!(log.contains(setting) && log.contains(flag), "{log}");
            let node = Node::start(BIN, &["--locks", &database, flag]).await;
            granted(&node, flag, json!({})).await;
        }
    }
}

#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let postgres = Postgres::start().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = encoding.to_lowercase();
        let create = format!("create database {name} encoding '{encoding}' locale 'C' template template0");
        postgres.query("postgres", &create).await;
        assert_is_refused_and_left_alone(&postgres, &postgres.url(&name), &[encoding, "UTF8"]).await;
    }
}

#[tokio::test]
async fn a_database_that_only_speaks_the_postgres_protocol_is_refused_by_name() {
    let postgres = Postgres::start().await;
    for (name, version) in [
        ("CockroachDB", "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15 21:28:29, go1.22.2)"),
        ("YugabyteDB", "PostgreSQL 15.2-YB-2.25.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 17.0.6"),
    ] {
        let url = postgres.create_database().await;
        replace_built_in(&postgres, &url, "version", "", "text", &format!("return '{version}';")).await;
        assert_is_refused_and_left_alone(&postgres, &url, &[name]).await;
    }
}

async fn assert_is_refused_and_left_alone(postgres: &Postgres, url: &str, reasons: &[&str]) {
    let migrated = latchgate(&["migrate", "--locks", url]).await;
    assert!(!migrated.status.success());
    let migrated = String::from_utf8_lossy(&migrated.stderr).into_owned();
    for log in [migrated, refusal(&["--locks", url]).await, refusal(&["--locks", url, "--no-migrate"]).await] {
        assert!(reasons.iter().all(|reason| log.contains(reason)), "{log}");
    }
    assert_eq!(postgres.query(database_of(url), "select to_regnamespace('latchgate') is null").await, "t");
}

fn database_of(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

/// Lets a function of Postgres itself do what the body says, in this database. The body is in PL/pgSQL.
async fn replace_built_in(postgres: &Postgres, url: &str, name: &str, parameters: &str, returns: &str, body: &str) {
    for statement in [
        // The server calls its own functions by their number, whatever is written in their place.
        format!("alter function pg_catalog.{name}({parameters}) rename to own_{name}"),
        format!(
            "create function pg_catalog.{name}({parameters}) returns {returns} language plpgsql
            as $$ begin {body} end $$"
        ),
    ] {
        assert_eq!(postgres.query(database_of(url), &statement).await, "");
    }
}

#[tokio::test]
async fn a_url_may_have_an_address_of_ipv6() {
    let postgres = Postgres::start_with(&[("listen_addresses", "127.0.0.1,::1")]).await;
    if postgres.log().contains("could not bind IPv6 address") {
        return; // This machine has no IPv6.
    }
    let url = postgres.create_database().await.replace("127.0.0.1", "[::1]");
    let node = Node::start(BIN, &["--locks", &url]).await;
    granted(&node, "k", json!({})).await;
    assert!(greeting(&node).contains(&format!(" on [::1]:{}", postgres.port())), "{}", greeting(&node));
}

#[tokio::test]
async fn a_text_that_only_resembles_a_store_url_is_refused_and_makes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for url in [
        "postgresql+psycopg2://u:s3cret@127.0.0.1:1/d",
        "POSTGRES://u:s3cret@127.0.0.1:1/d",
        "Postgres://u:s3cret@127.0.0.1:1/d",
        "jdbc:postgresql://127.0.0.1:1/d?password=s3cret",
        "postgres:u:s3cret@127.0.0.1:1/d",
        "postgres//u:s3cret@127.0.0.1:1/d",
        " postgres://u:s3cret@127.0.0.1:1/d",
        "\tpostgres://u:s3cret@127.0.0.1:1/d",
        "\"postgres://u:s3cret@127.0.0.1:1/d\"",
        "REDIS://:s3cret@127.0.0.1:1",
        "SQLITE:latchgate.db",
        "/var/lib/latchgate.db",
    ] {
        for (flag, variable) in [("--locks", "LATCHGATE_LOCKS"), ("--gate", "LATCHGATE_GATE")] {
            for (args, env) in [(&[flag, url][..], None), (&[], Some((variable, url)))] {
                let mut node = command(BIN);
                node.arg("serve").args(args).envs(env).current_dir(dir.path());
                let refused = node.output().unwrap();
                let said = String::from_utf8_lossy(&refused.stderr);
                assert!(!refused.status.success() && said.contains(&format!("{flag} must be sqlite:PATH")), "{said}");
                assert!(!said.contains("s3cret"), "{said}");
            }
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_schema_of_another_role_is_refused_before_anything_is_created_in_it() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let name = database.rsplit_once('/').unwrap().1;
    for (number, statement) in
        ["create role mallory login", "create role node login", "create schema latchgate authorization mallory"]
            .into_iter()
            .enumerate()
    {
        assert_eq!(postgres.query(if number < 2 { "postgres" } else { name }, statement).await, "");
    }
    for url in [database.clone(), database.replace("postgres@", "node@")] {
        let log = refusal(&["--locks", &url]).await;
        assert!(log.contains("belongs to the role mallory"), "{log}");
    }
    assert_eq!(
        postgres.query(name, "select count(*) from pg_class where relnamespace = 'latchgate'::regnamespace").await,
        "0"
    );
    postgres.query(name, "alter schema latchgate owner to node").await;
    let node = Node::start(BIN, &["--locks", &database.replace("postgres@", "node@")]).await;
    granted(&node, "k", json!({})).await;
}

#[tokio::test]
async fn a_role_that_does_not_own_the_schema_is_told_which_grants_it_lacks() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let name = database.rsplit_once('/').unwrap().1;
    postgres.query("postgres", "create role node login").await;
    let url = database.replace("postgres@", "node@");
    let log = refusal(&["--locks", &url]).await;
    assert!(log.contains("grant create on database") && log.contains("--no-migrate"), "{log}");
    assert!(latchgate(&["migrate", "--locks", &database]).await.status.success());
    for grant in [
        "grant usage on schema latchgate to node",
        "grant select, insert, update, delete, truncate on all tables in schema latchgate to node",
        "grant usage on all sequences in schema latchgate to node",
        "grant execute on all functions in schema latchgate to node",
    ] {
        let log = refusal(&["--locks", &url, "--no-migrate"]).await;
        assert!(log.contains(&format!("{grant};")), "{log}");
        postgres.query(name, grant).await;
    }
    // A switch to this Postgres empties its tables.
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", dir.path().join("old.db").display());
    assert!(latchgate(&["migrate", "--locks", &file]).await.status.success());
    let pair = ["--locks", &format!("old={file}"), "--locks", &format!("new={url}"), "--no-migrate"];
    let node = Node::start(BIN, &pair).await;
    granted(&node, "moved", json!({})).await;
    let switched = send(reqwest::Client::new().post(format!("{}/v1/admin/engines/locks", node.base_url()))).await;
    assert_eq!(switched.status, 200, "{}", switched.body);
    crate::client::acquire(&node, "moved", json!({})).await.assert_problem(423, "lock-held");
    granted(&node, "k", json!({})).await;
    crate::client::begun(&node, json!({ "operation": "charge", "contents": 1 })).await;
}

#[tokio::test]
async fn a_postgres_without_a_timeline_is_refused_unless_promotions_are_trusted() {
    let postgres = Postgres::start().await;
    // Aurora answers like this, by its setting of wal_level.
    for code in ["0A000", "55000"] {
        let url = postgres.create_database().await;
        let fails = format!("raise exception 'wal_level must be set to \"logical\"' using errcode = '{code}';");
        replace_built_in(&postgres, &url, "pg_current_wal_lsn", "", "pg_lsn", &fails).await;
        let log = refusal(&["--locks", &url]).await;
        assert!(log.contains("does not report its timeline") && log.contains("--trust-promotion"), "{log}");
        let address = format!("127.0.0.1:{}", postgres.port());
        let several = url.replace(&address, &format!("127.0.0.1:1,{address}"));
        for url in [&url, &several] {
            let node = Node::start(BIN, &["--locks", url, "--trust-promotion"]).await;
            granted(&node, url, json!({})).await;
            crate::client::begun(&node, json!({ "operation": "charge", "contents": url })).await;
        }
    }
}

#[tokio::test]
async fn an_sqlite_file_that_cannot_be_used_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let missing = format!("sqlite:{}", dir.path().join("no/such/directory/x.db").display());
    let log = refusal(&["--locks", &missing]).await;
    assert!(log.contains("no/such/directory: the directory does not exist") && log.contains("--locks"), "{log}");
    // No user can write here, not even root.
    let log = refusal(&["--locks", "sqlite:/sys/latchgate.db"]).await;
    assert!(log.contains("the directory /sys: this user may not write there"), "{log}");
    let nonsense = dir.path().join("nonsense.db");
    std::fs::write(&nonsense, "this is no database, though it is long enough to be read as one".repeat(20)).unwrap();
    let log = refusal(&["--locks", &format!("sqlite:{}", nonsense.display())]).await;
    assert!(log.contains("not an SQLite database"), "{log}");
}

#[tokio::test]
async fn without_migration_an_empty_database_is_refused() {
    let database = shared_database().await;
    let log = refusal(&["--locks", &database, "--no-migrate"]).await;
    assert!(log.contains("latchgate migrate"), "{log}");
    let done = latchgate(&["migrate", "--locks", &database]).await;
    assert!(done.status.success(), "{done:?}");
    Node::start(BIN, &["--locks", &database, "--no-migrate"]).await;
}

#[tokio::test]
async fn an_unreachable_database_is_an_error_that_keeps_the_password() {
    let log = refusal(&["--locks", "postgres://someone:s3cret@127.0.0.1:1/x"]).await;
    assert!(log.contains("cannot connect to Postgres") && !log.contains("s3cret"), "{log}");
}

#[tokio::test]
async fn settings_come_from_the_environment_too() {
    let database = shared_database().await;
    let env = [("LATCHGATE_TTL_MAX", "40s"), ("LATCHGATE_LOCKS", database.as_str())];
    let node = Node::start_with(BIN, &[], &env).await;
    let place = greeting(&node);
    assert!(place.contains("Postgres, database ") && place.contains(" on 127.0.0.1:"), "{place}");
    assert!(place.contains("(from LATCHGATE_LOCKS)"), "{place}");
    crate::client::acquire(&node, "k", json!({ "ttl_ms": 40_001 })).await.assert_problem(400, "invalid-request");
}

#[tokio::test]
async fn the_database_of_an_application_is_left_alone_and_a_node_says_so() {
    let node = Node::start_with(BIN, &[], &[("DATABASE_URL", "postgres://u:s3cret@127.0.0.1:1/d")]).await;
    let place = greeting(&node);
    assert!(place.contains("latchgate.db (the default; DATABASE_URL is not read"), "{place}");
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
    let health = async |listen: String, timeout: &str| {
        let args = ["health", "--timeout", timeout, "--listen", &listen];
        let ended = latchgate(&args).await;
        (ended.status.success(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let mut node = embedded().await;
    let port = node.port();
    assert_eq!(health(format!("0.0.0.0:{port}"), "20s").await, (true, String::new()));
    node.pause();
    let (is_healthy, said) = health(format!("127.0.0.1:{port}"), "1s").await;
    assert!(!is_healthy && said.contains("does not answer"), "{said}");
    node.resume();
}

/// The line of the greeting that names the store.
fn greeting(node: &Node) -> String {
    node.log().lines().find(|line| line.contains("live in")).expect("a greeting").to_owned()
}

#[tokio::test]
async fn the_greeting_names_the_store_and_the_setting_but_no_password() {
    let by_default = Node::start(BIN, &[]).await;
    let file = by_default.dir().join("latchgate.db");
    let expected = format!("Locks and operations live in SQLite, file {} (the default; ", file.display());
    assert!(greeting(&by_default).starts_with(&expected), "{}", greeting(&by_default));
    let database = shared_database().await.replace("postgres@", "postgres:s3cret@");
    let node = Node::start(BIN, &["--locks", &database]).await;
    assert!(greeting(&node).contains("(from --locks)"), "{}", greeting(&node));
    assert!(!node.log().contains("s3cret"), "{}", node.log());
    let node = Node::start_with(BIN, &[], &[("LATCHGATE_LOCKS", "sqlite:named.db")]).await;
    assert!(greeting(&node).contains("named.db (from LATCHGATE_LOCKS)"), "{}", greeting(&node));
}

#[tokio::test]
async fn a_taken_port_is_refused_before_a_file_is_created() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let refused = command(BIN).args(["serve", "--listen", &address]).current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains(&address) && said.contains("--listen"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_address_may_be_a_port_alone_or_have_a_name() {
    for listen in ["0", ":0", "localhost:0"] {
        let dir = tempfile::tempdir().unwrap();
        let mut node = tokio::process::Command::from(command(BIN));
        node.args(["serve", "--listen", listen]).current_dir(dir.path()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut node = node.spawn().unwrap();
        let mut greeting = BufReader::new(node.stdout.take().unwrap()).lines();
        let first = greeting.next_line().await.unwrap().expect("a greeting");
        assert!(first.contains("listens on http://127.0.0.1:"), "{listen}: {first}");
        node.kill().await.unwrap();
    }
    let refused = latchgate(&["serve", "--listen", "no.such.host.invalid:7070"]).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("--listen") && said.contains("no.such.host.invalid"), "{said}");
}

#[tokio::test]
async fn a_node_whose_log_cannot_be_written_serves_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let address = format!("127.0.0.1:{}", free_port());
    let mut node = tokio::process::Command::from(command(BIN));
    node.args(["serve", "--access-log", "--listen", &address]).current_dir(dir.path()).kill_on_drop(true);
    let mut node = node.stdout(full()).stderr(full()).spawn().unwrap();
    let acquire = || reqwest::Client::new().post(format!("http://{address}/v1/locks/k/acquire")).body("{}");
    let is_granted = || async { try_send(acquire()).await.is_ok_and(|answer| answer.status == 200) };
    assert!(eventually(Duration::from_secs(30), is_granted).await);
    for _ in 0..3 {
        send(acquire()).await.assert_problem(423, "lock-held");
    }
    assert!(node.try_wait().unwrap().is_none(), "the node has ended");
}

#[tokio::test]
async fn a_misspelt_variable_is_refused_with_the_nearest_name() {
    let refused = Node::try_start(BIN, &[], &[("LATCHGATE_LOCK", "sqlite:a.db")]).await;
    let Err(NotReady { log, .. }) = refused else { panic!("it was accepted") };
    assert!(log.contains("LATCHGATE_LOCK: did you mean LATCHGATE_LOCKS?"), "{log}");
    // Kubernetes sets this variable in every container if there is a service of this name.
    Node::start_with(BIN, &[], &[("LATCHGATE_PORT", "tcp://10.0.0.1:7070"), ("LATCHGATE_SERVICE_HOST", "10.0.0.1")])
        .await;
}

#[tokio::test]
async fn a_file_of_another_program_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("create table songs (title text)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let log = refusal(&["--locks", &format!("sqlite:{}", path.display())]).await;
    assert!(log.contains("belongs to another program") && log.contains("songs"), "{log}");
    assert!(std::fs::read(&path).unwrap() == before, "the file was changed");
}

#[tokio::test]
async fn a_schema_of_a_newer_version_is_refused_in_a_sentence() {
    let expected = "migration 9999, which this version of Latchgate does not know";
    let mut node = embedded().await;
    node.terminate();
    assert!(node.wait_exit(std::time::Duration::from_secs(20)).await.is_some());
    let path = node.dir().join("latchgate.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("pragma user_version = 9999").unwrap();
    let log = refusal(&["--locks", &format!("sqlite:{}", path.display())]).await;
    assert!(log.contains(expected), "{log}");

    let database = shared_database().await;
    drop(Node::start(BIN, &["--locks", &database]).await);
    let mut connection = PgConnection::connect(&database).await.unwrap();
    let schema: String =
        sqlx::query_scalar("select schemaname::text from pg_tables where tablename = '_sqlx_migrations'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    let insert = format!(
        "insert into {schema}._sqlx_migrations (version, description, success, checksum, execution_time)
        values (9999, 'later', true, '', 0)"
    );
    sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
    let log = refusal(&["--locks", &database]).await;
    assert!(log.contains(expected), "{log}");
}

#[tokio::test]
async fn errors_of_postgres_come_without_lines_of_its_source() {
    let (server, _) =
        shared_database().await.rsplit_once('/').map(|(server, name)| (server.to_owned(), name.to_owned())).unwrap();
    let log = refusal(&["--locks", &format!("{server}/no_such_database")]).await;
    assert!(log.contains("no_such_database") && log.contains("does not exist") && !log.contains("at line"), "{log}");
    assert!(log.contains("(from --locks)"), "{log}");
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
        let refused = Node::try_start(BIN, &[], &[(variable, "")]).await;
        assert!(refused.is_err(), "{variable}= was accepted");
    }
}
