//! Posts of the gate.

use std::time::{Duration, Instant};

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::{Postgres, shared_database};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::world::{Caller, code_of};
use crate::client::{Answer, beat, begun, forget, get, inspect_operation, on_postgres, pre, report};

fn charge(contents: impl Into<Value>) -> Value {
    json!({ "operation": "charge", "contents": contents.into(), "on_expiry": "retry" })
}

/// Of which the lease passes at once.
fn short(contents: &str) -> Value {
    let mut body = charge(contents);
    body["ttl_ms"] = json!(1_000);
    body
}

fn posting(go: &Answer, more: &str) -> String {
    format!("select latchgate.post('{}', '{}'{more})", go.text("id"), go.text("stamp"))
}

async fn post(caller: &mut Caller, go: &Answer, more: &str) -> Result<i64, String> {
    caller.number(&posting(go, more)).await
}

struct World {
    node: Node,
    other: Node,
    caller: Caller,
    database: String,
}

impl World {
    async fn start() -> Self {
        let database = shared_database().await;
        let (node, other) = (on_postgres(&database).await, on_postgres(&database).await);
        let mut caller = Caller::connect(&database).await;
        caller.run("create table charges (id text)").await;
        Self { node, other, caller, database }
    }
}

#[tokio::test]
async fn work_and_post_are_committed_together() {
    let World { node, other, mut caller, .. } = World::start().await;
    let go = begun(&node, charge(1)).await;
    let id = go.text("id");
    for end in ["rollback", "commit"] {
        caller.run("begin; insert into charges values ('1')").await;
        assert_eq!(post(&mut caller, &go, ", '{\"receipt\":7}'").await, Ok(1));
        pre(&other, charge(1)).await.assert_problem(503, "overloaded");
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
        assert_eq!(listed(node, "succeeded").await, [id.as_str()]);
        assert_eq!(listed(node, "started").await, [""; 0]);
    }
    assert_eq!(report(&other, &go, json!({ "outcome": "success" })).await.body["replayed"], true);
    assert_ne!(beat(&node, &go, json!({})).await.status, 200, "it does not run any more");
    assert_eq!(forget(&node, &id, "?force=true").await.status, 200);
    begun(&other, charge(1)).await;
}

async fn listed(node: &Node, state: &str) -> Vec<String> {
    let page = get(node, &format!("/v1/operations?state={state}")).await.body;
    page["operations"].as_array().unwrap().iter().map(|shown| shown["id"].as_str().unwrap().to_owned()).collect()
}

