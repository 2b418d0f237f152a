//! Posts of the gate.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::world::{Caller, code_of};
use crate::client::{Answer, beat, begun, forget, get, http, inspect_operation, on_postgres, pre, report, send};

fn charge(contents: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": contents.into(), "on_expiry": "retry" })
}

fn posting(go: &Answer, more: &str) -> String {
    format!("select latchgate.post('{}', '{}'{more})", go.text("id"), go.text("stamp"))
}

async fn post(caller: &mut Caller, go: &Answer, more: &str) -> Result<i64, String> {
    caller.number(&posting(go, more)).await
}

/// A database with two nodes on it, and a caller.
async fn start() -> (String, [Node; 2], Caller) {
    let database = shared_database().await;
    let nodes = [on_postgres(&database).await, on_postgres(&database).await];
    let caller = Caller::connect(&database).await;
    (database, nodes, caller)
}

#[tokio::test]
async fn work_and_post_are_committed_together() {
    let (_, [node, other], mut caller) = start().await;
    caller.run("create table charges (id text)").await;
    let go = begun(&node, charge(1)).await;
    let id = go.text("id");
    for end in ["rollback", "commit"] {
        caller.run("begin; insert into charges values ('1')").await;
        assert_eq!(post(&mut caller, &go, ", '{\"receipt\":7}'").await, Ok(1));
        // A node that reads the record before it writes sees the attempt that runs.
        let refused = pre(&other, charge(1)).await;
        assert!(["overloaded", "operation-in-progress"].contains(&&*refused.text("code")), "{}", refused.body);
        caller.run(end).await;
        if end == "rollback" {
            pre(&other, charge(1)).await.assert_problem(409, "operation-in-progress");
        }
    }
    assert_eq!(caller.number("select count(*) from charges").await, Ok(1));
    assert_eq!(caller.number("select count(*) from latchgate.running").await, Ok(0));
    // The node that claimed it remembers the claim.
    report(&node, &go, json!({ "outcome": "failure" })).await.assert_problem(409, "outcome-conflict");
    for node in [&node, &other] {
        let duplicate = pre(node, charge(1)).await;
        duplicate.assert_problem(409, "operation-duplicate");
        assert_eq!(duplicate.body["result"], json!({ "receipt": 7 }));
        let shown = inspect_operation(node, &id).await.body;
        assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({ "receipt": 7 })));
        let listed = get(node, "/v1/operations?state=succeeded").await.body;
        assert_eq!(listed["operations"].as_array().unwrap().len(), 1, "{listed}");
    }
    assert_eq!(report(&other, &go, json!({ "outcome": "success" })).await.body["replayed"], true);
    assert_ne!(beat(&node, &go, json!({})).await.status, 200, "it does not run any more");
    assert_eq!(forget(&node, &id, "?force=true").await.status, 200);
    begun(&other, charge(1)).await;
}

/// The suite read_by_sql compares each refusal by the record with the rule of core.
#[tokio::test]
async fn a_post_that_names_no_attempt_or_breaks_a_bound_is_refused_by_its_code() {
    let (_, [node, _], mut caller) = start().await;
    let by_http = begun(&node, charge("ended")).await;
    report(&node, &by_http, json!({ "outcome": "unknown" })).await;
    assert_eq!(post(&mut caller, &by_http, ", outcome => 'unknown'").await.unwrap_err(), "LG006 unknown");
    let go = begun(&node, charge("x")).await;
    let (id, stamp, zeros) = (go.text("id"), go.text("stamp"), "0".repeat(32));
    for (call, code) in [
        (format!("'{id}', 'o.unguarded'"), "LG005"),
        (format!("'{id}', null"), "LG005"),
        (format!("'{zeros}', '{stamp}'"), "LG004"),
        (format!("null, '{stamp}'"), "LG004"),
        (format!("'{id}', '{stamp}', app => 'other'"), "LG004"),
        (format!("'{id}', '{stamp}', null, 'done'"), "LG009"),
        (format!("'{id}', '{stamp}', retention_ms => 0"), "LG009"),
        (format!("'{id}', '{stamp}', to_json(repeat('x', 70000))::text"), "LG009"),
        (format!("'{id}', '{stamp}', '{{'"), "22P02"),
    ] {
        let refused = caller.number(&format!("select latchgate.post({call})")).await;
        assert_eq!(code_of(refused), code, "{call}");
    }
}

/// Sends a pre that will wait.
fn waiting(node: &Node, contents: &str) -> JoinHandle<Answer> {
    let (url, mut body) = (format!("{}/v1/operations/pre", node.base_url()), charge(contents));
    body["wait_ms"] = json!(50_000);
    tokio::spawn(crate::client::post(url, body.to_string()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_in_a_prepared_transaction_succeeds_while_a_pre_waits() {
    let postgres = Postgres::start_with(&[("max_prepared_transactions", "2")]).await;
    let database = postgres.create_database().await;
    let node = on_postgres(&database).await;
    let mut caller = Caller::connect(&database).await;
    let go = begun(&node, charge("x")).await;
    let waiting = waiting(&node, "x");
    let awaited = "select count(*) from latchgate.operations where state::jsonb ? 'awaited_until'";
    while caller.number(awaited).await == Ok(0) {}
    caller.run(&format!("begin; {}; prepare transaction 'work'", posting(&go, ", '[1]'"))).await;
    caller.run("commit prepared 'work'").await;
    let answer = waiting.await.unwrap();
    answer.assert_problem(409, "operation-duplicate");
    assert_eq!(answer.body["result"], json!([1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_post_is_open_no_attempt_takes_over_and_other_calls_do_not_wait() {
    let (database, [node, other], mut caller) = start().await;
    let mut observer = Caller::connect(&database).await;
    let mut short = charge("passing");
    short["ttl_ms"] = json!(4_000);
    let (go, passing) = (begun(&node, charge("open")).await, begun(&node, short).await);
    caller.run("begin").await;
    post(&mut caller, &go, "").await.unwrap();
    post(&mut caller, &passing, "").await.unwrap();
    let waiters = [waiting(&node, "open"), waiting(&other, "open")];
    let url = format!("{}/v1/operations/{}?wait_ms=50000", other.base_url(), go.text("id"));
    let observing = tokio::spawn(send(http().get(url)));
    // They would mark the record.
    observer.until_blocked().await;
    while observer.number("select count(*) from latchgate.running where until < now()").await == Ok(0) {}
    for round in 0..20 {
        begun(&node, charge(format!("other-{round}"))).await;
    }
    assert_ne!(pre(&other, charge("passing")).await.status, 201);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()) && !observing.is_finished());
    caller.run("commit").await;
    for waiter in waiters {
        waiter.await.unwrap().assert_problem(409, "operation-duplicate");
    }
    assert_eq!(observing.await.unwrap().body["state"], "succeeded");
    pre(&other, charge("passing")).await.assert_problem(409, "operation-duplicate");
}
