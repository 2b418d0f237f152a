//! The gate over two nodes, through crashes and outages of its store.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use crate::client::{self, Answer, BIN, get, post, pre};

const LONG: Duration = Duration::from_secs(30);

fn pre_at(node: &Node, body: Value) -> impl Future<Output = Answer> + use<> {
    post(format!("{}/v1/operations/pre", node.base_url()), body.to_string())
}

async fn report(node: &Node, go: &Answer, outcome: &str) -> Answer {
    client::report(node, go, json!({ "outcome": outcome })).await
}

async fn on_redis(redis: &Redis, database: &str) -> Node {
    // Without hold-offs of the gate whenever its Redis is started again.
    Node::start(BIN, &["--locks", database, "--gate", &redis.url(), "--no-hold-off"]).await
}

#[tokio::test]
async fn after_kill_9_the_same_attempt_gets_its_stamp_from_another_node() {
    let redis = Redis::start().await;
    let database = shared_database().await;
    let (mut one, other) = (on_redis(&redis, &database).await, on_redis(&redis, &database).await);
    let request = json!({ "operation": "charge", "contents": "order 7", "attempt_id": "mine" });
    let go = pre(&one, request.clone()).await;
    assert_eq!(go.status, 201, "{}", go.body);
    one.kill9();
    let again = pre(&other, request).await;
    assert_eq!((again.status.as_u16(), again.text("stamp")), (200, go.text("stamp")));
    assert_eq!(report(&other, &go, "success").await.status, 200);
}

#[tokio::test]
async fn closed_refuses_every_pre_while_redis_is_down() {
    let mut redis = Redis::start().await;
    let node = on_redis(&redis, &shared_database().await).await;
    let go = pre(&node, json!({ "operation": "charge", "contents": 1 })).await;
    redis.kill9();
    for contents in 1..5 {
        let refused = pre(&node, json!({ "operation": "charge", "contents": contents })).await;
        assert_eq!(refused.status, 503, "{}", refused.body);
    }
    pre(&node, json!({ "operation": "charge", "contents": 9 })).await.assert_problem(503, "store-unavailable");
    assert_eq!(report(&node, &go, "success").await.status, 503);
    redis.start_again().await;
    assert!(eventually(LONG, || async { report(&node, &go, "success").await.status == 200 }).await);
    pre(&node, json!({ "operation": "charge", "contents": 1 })).await.assert_problem(409, "operation-duplicate");
}

#[tokio::test]
async fn fallback_grants_each_id_once_marks_it_and_copies_it_to_the_primary() {
    let mut redis = Redis::start().await;
    let database = shared_database().await;
    let (one, other) = (on_redis(&redis, &database).await, on_redis(&redis, &database).await);
    redis.kill9();
    let request = |order: u32| json!({ "operation": "charge", "contents": order, "on_outage": "fallback" });
    let mut goes = Vec::new();
    for order in 0..6 {
        let go = pre(&one, request(order)).await;
        assert_eq!((go.status.as_u16(), &go.body["degraded"]), (201, &json!(true)), "{}", go.body);
        pre(&other, request(order)).await.assert_problem(409, "operation-in-progress");
        goes.push(go);
    }
    // Half of the operations end during the outage, half after it.
    for go in &goes[..3] {
        assert_eq!(report(&other, go, "success").await.status, 200);
    }
    redis.start_again().await;
    let is_back = || async {
        let closed = json!({ "operation": "probe", "contents": 0, "attempt_id": "probe" });
        pre(&one, closed.clone()).await.status.is_success() && pre(&other, closed).await.status.is_success()
    };
    assert!(eventually(LONG, is_back).await);
    for order in 0..3 {
        pre(&other, request(order)).await.assert_problem(409, "operation-duplicate");
    }
    for (order, go) in (3..).zip(&goes[3..]) {
        pre(&one, request(order)).await.assert_problem(409, "operation-in-progress");
        assert_eq!(report(&one, go, "success").await.status, 200);
        pre(&other, request(order)).await.assert_problem(409, "operation-duplicate");
    }
    let suspects = get(&one, "/v1/operations?suspect=true").await.body;
    assert_eq!(suspects["operations"], json!([]));
}

#[tokio::test]
async fn a_refused_batch_says_which_claims_in_the_fallback_stay() {
    let mut redis = Redis::start().await;
    let node = on_redis(&redis, &shared_database().await).await;
    redis.kill9();
    let request = |order: u32| json!({ "operation": "charge", "contents": order, "on_outage": "fallback" });
    assert_eq!(pre(&node, request(1)).await.status, 201);
    let batch = json!({ "operations": [request(1), request(2)] });
    let refused = post(format!("{}/v1/operations/pre/batch", node.base_url()), batch.to_string()).await;
    refused.assert_problem(409, "batch-refused");
    let items = &refused.body["items"];
    assert_eq!((&items[0]["code"], &items[1]["code"]), (&json!("operation-in-progress"), &json!("outcome-unknown")));
    let mut again = request(2);
    again["attempt_id"] = items[1]["attempt_id"].clone();
    assert_eq!(pre(&node, again).await.status, 200);
}

