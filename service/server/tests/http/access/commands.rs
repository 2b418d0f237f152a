//! `latchgate app` and `latchgate api-key`, and addresses that other machines can reach.

use axum::http::StatusCode;
use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::postgres::shared_database;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::world::{ADMIN, Caller, guarded};
use crate::client::{get, latchgate, run};
use crate::connections::on_all_addresses;
use crate::in_transactions;

#[tokio::test]
async fn apps_and_api_keys_are_made_through_a_node() {
    let node = guarded(&[]).await;
    let url = node.base_url();
    let env = [("LATCHGATE_URL", url.as_str()), ("LATCHGATE_API_KEY", ADMIN)];
    // What the command of a line prints, in which _ stands for a space within a word.
    let said = async |line: &str| {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        let ended = run(&words.iter().map(String::as_str).collect::<Vec<_>>(), &env).await;
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    };
    said("app create a_b/c").await;
    assert!(said("app list").await.contains("a b/c\tenabled\t0 API keys"));
    let create = "api-key create --app a_b/c --scope read,locks --prefix jobs/ --expires 90d --name night_jobs";
    let caller = Caller::new(&node, &said(create).await);
    caller.granted("jobs%2F1").await;
    caller.acquire("other", json!({})).await.assert_problem(403, "forbidden");
    let list = said("api-key list --app a_b/c").await;
    assert_eq!(list.lines().count(), 1, "{list}");
    assert!(list.starts_with(&format!("{}\ta b/c\tread,locks\tjobs/\tactive\t2", caller.id())), "{list}");
    assert!(list.ends_with(&format!("\tnight jobs\t{}", &ADMIN[4..16])), "{list}");
    let made: Value = serde_json::from_str(&said("api-key create --app a_b/c --scope read --json").await).unwrap();
    let revoke = format!("api-key revoke {} --json", made["id"].as_str().unwrap());
    for (line, expected) in [
        ("app quota a_b/c --event-streams 7 --waiters none --requests-per-second 200", "200, event_streams 7"),
        ("app quota a_b/c --event-streams none", "a b/c\trequests_per_second 200"),
        ("app warn-after a_b/c 10m", "held for 10 min gets"),
        (&revoke, made["id"].as_str().unwrap()),
        ("app list", "1 API key\trequests_per_second 200\t10 min"),
        ("api-key list --app a_b/c --json", "\"prefixes\":[\"jobs/\"]"),
        ("app quota a_b/c --json", "\"requests_per_second\":200"),
        ("locks show jobs/1 --app a_b/c", "jobs/1: held"),
        ("locks show jobs/1", "jobs/1: free"),
        ("locks list --app *", "a b/c\tjobs/1\t"),
        ("app create empty", ""),
        ("app delete empty", "The app \"empty\" is deleted."),
    ] {
        let printed = said(line).await;
        assert!(printed.contains(expected), "{line}: {printed}");
    }
    said("app disable a_b/c").await;
    assert_eq!(caller.get("/v1/locks?prefix=jobs/").await.status, 401);
    said("app create a_b/c").await;
    // Nothing that it held is lost.
    assert_eq!(caller.get("/v1/locks?prefix=jobs/").await.body["locks"][0]["held"], true);
    said(&format!("api-key revoke {}", caller.id())).await;
    assert_eq!(caller.get("/v1/locks?prefix=jobs/").await.status, 401);
}

#[tokio::test]
async fn a_public_address_is_served_once_the_store_has_an_api_key() {
    let (dir, database) = (tempfile::tempdir().unwrap(), shared_database().await);
    let public = on_all_addresses(dir.path(), "");
    let Err(NotReady { log, .. }) = Node::try_start(&public, &["--locks", &database], &[]).await else {
        panic!("it serves without an API key")
    };
    assert!(log.contains("latchgate api-key generate") && log.contains("--insecure-open"), "{log}");
    let node = guarded(&["--locks", &database]).await;
    let caller = Caller::with(&node, json!({ "scopes": ["read", "admin"] })).await;
    // LATCHGATE_URL is for clients, and does not change what a node works on.
    let env = [("LATCHGATE_URL", "http://127.0.0.1:1")];
    let public = Node::start_with(public, &["--locks", &database], &env).await;
    assert_eq!(get(&public, "/v1/locks").await.status, 401);
    assert!(caller.at(&public).is_accepted().await);
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
    let absent = format!("sqlite:{}", dir.path().join("locks.db").display());
    for (locks, said) in [(&absent, "does not exist"), (&database, "latchgate migrate")] {
        for of in ["locks", "gate"] {
            let ended = latchgate(&["engines", "hold-off", of, "--beside-store", "--locks", locks]).await;
            let printed = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
            assert!(!ended.status.success() && printed.contains(said), "{of}: {printed}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files were created");
    let mut session = in_transactions::world::Caller::connect(&database).await;
    assert_eq!(session.number("select count(*) from pg_namespace where nspname = 'latchgate'").await, Ok(0));
}

#[tokio::test]
async fn a_server_cannot_control_the_terminal_and_no_password_is_printed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = listener.local_addr().unwrap();
    let detail = "\u{1b}[2Jfine\u{202e}\u{9b}31m";
    let problem =
        json!({ "type": "/errors/forbidden", "status": 403, "code": "forbidden", "detail": detail }).to_string();
    let head = [("content-type", "application/problem+json")];
    let answer = move || std::future::ready((StatusCode::FORBIDDEN, head, problem.clone()));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    for args in [&["app", "list"][..], &["locks", "list"], &["lock", "k", "--", "true"]] {
        for (login, said) in [("", "fine"), ("someone:s3cret@", "has a login")] {
            let ended = run(args, &[("LATCHGATE_URL", &format!("http://{login}{node}"))]).await;
            let printed = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
            assert!(printed.contains(said) && !ended.status.success(), "{args:?}: {printed}");
            assert!(!printed.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{args:?}: {printed:?}");
            assert!(!printed.contains("s3cret"), "{args:?}: {printed}");
        }
    }
}
