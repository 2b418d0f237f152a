//! `latchgate app` and `latchgate api-key`, and addresses that other machines can reach.

use std::process::Output;
use std::time::Duration;

use latchgate_testkit::node::{Node, command};
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::{free_port, until};
use reqwest::Client;
use sqlx::Connection as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::world::{ADMIN, Caller, OPERATOR, guarded};
use crate::client::{BIN, latchgate};

async fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = tokio::process::Command::from(command(BIN));
    let output = command.args(args).envs(env.iter().copied()).kill_on_drop(true).output();
    tokio::time::timeout(Duration::from_secs(60), output).await.expect("the command hangs").unwrap()
}

/// What a command prints; fails unless it succeeds.
async fn printed(args: &[&str], env: &[(&str, &str)]) -> String {
    let Output { status, stdout, stderr } = run(args, env).await;
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn apps_and_api_keys_are_made_through_a_node() {
    let node = guarded(&[]).await;
    let url = node.base_url();
    let env = [("LATCHGATE_URL", url.as_str()), ("LATCHGATE_API_KEY", ADMIN)];
    printed(&["app", "create", "a b/c"], &env).await;
    assert!(printed(&["app", "list"], &env).await.contains("a b/c\tenabled\t0 API keys"));
    let create = [
        "api-key",
        "create",
        "--app",
        "a b/c",
        "--scope",
        "read,locks",
        "--prefix",
        "jobs/",
        "--expires",
        "90d",
        "--name",
        "night jobs",
    ];
    let caller = Caller::new(&node, &printed(&create, &env).await);
    caller.granted("jobs%2F1").await;
    caller.acquire("other", serde_json::json!({})).await.assert_problem(403, "forbidden");
    let list = printed(&["api-key", "list", "--app", "a b/c"], &env).await;
    assert_eq!(list.lines().count(), 1, "{list}");
    assert!(list.starts_with(&format!("{}\ta b/c\tread,locks\tjobs/\tactive\t2", caller.id())), "{list}");
    assert!(list.ends_with(&format!("\tnight jobs\t{}", &ADMIN[4..16])), "{list}");
    let quota = ["app", "quota", "a b/c", "--event-streams", "7", "--waiters", "none", "--requests-per-second", "200"];
    assert_eq!(printed(&quota, &env).await, "a b/c\trequests_per_second 200, event_streams 7");
    assert_eq!(
        printed(&["app", "quota", "a b/c", "--event-streams", "none"], &env).await,
        "a b/c\trequests_per_second 200"
    );
    assert!(printed(&["app", "warn-after", "a b/c", "10m"], &env).await.contains("held for 10 min gets"));
    assert!(printed(&["app", "list"], &env).await.contains("1 API key\trequests_per_second 200\t10 min"));
    let printed_json =
        async |args: &[&str]| -> serde_json::Value { serde_json::from_str(&printed(args, &env).await).unwrap() };
    assert_eq!(printed_json(&["api-key", "list", "--app", "a b/c", "--json"]).await["prefixes"][0], "jobs/");
    assert_eq!(printed_json(&["app", "quota", "a b/c", "--json"]).await["quotas"]["requests_per_second"], 200);
    let made = printed_json(&["api-key", "create", "--app", "a b/c", "--scope", "read", "--json"]).await;
    assert_eq!(printed_json(&["api-key", "revoke", made["id"].as_str().unwrap(), "--json"]).await["id"], made["id"]);
    printed(&["app", "disable", "a b/c"], &env).await;
    assert_eq!(caller.get("/v1/locks?prefix=jobs/").await.status, 401);
    printed(&["app", "create", "a b/c"], &env).await;
    printed(&["api-key", "revoke", caller.id()], &env).await;
    assert_eq!(caller.get("/v1/locks?prefix=jobs/").await.status, 401);
    printed(&["app", "create", "empty"], &env).await;
    assert!(printed(&["locks", "show", "jobs/1", "--app", "a b/c"], &env).await.starts_with("jobs/1: held"));
    assert!(printed(&["locks", "show", "jobs/1"], &env).await.starts_with("jobs/1: free"));
    assert!(printed(&["locks", "list", "--app", "*"], &env).await.starts_with("a b/c\tjobs/1\t"));
    assert_eq!(printed(&["app", "delete", "empty"], &env).await, "The app \"empty\" is deleted.");

    let refused = run(&["app", "list"], &[("LATCHGATE_URL", &url), ("LATCHGATE_API_KEY", &caller.key)]).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("unauthorized, 401"), "{said}");
    let refused = run(&["api-key", "revoke", "ffffffffffff"], &env).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown-api-key"));
    let refused = run(&["app", "list", "--url", "http://127.0.0.1:1"], &[]).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot call the node at http://127.0.0.1:1"));
}

