//! Notices on the event streams of apps.

use reqwest::{Client, Method};
use serde_json::json;

use crate::access::world::{Caller, operated};
use crate::history::Events;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_an_app_holds_for_too_long_is_a_notice() {
    let (node, operator) = operated().await;
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
    let stream = Client::new().get(format!("{}/v1/events", caller.base_url)).bearer_auth(&caller.key);
    let mut stream = Events::of(stream).await;
    caller.granted("k").await;
    assert_eq!(stream.next().await["kind"], "granted");
    let long = stream.next().await;
    assert_eq!(long["kind"], "held_too_long");
    assert_eq!((long["key"].as_str(), long["mode"].as_str()), (Some("k"), Some("exclusive")));

    operator.ok(Method::PATCH, path, json!({ "warn_after_ms": null })).await;
}