#[tokio::test]
async fn a_record_of_the_fallback_that_cannot_be_decoded_lets_nobody_go_and_the_others_are_carried_back() {
    let mut redis = Redis::start().await;
    let database = shared_database().await;
    let node = on_redis(&redis, &database).await;
    redis.kill9();
    let request = |contents: &str| json!({ "operation": "charge", "contents": contents, "on_outage": "fallback" });
    let (bad, good) = (pre(&node, request("bad")).await, pre(&node, request("good")).await);
    assert_eq!((bad.status.as_u16(), good.status.as_u16()), (201, 201), "{}{}", bad.body, good.body);
    let mut server = PgConnection::connect(&database).await.unwrap();
    let damage = "update latchgate.operations set record = '{}' where encode(id, 'hex') = $1";
    sqlx::query(damage).bind(bad.text("id")).execute(&mut server).await.unwrap();
    redis.start_again().await;
    let is_up = || async { node.log().contains("the gate's store is up") };
    assert!(eventually(LONG, is_up).await, "{}", node.log());
    let is_carried = || async { pre(&node, request("good")).await.code() == "operation-in-progress" };
    assert!(eventually(LONG, is_carried).await, "{}", node.log());
    assert!(redis.ask(&["keys", "latchgate:g:*"]).contains(&good.text("id")));
    for _ in 0..3 {
        pre(&node, request("bad")).await.assert_problem(500, "state-unreadable");
    }
    let url = format!("{}/v1/operations/{}?force=true", node.base_url(), bad.text("id"));
    assert_eq!(crate::client::send(reqwest::Client::new().delete(url)).await.status, 200);
    assert_eq!(pre(&node, request("bad")).await.status, 201);
}

#[tokio::test]
async fn a_waiter_in_the_fallback_store_continues_in_the_primary_when_it_returns() {
    let mut redis = Redis::start().await;
    let node = on_redis(&redis, &shared_database().await).await;
    redis.kill9();
    let request =
        json!({ "operation": "charge", "contents": "waited for", "on_outage": "fallback", "wait_ms": 30_000 });
    let go = pre(&node, request.clone()).await;
    assert_eq!((go.status.as_u16(), &go.body["degraded"]), (201, &json!(true)), "{}", go.body);
    let waiting = tokio::spawn(pre_at(&node, request));
    redis.start_again().await;
    let closed = json!({ "operation": "charge", "contents": "waited for", "checked": 1 });
    // As soon as the primary is back, it is used again and has the record.
    let is_back = || async { pre(&node, closed.clone()).await.code() == "contents-mismatch" };
    assert!(eventually(LONG, is_back).await);
    assert_eq!(report(&node, &go, "failure").await.status, 200);
    let next = waiting.await.unwrap();
    assert_eq!((next.status.as_u16(), &next.body["degraded"]), (201, &Value::Null), "{}", next.body);
    assert_eq!(report(&node, &next, "success").await.status, 200);
    let suspects = get(&node, "/v1/operations?suspect=true").await.body;
    assert_eq!(suspects["operations"], json!([]));
}

#[tokio::test]
async fn two_successes_for_one_id_are_suspected_of_a_double_run() {
    let mut redis = Redis::start().await;
    let node = on_redis(&redis, &shared_database().await).await;
    let request = json!({ "operation": "charge", "contents": "twice", "on_outage": "fallback" });
    let first = pre(&node, request.clone()).await;
    assert_eq!(first.status, 201);
    redis.pause();
    let second = pre(&node, request).await;
    assert_eq!((second.status.as_u16(), &second.body["degraded"]), (201, &json!(true)), "{}", second.body);
    assert_eq!(report(&node, &second, "success").await.status, 200);
    redis.resume();
    let late = || async { report(&node, &first, "success").await.code() == "operation-superseded" };
    assert!(eventually(LONG, late).await);
    let suspects = get(&node, "/v1/operations?suspect=true").await.body;
    assert_eq!(suspects["operations"][0]["id"], first.body["id"], "{suspects}");
}

