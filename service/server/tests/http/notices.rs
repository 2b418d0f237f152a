//! Notices on the event streams of apps.

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::access::world::{Caller, LONG, guarded};

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
async fn a_lock_that_an_app_holds_for_too_long_is_a_notice() {
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

    operator.ok(Method::PATCH, path, json!({ "warn_after_ms": null })).await;
}
