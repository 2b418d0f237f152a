//! Notices on the event streams of apps.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::access::world::{Caller, LONG, OPERATOR, guarded};
use crate::client::BIN;

/// An event stream, read event by event.
pub struct Stream {
    response: reqwest::Response,
    unread: String,
    last_id: String,
}

impl Stream {
    /// Begins now, or after an earlier stream.
    pub async fn open(caller: &Caller, after: Option<&str>) -> Self {
        let request = Client::new().get(format!("{}/v1/events", caller.base_url)).bearer_auth(&caller.key);
        let request = after.into_iter().fold(request, |request, id| request.header("last-event-id", id));
        let mut stream =
            Self { response: request.send().await.unwrap(), unread: String::new(), last_id: String::new() };
        assert_eq!(stream.response.status(), 200);
        // The first frame is an id alone.
        stream.frame().await;
        stream
    }

    async fn frame(&mut self) -> Vec<String> {
        loop {
            if let Some((frame, rest)) = self.unread.split_once("\n\n") {
                let lines: Vec<String> = frame.lines().map(str::to_owned).collect();
                self.unread = rest.to_owned();
                if let Some(id) = lines.iter().find_map(|line| line.strip_prefix("id: ")) {
                    self.last_id = id.to_owned();
                }
                return lines;
            }
            let chunk =
                timeout(LONG, self.response.chunk()).await.expect("an event").unwrap().expect("the stream goes on");
            self.unread.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event of this kind.
    pub async fn next(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.frame().await;
            if frame.iter().any(|line| line == &format!("event: {kind}")) {
                let data = frame.iter().find_map(|line| line.strip_prefix("data: ")).unwrap();
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_and_a_hold_off_are_notices_to_the_operators_once_and_a_stream_resumes_at_another_node() {
    let database = shared_database().await;
    let redis = Redis::start().await;
    let (main, spare) = (format!("main={database}"), format!("spare={}", redis.url()));
    let args = ["--locks", &main, "--locks", &spare];
    let one = Node::start_with(BIN, &args, OPERATOR).await;
    let other = Node::start_with(BIN, &args, OPERATOR).await;
    let operator = Caller::operator(&one);
    let billing = Caller::of_app(&one, "billing").await;
    let mut stream = Stream::open(&operator, None).await;
    let mut foreign = Stream::open(&billing, None).await;

    operator.ok(Method::POST, "/v1/admin/hold-off", json!({ "for_ms": 600_000 })).await;
    let began = stream.next("hold_off_began").await;
    assert_eq!(began["subject"], "locks");
    assert!(began["expires_at"].is_string() && began["reason"].is_string(), "{began}");
    assert!(began.get("key").is_none() && began.get("mode").is_none(), "{began}");
    let seen = stream.last_id.clone();
    drop(stream);
    operator.ok(Method::POST, "/v1/admin/hold-off", json!({ "for_ms": 0 })).await;
    // What happened meanwhile comes at any node, and nothing twice.
    let mut stream = Stream::open(&operator.at(&other), Some(&seen)).await;
    assert_eq!(stream.next("hold_off_ended").await["subject"], "locks");
    operator.ok(Method::POST, "/v1/admin/engines/locks", json!({ "engine": "spare" })).await;
    // The ids of one engine continue in the other.
    let seen = stream.last_id.clone();
    let mut stream = Stream::open(&operator, Some(&seen)).await;
    assert_eq!(stream.next("engine_switched").await["subject"], "spare");

    // The app hears of none of it: its first event is of its own lock.
    billing.granted("k").await;
    assert_eq!(foreign.next("granted").await["key"], "k");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_an_app_holds_for_too_long_and_a_suspected_double_run_are_notices() {
    let node = guarded(&[]).await;
    let operator = Caller::operator(&node);
    let caller = Caller::of_app(&node, "billing").await;
    let path = "/v1/admin/apps/billing";
    for wrong in [json!({ "warn_after": 1 }), json!({ "warn_after_ms": 0 })] {
        operator.call(Method::PATCH, path, wrong).await.assert_problem(400, "invalid-request");
    }
    operator
        .call(Method::PATCH, "/v1/admin/apps/none", json!({ "warn_after_ms": 1 }))
        .await
        .assert_problem(404, "unknown-app");
    let set = operator.ok(Method::PATCH, path, json!({ "warn_after_ms": 100 })).await;
    assert_eq!(set.body["warn_after_ms"], 100);
    let mut stream = Stream::open(&caller, None).await;
    caller.granted("k").await;
    let long = stream.next("held_too_long").await;
    assert_eq!((long["key"].as_str(), long["mode"].as_str()), (Some("k"), Some("exclusive")));

    let pre = json!({ "operation": "o", "contents": 1, "ttl_ms": 1_000, "on_expiry": "retry" });
    let first = caller.ok(Method::POST, "/v1/operations/pre", pre.clone()).await;
    until("the attempt has expired", || async { caller.post("/v1/operations/pre", pre.clone()).await.status == 201 })
        .await;
    let post = format!("/v1/operations/{}/post", first.text("id"));
    let late = caller.post(&post, json!({ "stamp": first.text("stamp"), "outcome": "success" })).await;
    late.assert_problem(409, "operation-superseded");
    let suspected = stream.next("suspected_double_run").await;
    assert_eq!(suspected["subject"], first.text("id"), "{suspected}");
    operator.ok(Method::PATCH, path, json!({ "warn_after_ms": null })).await;
}