#[tokio::test]
async fn open_proceeds_unguarded_and_the_run_is_recorded_when_its_post_arrives() {
    let mut redis = Redis::start().await;
    let node = on_redis(&redis, &shared_database().await).await;
    redis.kill9();
    let request = json!({ "operation": "charge", "contents": "open", "on_outage": "open" });
    let go = pre(&node, request.clone()).await;
    assert_eq!((go.status.as_u16(), &go.body["guarded"]), (200, &json!(false)), "{}", go.body);
    let second = pre(&node, request.clone()).await;
    assert_eq!(second.body["guarded"], false);
    redis.start_again().await;
    assert!(eventually(LONG, || async { report(&node, &go, "success").await.status == 200 }).await);
    assert!(eventually(LONG, || async { pre(&node, request.clone()).await.code() == "operation-duplicate" }).await);
    report(&node, &second, "success").await.assert_problem(409, "operation-superseded");
    let suspects = get(&node, "/v1/operations?suspect=true").await.body;
    assert_eq!(suspects["operations"].as_array().unwrap().len(), 1, "{suspects}");
    let mut forged = go.text("stamp");
    forged.push('x');
    let body = json!({ "stamp": forged, "outcome": "success" });
    let url = format!("{}/v1/operations/{}/post", node.base_url(), go.text("id"));
    post(url, body.to_string()).await.assert_problem(403, "stamp-mismatch");
}

#[tokio::test]
async fn a_durable_operation_survives_an_emptied_redis() {
    let mut redis = Redis::start_with(&[("appendonly", "no")]).await;
    let node = on_redis(&redis, &shared_database().await).await;
    let request = json!({ "operation": "charge", "contents": "durable", "durability": "durable" });
    let go = pre(&node, request.clone()).await;
    assert_eq!(go.status, 201, "{}", go.body);
    redis.kill9();
    // A durable operation proceeds also during an outage.
    assert_eq!(report(&node, &go, "success").await.status, 200);
    redis.start_again().await;
    pre(&node, request).await.assert_problem(409, "operation-duplicate");
}

/// Sends a pre of each operation to both nodes at once, reports each run, and repeats calls without a definite answer.
async fn run_both(one: &Node, other: &Node, orders: std::ops::Range<u32>) -> Vec<u32> {
    let mut runs = JoinSet::new();
    for order in orders.clone() {
        for node in [one, other] {
            let (base, request) =
                (node.base_url(), json!({ "operation": "load", "contents": order, "on_outage": "fallback" }));
            runs.spawn(async move {
                loop {
                    let answer = post(format!("{base}/v1/operations/pre"), request.to_string()).await;
                    match answer.status.as_u16() {
                        200 | 201 => return (order, Some(answer)),
                        409 => return (order, None),
                        status => assert_eq!(status, 503, "{}", answer.body),
                    }
                }
            });
        }
    }
    let mut goes = Vec::new();
    let mut posts = JoinSet::new();
    while let Some(run) = runs.join_next().await {
        let (order, Some(go)) = run.unwrap() else { continue };
        goes.push(order);
        let url = format!("{}/v1/operations/{}/post", one.base_url(), go.text("id"));
        let body = json!({ "stamp": go.text("stamp"), "outcome": "success" }).to_string();
        posts.spawn(async move { while post(url.clone(), body.clone()).await.status == 503 {} });
    }
    posts.join_all().await;
    goes
}

#[tokio::test]
async fn under_load_the_fallback_loses_nothing_and_every_double_run_is_counted() {
    let mut redis = Redis::start().await;
    let database = shared_database().await;
    let (one, other) = (on_redis(&redis, &database).await, on_redis(&redis, &database).await);
    let mut goes = run_both(&one, &other, 0..40).await;
    redis.kill9();
    goes.extend(run_both(&one, &other, 30..80).await);
    let (during, ()) = tokio::join!(run_both(&one, &other, 70..160), redis.start_again());
    goes.extend(during);
    let is_back = || async {
        let closed = json!({ "operation": "probe", "contents": 0, "attempt_id": "probe" });
        pre(&one, closed.clone()).await.status.is_success() && pre(&other, closed).await.status.is_success()
    };
    assert!(eventually(LONG, is_back).await);
    for order in 0..160 {
        let request = json!({ "operation": "load", "contents": order });
        let is_copied = || async { pre(&one, request.clone()).await.code() == "operation-duplicate" };
        assert!(eventually(LONG, is_copied).await, "{order}: {}", pre(&one, request.clone()).await.body);
        let id = pre(&one, request.clone()).await.text("id");
        let runs = goes.iter().filter(|go| **go == order).count() as u64;
        let counted = get(&one, &format!("/v1/operations/{id}")).await.body["suspected_double_runs"].as_u64();
        assert_eq!(counted.unwrap_or(0), runs - 1, "{order} ran {runs} times");
    }
}
