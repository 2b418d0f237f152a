//! The audit: who did what to the service. Its records are in the log.

use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::access::world::{ADMIN, Caller, LONG, guarded};
use crate::client::send;

/// Logs as JSON, and of other events only errors.
const QUIET: &[&str] = &["--log-format", "json", "--log", "error"];

/// The id of no operation.
const ABSENT: &str = "7d88c00ddeafbae02d6198a43e38f30a";

/// The audit records that a node has logged, oldest first, without their times.
pub fn records(log: &str) -> Vec<Value> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_audit = events.filter(|event| event["target"] == "audit").map(|mut event| {
        let event = event.as_object_mut().unwrap();
        assert!(event.remove("timestamp").is_some_and(|at| at.as_str().unwrap().ends_with('Z')));
        for (field, value) in [("target", "audit"), ("message", "audit"), ("level", "INFO")] {
            assert_eq!(event.remove(field), Some(json!(value)));
        }
        json!(event)
    });
    of_audit.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interventions_and_admin_calls_are_logged_with_who_where_and_outcome() {
    let node = guarded(&[QUIET, &["--trusted-proxies", "127.0.0.0/8"]].concat()).await;
    let operator = Caller::operator(&node);
    let caller =
        Caller::with(&node, json!({ "app": "billing", "scopes": ["read", "locks", "operations", "admin"] })).await;
    let (id, admin) = (caller.id(), operator.id());
    caller.granted("jobs%2Fa").await;
    caller.ok(Method::POST, "/v1/locks/jobs%2Fa/revoke", json!({ "reason": "a <b>deploy</b>", "by": "eve" })).await;
    let forced = Client::new().delete(format!("{}/v1/locks/jobs%2Fa?reason=stuck", node.base_url()));
    let forced = forced.bearer_auth(&caller.key).header("x-forwarded-for", "1.1.1.1, 203.0.113.7, 127.0.0.9");
    assert_eq!(send(forced).await.status, 200);
    let spare = json!({ "engine": "spare", "force": true });
    operator.post("/v1/admin/engines/locks", spare).await.assert_problem(404, "unknown-engine");
    operator.ok(Method::POST, "/v1/admin/hold-off", json!({ "for_ms": 0 })).await;
    let quotas = json!({ "event_streams": 100, "waiters": null });
    operator.ok(Method::PATCH, "/v1/admin/apps/billing", json!({ "quotas": quotas })).await;
    let absent = format!("/v1/operations/{ABSENT}");
    caller.call(Method::DELETE, &absent, Value::Null).await.assert_problem(404, "operation-not-found");
    caller.post("/v1/admin/apps", json!({ "app": "mine" })).await.assert_problem(403, "forbidden");
    operator.ok(Method::PUT, "/v1/locks/k/limit?app=billing", json!({ "limit": 2 })).await;
    caller.call(Method::DELETE, "/v1/locks/k?app=default", Value::Null).await.assert_problem(403, "forbidden");
    operator.revoke(id).await;
    // Each is logged before its answer is sent.
    let records = records(&node.log());
    let of = |record: &Value, fields: [&str; 4]| fields.map(|field| record[field].as_str().unwrap_or("-").to_owned());
    let summary: Vec<_> = records.iter().map(|it| of(it, ["action", "key_id", "resource", "outcome"])).collect();
    assert_eq!(
        summary,
        [
            ["create-app", admin, "billing", "done"],
            ["create-key", admin, id, "done"],
            ["revoke", id, "jobs/a", "done"],
            ["force", id, "jobs/a", "done"],
            ["switch-engine", admin, "locks", "unknown-engine"],
            ["hold-off", admin, "locks", "done"],
            ["change-app", admin, "billing", "done"],
            ["forget-operation", id, ABSENT, "operation-not-found"],
            ["create-app", id, "-", "forbidden"],
            ["set-limit", admin, "k of the app billing", "done"],
            ["force", id, "k of the app default", "forbidden"],
            ["revoke-key", admin, id, "done"],
        ]
    );
    assert_eq!(records[2]["detail"], "grace_ms 10000, reason: a <b>deploy</b>, by: eve");
    assert_eq!(
        records[3],
        json!({
            "action": "force", "app": "billing", "key_id": id, "from": "203.0.113.7", "resource": "jobs/a",
            "outcome": "done", "detail": "leases ended: 1, reason: stuck",
        })
    );
    assert_eq!(records[4]["detail"], "engine: spare, stopped: false, force: true");
    assert_eq!(records[6]["detail"], "waiters: none, event_streams: 100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_authentications_are_bounded_and_counted_and_no_secret_is_logged() {
    let mut node = guarded(QUIET).await;
    let operator = Caller::operator(&node);
    let caller = Caller::of_app(&node, "billing").await;
    let expired = Caller::with(&node, json!({ "app": "billing", "scopes": ["read"], "expires_in_ms": 1 })).await;
    until("the API key expires", || async { !expired.is_accepted().await }).await;
    operator.revoke(caller.id()).await;
    for _ in 0..20 {
        assert!(!caller.is_accepted().await);
        Caller::new(&node, "nonsense").get("/v1/locks").await;
        let wrong = format!("{}{}", &caller.key[..caller.key.len() - 3], "000");
        Caller::new(&node, &wrong).get("/v1/locks").await.assert_problem(401, "unauthorized");
        send(Client::new().get(format!("{}/v1/locks", node.base_url()))).await.assert_problem(401, "unauthorized");
    }
    // The last ones are logged while the node ends.
    node.terminate();
    assert!(node.wait_exit(LONG).await.is_some());
    let log = node.log();
    let of = |outcome: &str| -> Vec<Value> {
        let failed = records(&log).into_iter().filter(|record| record["action"] == "authentication");
        failed.filter(|record| record["outcome"] == outcome).collect()
    };
    let attempts = |outcome: &str| of(outcome).iter().map(|record| record["attempts"].as_u64().unwrap()).sum::<u64>();
    assert_eq!([attempts("no-api-key"), attempts("revoked"), attempts("unknown-api-key")], [20, 20, 40]);
    assert!(attempts("expired") > 0);
    let revoked = of("revoked");
    assert!(revoked.len() < 10, "{revoked:?}");
    let first = json!({ "action": "authentication", "app": "billing", "key_id": caller.id(), "from": "127.0.0.1", "outcome": "revoked", "attempts": 1 });
    assert_eq!(revoked[0], first);
    for secret in [&caller.key[17..], &ADMIN[17..], "nonsense"] {
        assert!(!log.contains(secret));
    }
}