#[tokio::test]
async fn a_public_address_is_served_once_the_store_has_an_api_key() {
    let database = shared_database().await;
    let env = [("LATCHGATE_LOCKS", database.as_str())];
    let listen = format!("0.0.0.0:{}", free_port());
    let refused = run(&["serve", "--listen", &listen], &env).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("latchgate api-key generate"), "{said}");
    assert!(said.contains("--insecure-open"), "{said}");

    let node = Node::start_with(BIN, &["--locks", &database], OPERATOR).await;
    let url = node.base_url();
    let of_node = [("LATCHGATE_URL", url.as_str()), ("LATCHGATE_API_KEY", ADMIN)];
    printed(&["api-key", "create", "--scope", "admin"], &of_node).await;

    // LATCHGATE_URL is for clients, and does not change what a node works on.
    let env = [env[0], ("LATCHGATE_URL", "http://127.0.0.1:1")];
    let mut public = tokio::process::Command::from(command(BIN));
    let mut public = public.args(["serve", "--listen", &listen]).envs(env).kill_on_drop(true).spawn().unwrap();
    let (_, port) = listen.rsplit_once(':').unwrap();
    let get = |path: &str| Client::new().get(format!("http://127.0.0.1:{port}{path}")).send();
    let is_up = || async { get("/readyz").await.is_ok_and(|answer| answer.status() == 200) };
    until("the public node serves", is_up).await;
    assert_eq!(get("/v1/locks").await.unwrap().status(), 401);
    public.kill().await.unwrap();
}

#[tokio::test]
async fn a_command_beside_the_store_creates_and_migrates_nothing() {
    // It also refuses the SQLite file of a running node.
    let node = guarded(&[]).await;
    let path = format!("sqlite:{}", node.dir().join("latchgate.db").display());
    let refused = latchgate(&["engines", "hold-off", "--beside-store", "--locks", &path]).await;
    assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));

    let dir = tempfile::tempdir().unwrap();
    let database = shared_database().await;
    for (locks, said) in [("sqlite:locks.db", "does not exist"), (&*database, "latchgate migrate")] {
        for of in ["locks", "gate"] {
            let mut command = tokio::process::Command::from(command(BIN));
            command.args(["engines", "hold-off", of, "--beside-store", "--locks", locks]);
            let ended = command.current_dir(dir.path()).output().await.unwrap();
            let printed = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
            assert!(!ended.status.success() && printed.contains(said), "{of}: {printed}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files were created");
    let mut connection = sqlx::PgConnection::connect(&database).await.unwrap();
    let schemas: i64 = sqlx::query_scalar("select count(*) from pg_namespace where nspname = 'latchgate'")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(schemas, 0);
}

#[tokio::test]
async fn a_generated_api_key_configures_a_node_and_a_wrong_one_is_never_printed() {
    // With a wrong key, the node does not start.
    let key = printed(&["api-key", "generate"], &[]).await;
    let node = Node::start_with(BIN, &[], &[("LATCHGATE_ADMIN_API_KEY", &key)]).await;
    assert!(Caller::new(&node, &key).is_accepted().await);
    let cut = &key[..80];
    let refused = run(&["serve", "--listen", "127.0.0.1:0"], &[("LATCHGATE_ADMIN_API_KEY", cut)]).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("LATCHGATE_ADMIN_API_KEY") && !said.contains(cut), "{said}");
}

/// A server that answers every request with this problem.
async fn hostile(detail: &str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://someone:s3cret@{}", listener.local_addr().unwrap());
    let body = serde_json::json!({ "status": 403, "code": "forbidden", "detail": detail }).to_string();
    let head =
        "HTTP/1.1 403 Forbidden\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length:";
    let answer = format!("{head} {}\r\n\r\n{body}", body.len());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 8_192]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test]
async fn a_server_cannot_control_the_terminal_and_no_password_is_printed() {
    let url = hostile("\u{1b}[2Jfine\u{202e}\u{9b}31m").await;
    for args in [&["app", "list"][..], &["locks", "list"], &["lock", "k", "--", "true"]] {
        let ended = run(args, &[("LATCHGATE_URL", &url)]).await;
        let printed = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        assert!(printed.contains("fine") && !ended.status.success(), "{args:?}: {printed}");
        assert!(!printed.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{args:?}: {printed:?}");
        assert!(!printed.contains("s3cret"), "{args:?}: {printed}");
    }
}
