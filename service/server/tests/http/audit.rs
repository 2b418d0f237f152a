//! The audit: who did what to the service.

use latchgate_testkit::node::{Node, command};
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::until;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::access::world::{ADMIN, Caller, LONG, OPERATOR, guarded};
use crate::client::{BIN, send};

/// The records of an action, newest first, once there are so many.
async fn records(operator: &Caller, query: &str, count: usize) -> Vec<Value> {
    let read = || async {
        let page = operator.ok(Method::GET, &format!("/v1/admin/audit?{query}"), Value::Null).await;
        page.body["records"].as_array().unwrap().clone()
    };
    until("the audit has the records", || async { read().await.len() >= count }).await;
    let found = read().await;
    assert_eq!(found.len(), count, "{found:?}");
    found
}

fn shown(record: &Value) -> Value {
    let mut record = record.clone();
    let at = record.as_object_mut().unwrap().remove("at");
    assert!(at.is_some_and(|at| at.as_str().unwrap().ends_with('Z')), "{record}");
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_a_lock_or_changes_the_service_leaves_a_record_of_who_from_where_and_how_it_ended() {
    let node = guarded(&["--trusted-proxies", "127.0.0.0/8"]).await;
    let operator = Caller::operator(&node);
    let caller =
        Caller::with(&node, json!({ "app": "billing", "scopes": ["read", "locks", "operations", "admin"] })).await;
    let (id, admin) = (caller.id().to_owned(), operator.id().to_owned());
    caller.granted("jobs%2Fa").await;
    caller.ok(Method::POST, "/v1/locks/jobs%2Fa/revoke", json!({ "reason": "a <b>deploy</b>", "by": "eve" })).await;
    let forced = Client::new().delete(format!("{}/v1/locks/jobs%2Fa?reason=stuck", node.base_url()));
    let forced = forced.bearer_auth(&caller.key).header("x-forwarded-for", "1.1.1.1, 203.0.113.7, 127.0.0.9");
    assert_eq!(send(forced).await.status, 200);
    let force = records(&operator, "action=force", 1).await;
    assert_eq!(
        shown(&force[0]),
        json!({
            "action": "force", "app": "billing", "key_id": id, "from": "203.0.113.7", "target": "jobs/a",
            "outcome": "done", "detail": "leases ended: 1, reason: stuck",
        })
    );
    let revoke = records(&operator, "action=revoke&app=billing", 1).await;
    assert_eq!(revoke[0]["detail"], "grace_ms 10000, reason: a <b>deploy</b>, by: eve");
    assert_eq!(revoke[0]["from"], "127.0.0.1");

    operator
        .post("/v1/admin/engines/locks", json!({ "engine": "spare", "force": true }))
        .await
        .assert_problem(404, "unknown-engine");
    operator.ok(Method::POST, "/v1/admin/hold-off", json!({ "for_ms": 0 })).await;
    let quotas = json!({ "leases": 100, "waiters": null });
    operator.ok(Method::POST, "/v1/admin/apps/billing/quotas", quotas).await;
    caller
        .call(Method::DELETE, "/v1/operations/7d88c00ddeafbae02d6198a43e38f30a", Value::Null)
        .await
        .assert_problem(404, "operation-not-found");
    caller.get("/v1/admin/audit").await.assert_problem(403, "forbidden");
    caller.post("/v1/admin/apps", json!({ "app": "mine" })).await.assert_problem(403, "forbidden");
    operator.revoke(&id).await;
    let all = records(&operator, "limit=1000", 10).await;
    let summary: Vec<String> = all
        .iter()
        .map(|record| {
            let field = |name: &str| record[name].as_str().unwrap_or("-");
            format!("{} {} {} {}", field("action"), field("key_id"), field("target"), field("outcome"))
        })
        .collect();
    assert_eq!(
        summary,
        [
            format!("revoke-key {admin} {id} done"),
            format!("create-app {id} - forbidden"),
            format!("forget-operation {id} 7d88c00ddeafbae02d6198a43e38f30a operation-not-found"),
            format!("change-app {admin} billing done"),
            format!("hold-off {admin} locks done"),
            format!("switch-engine {admin} locks unknown-engine"),
            format!("force {id} jobs/a done"),
            format!("revoke {id} jobs/a done"),
            format!("create-key {admin} {id} done"),
            format!("create-app {admin} billing done"),
        ]
    );
    assert_eq!(all[3]["detail"], "waiters: none, leases: 100");
    assert_eq!(all[5]["detail"], "engine: spare, stopped: false, force: true");

    // Page by page.
    let (mut cursor, mut paged) = (String::new(), Vec::new());
    loop {
        let page = operator.ok(Method::GET, &format!("/v1/admin/audit?limit=4{cursor}"), Value::Null).await;
        paged.extend(page.body["records"].as_array().unwrap().clone());
        let Some(next) = page.body["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, all);
    for query in ["limit=0", "limit=1001", "cursor=x", "until=1"] {
        operator.get(&format!("/v1/admin/audit?{query}")).await.assert_problem(400, "invalid-request");
    }
    let log = node.log();
    assert!(log.contains("audit") && log.contains("203.0.113.7"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_authentications_are_counted_and_no_secret_is_recorded() {
    let node = guarded(&[]).await;
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
    let attempts = async |outcome: &str| {
        let page = operator.ok(Method::GET, "/v1/admin/audit?action=authentication", Value::Null).await;
        let records = page.body["records"].as_array().unwrap().clone();
        let of = records.iter().filter(|record| record["outcome"] == outcome).cloned().collect::<Vec<_>>();
        (of.iter().map(|record| record["attempts"].as_u64().unwrap()).sum::<u64>(), of)
    };
    until("all failures are recorded", || async { attempts("no-api-key").await.0 == 20 }).await;
    let (count, revoked) = attempts("revoked").await;
    assert_eq!(count, 20);
    assert!(revoked.len() <= 3, "{revoked:?}");
    assert_eq!((revoked[0]["key_id"].as_str(), revoked[0]["app"].as_str()), (Some(caller.id()), Some("billing")));
    assert_eq!(attempts("unknown-api-key").await.0, 40);
    assert!(attempts("expired").await.0 > 0);
    let all = operator.get("/v1/admin/audit?limit=1000").await.body.to_string();
    for secret in [&caller.key[17..], &ADMIN[17..], "nonsense"] {
        assert!(!all.contains(secret) && !node.log().contains(secret));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_wait_for_a_store_that_is_away_survive_a_restart_and_come_from_commands_beside_the_store() {
    let mut postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let mut node = Node::start_with(BIN, &["--locks", &database], OPERATOR).await;
    let operator = Caller::operator(&node);
    postgres.pause();
    let refused = operator.call(Method::DELETE, "/v1/locks/k", Value::Null).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    until("the log has the record", || async { node.log().contains(refused.code()) }).await;
    postgres.resume();
    assert_eq!(records(&operator, "action=force", 1).await[0]["outcome"], refused.code());
    until("the node is ready again", || async { operator.get("/readyz").await.status == 200 }).await;
    operator.ok(Method::POST, "/v1/admin/hold-off", json!({ "for_ms": 1_000 })).await;
    // The last record is written while the node ends.
    node.terminate();
    assert!(node.wait_exit(LONG).await.is_some());
    for arguments in [["app", "create", "billing"], ["hold-off", "--for-ms", "0"]] {
        let mut command = command(BIN);
        command.args(arguments).env("LATCHGATE_LOCKS", &database).current_dir(node.dir());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    node.start_again().await;
    let found = records(&operator, "limit=10", 4).await;
    let of = |index: usize| -> [&str; 2] { ["action", "from"].map(|name| found[index][name].as_str().unwrap()) };
    assert_eq!([of(0), of(1), of(2)], [["hold-off", "command"], ["create-app", "command"], ["hold-off", "127.0.0.1"]]);
}