/// The suite read_by_sql compares each refusal with the rule of core.
#[tokio::test]
async fn only_the_attempt_that_holds_the_operation_posts_and_only_once() {
    let World { node, other, mut caller, .. } = World::start().await;
    let first = begun(&node, short("x")).await;
    let go = until_taken_over(&other, "x").await;
    assert_eq!(post(&mut caller, &first, "").await.unwrap_err(), "LG007");
    let shown = inspect_operation(&node, &go.text("id")).await.body;
    assert!(!shown["suspect"].as_bool().unwrap_or_default(), "its work was rolled back: {shown}");
    assert_eq!(post(&mut caller, &go, "").await, Ok(2));
    pre(&node, charge("x")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(post(&mut caller, &first, "").await.unwrap_err(), "LG007");
    assert_eq!(post(&mut caller, &go, "").await.unwrap_err(), "LG006 success");
    for (outcome, more) in [("success", ""), ("failure", ""), ("unknown", ", outcome => 'unknown'")] {
        let by_http = begun(&node, charge(outcome)).await;
        report(&node, &by_http, json!({ "outcome": outcome })).await;
        assert_eq!(post(&mut caller, &by_http, more).await.unwrap_err(), format!("LG006 {outcome}"));
    }

    let (id, stamp, zeros) = (go.text("id"), go.text("stamp"), "0".repeat(32));
    for (call, code) in [
        (format!("'{id}', 'p{zeros}'"), "LG005"),
        (format!("'{id}', 'o.unguarded'"), "LG005"),
        (format!("'{id}', null"), "LG005"),
        (format!("'{zeros}', '{stamp}'"), "LG004"),
        (format!("null, '{stamp}'"), "LG004"),
        (format!("'{id}', '{stamp}', app => 'other'"), "LG004"),
        (format!("'{id}', '{stamp}', null, 'done'"), "LG009"),
        (format!("'{id}', '{stamp}', null, null"), "LG009"),
        (format!("'{id}', '{stamp}', retention_ms => 0"), "LG009"),
        (format!("'{id}', '{stamp}', to_json(repeat('x', 70000))::text"), "LG009"),
        (format!("'{id}', '{stamp}', '{{'"), "22P02"),
    ] {
        let refused = caller.number(&format!("select latchgate.post({call})")).await;
        assert_eq!(code_of(refused), code, "{call}");
    }
}

/// Tries until the lease has passed.
async fn until_taken_over(node: &Node, contents: &str) -> Answer {
    loop {
        let answer = pre(node, charge(contents)).await;
        if answer.status == 201 {
            return answer;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_post_is_not_committed_yet_is_not_taken_over() {
    let World { node, other, mut caller, .. } = World::start().await;
    let go = begun(&node, short("x")).await;
    let elsewhere = begun(&node, charge("y")).await;
    caller.run("begin").await;
    post(&mut caller, &go, "").await.unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let answer = pre(&other, charge("x")).await;
        assert!([409, 503].contains(&answer.status.as_u16()), "{}", answer.body);
        assert_eq!(beat(&node, &elsewhere, json!({})).await.status, 200, "another operation does not notice");
    }
    caller.run("commit").await;
    pre(&other, charge("x")).await.assert_problem(409, "operation-duplicate");
    assert_eq!(report(&node, &go, json!({ "outcome": "success" })).await.body["replayed"], true);
}

/// Sends a pre that will wait.
fn waiting(node: &Node, contents: &str) -> JoinHandle<Answer> {
    let (url, mut body) = (format!("{}/v1/operations/pre", node.base_url()), charge(contents));
    body["wait_ms"] = json!(50_000);
    tokio::spawn(crate::client::post(url, body.to_string()))
}

/// Waits until an operation says that a pre waits for it.
async fn until_awaited(caller: &mut Caller) {
    let awaited = "select count(*) from latchgate.operations where state::jsonb ? 'awaited_until'";
    while caller.number(awaited).await == Ok(0) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pre_that_waits_is_answered_when_a_post_is_committed() {
    let World { node, other, mut caller, .. } = World::start().await;
    let go = begun(&node, charge("x")).await;
    let waiting = waiting(&other, "x");
    until_awaited(&mut caller).await;
    post(&mut caller, &go, ", '[1]'").await.unwrap();
    let answer = waiting.await.unwrap();
    answer.assert_problem(409, "operation-duplicate");
    assert_eq!(answer.body["result"], json!([1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_in_a_prepared_transaction_succeeds_while_a_pre_waits() {
    let postgres = Postgres::start_with(&[("max_prepared_transactions", "2")]).await;
    let database = postgres.create_database().await;
    let node = on_postgres(&database).await;
    let mut caller = Caller::connect(&database).await;
    let go = begun(&node, charge("x")).await;
    let waiting = waiting(&node, "x");
    until_awaited(&mut caller).await;
    caller.run(&format!("begin; {}; prepare transaction 'work'", posting(&go, ""))).await;
    caller.run("commit prepared 'work'").await;
    waiting.await.unwrap().assert_problem(409, "operation-duplicate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_post_is_open_calls_for_other_operations_do_not_wait_for_it() {
    let World { node, mut caller, database, .. } = World::start().await;
    let mut observer = Caller::connect(&database).await;
    let go = begun(&node, charge("open")).await;
    caller.run("begin").await;
    post(&mut caller, &go, "").await.unwrap();
    // What is committed counts.
    pre(&node, charge("open")).await.assert_problem(409, "operation-in-progress");
    let waiters = [waiting(&node, "open"), waiting(&node, "open")];
    // They would mark the record.
    observer.until_blocked().await;
    for round in 0..20 {
        begun(&node, charge(format!("other-{round}"))).await;
    }
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    caller.run("commit").await;
    for waiter in waiters {
        waiter.await.unwrap().assert_problem(409, "operation-duplicate");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_the_outcome_waits_behind_an_open_post_too() {
    let World { node, other, mut caller, database } = World::start().await;
    let mut observer = Caller::connect(&database).await;
    let go = begun(&node, charge("x")).await;
    caller.run("begin").await;
    post(&mut caller, &go, ", '[1]'").await.unwrap();
    let path = format!("/v1/operations/{}?wait_ms=30000", go.text("id"));
    let waiting = tokio::spawn(async move { get(&other, &path).await });
    // It cannot say in the record that it waits.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        assert!(!waiting.is_finished());
        observer.run("select 1").await;
    }
    caller.run("commit").await;
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body["result"]), (200, &json!([1])), "{}", answer.body);
}

/// The statements of an attempt that works and posts.
fn statements(contents: &str, go: &Answer) -> [String; 4] {
    ["begin".to_owned(), format!("insert into charges values ('{contents}')"), posting(go, ""), "commit".to_owned()]
}

/// Another worker goes on until the operation is done.
async fn until_done(node: &Node, caller: &mut Caller, contents: &str) {
    loop {
        let answer = pre(node, charge(contents)).await;
        match (answer.status.as_u16(), answer.code()) {
            (409, "operation-in-progress") | (503, _) => {}
            (409, "operation-duplicate") => break,
            (201, _) => caller.run(&statements(contents, &answer).join(";")).await,
            _ => panic!("{}", answer.body),
        }
    }
}

async fn each_was_done_once(caller: &mut Caller, count: i64) {
    assert_eq!(caller.number("select count(*) from charges").await, Ok(count));
    assert_eq!(caller.number("select count(distinct id) from charges").await, Ok(count));
    assert_eq!(caller.number("select count(*) from latchgate.operations where phase <> 'succeeded'").await, Ok(0));
}

/// A worker crashes before each statement of its transaction, and after its commit; or only its session does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_statements_leaves_no_unknown_outcome_and_no_second_run() {
    let World { node, other, mut caller, database } = World::start().await;
    for is_terminated in [false, true] {
        for crash in 0..=4 {
            let contents = format!("crash-{crash}-{is_terminated}");
            let go = begun(&node, short(&contents)).await;
            let mut worker = Caller::connect(&database).await;
            for statement in &statements(&contents, &go)[..crash] {
                worker.run(statement).await;
            }
            if is_terminated {
                let session = worker.number("select pg_backend_pid()").await.unwrap();
                caller.run(&format!("select pg_terminate_backend({session})")).await;
                assert!(worker.is_cut_off().await);
            } else {
                // Nothing says goodbye to the server.
                drop(worker);
            }
            until_done(&other, &mut caller, &contents).await;
        }
    }
    each_was_done_once(&mut caller, 10).await;
}

/// The transaction needs no node: only the pre does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_commits_although_the_node_crashes_between_two_statements() {
    let World { mut node, other, mut caller, .. } = World::start().await;
    for crash in 0..=4 {
        let contents = format!("crash-{crash}");
        let go = begun(&node, charge(contents.as_str())).await;
        for (index, statement) in statements(&contents, &go).iter().enumerate() {
            if index == crash {
                node.kill9();
            }
            caller.run(statement).await;
        }
        node.kill9();
        pre(&other, charge(contents.as_str())).await.assert_problem(409, "operation-duplicate");
        node.start_again().await;
        pre(&node, charge(contents.as_str())).await.assert_problem(409, "operation-duplicate");
    }
    each_was_done_once(&mut caller, 5).await;
}
