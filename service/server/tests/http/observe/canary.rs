//! Secrets put wherever a secret can be, and looked for wherever one could appear. Flags are left out: `ps` shows them, and so
//! every setting with a secret can come from the environment or a file.

use latchgate_core::access::ApiKey;
use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, http, send};

/// Each secret has it.
const CANARY: &str = "5ec4e75ec4e75ec4e75ec4e7";

fn api_key(id: u8) -> ApiKey {
    ApiKey::of_random([id; 6], std::array::from_fn(|at| [0x5e, 0xc4, 0xe7][at % 3]))
}

#[tokio::test]
async fn no_secret_is_shown_in_logs_metrics_and_errors() {
    // All that the node says.
    let mut heard: Vec<(String, String)> = Vec::new();
    let admin = api_key(1);
    let database = shared_database().await.replacen("postgres@", &format!("postgres:{CANARY}@"), 1);
    let cluster_secret = format!("cluster {CANARY}");
    assert!(database.contains(CANARY) && admin.as_str().contains(CANARY));
    let env = [
        ("LATCHGATE_LOCKS", database.as_str()),
        ("LATCHGATE_SECRET", &cluster_secret),
        ("LATCHGATE_ADMIN_API_KEY", admin.as_str()),
        ("LATCHGATE_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization={CANARY}")),
    ];
    let node = Node::start_with(BIN, &["--log", "debug", "--access-log"], &env).await;
    // A GET if there is no body.
    let mut say = async |what: &str, path: &str, authorization: &str, body: Value| {
        let request = if body.is_null() { Method::GET } else { Method::POST };
        let request = http().request(request, format!("{}{path}", node.base_url()));
        let request = request.header("authorization", authorization);
        let Answer { status, headers, body } =
            send(if body.is_null() { request } else { request.body(body.to_string()) }).await;
        // The client's own secrets come back to it in an answer that lets it proceed, and nowhere else.
        if !status.is_success() {
            heard.push((what.to_owned(), format!("{status} {headers:?} {body}")));
        }
        body
    };
    let good = format!("Bearer {}", admin.as_str());
    let other = say("another API key", "/v1/admin/api-keys", &good, json!({ "scopes": ["locks"] })).await;
    let of_other = format!("Bearer {}", other["api_key"].as_str().unwrap());
    let unknown = format!("Bearer {}", api_key(3).as_str());
    let in_url = format!("/v1/locks?key={}", admin.as_str());
    let (locks, pre) = ("/v1/locks/k/acquire", "/v1/operations/pre");
    for (what, path, authorization, body) in [
        ("an unknown API key", locks, &*unknown, json!({})),
        ("half an API key", locks, &good[..good.len() - 2], json!({})),
        ("another scheme", locks, &format!("Basic {CANARY}"), json!({})),
        ("an API key in a URL", &in_url, &good, Value::Null),
        (
            "an API key in a reason",
            "/v1/locks/k/revoke",
            &good,
            json!({ "reason": format!("with {}", admin.as_str()) }),
        ),
        ("the scope of an API key", "/v1/locks", &of_other, Value::Null),
    ] {
        say(what, path, authorization, body).await;
    }

    let lease = format!("lease-{CANARY}");
    let held = say("a grant", locks, &good, json!({ "lease_id": lease, "max_hold_ms": 60_000 })).await;
    assert_eq!(held["lease_id"], lease);
    let no_stamp = json!({ "stamp": CANARY, "outcome": "success" });
    for (what, path, body) in [
        ("a refusal", locks, json!({})),
        ("a lease id of another key", "/v1/locks/free/renew", json!({ "lease_id": lease })),
        ("a lease id with a space", "/v1/locks/k/renew", json!({ "lease_id": format!("{lease} ") })),
        ("a lease id that is used with other terms", locks, json!({ "lease_id": lease, "mode": "shared" })),
        ("no ticket", locks, json!({ "ticket": CANARY })),
        ("a ticket of another type", locks, json!({ "ticket": { "t": CANARY } })),
        ("no stamp", "/v1/operations/0123456789abcdef0123456789abcdef/post", no_stamp),
        ("contents that cannot be", pre, json!({ "operation": "pay", "contents": [CANARY, 1e300] })),
        ("contents without an operation", pre, json!({ "contents": CANARY })),
    ] {
        say(what, path, &good, body).await;
    }
    let pay =
        |amount: u64| json!({ "operation": "pay", "contents": { "card": CANARY }, "checked": { "amount": amount } });
    let go = say("a go", pre, &good, pay(1)).await;
    say("operation in progress", pre, &good, pay(1)).await;
    say("other contents", pre, &good, pay(2)).await;
    let (post, stamp) = (format!("/v1/operations/{}/post", go["id"].as_str().unwrap()), go["stamp"].as_str().unwrap());
    say("a success", &post, &good, json!({ "stamp": stamp, "outcome": "success", "result": { "receipt": 1 } })).await;
    say("a conflict", &post, &good, json!({ "stamp": stamp, "outcome": "failure" })).await;

    let get = |path: &str| http().get(format!("{}{path}", node.base_url())).header("authorization", &good);
    let answer = send(get("/v1/locks").header("x-request-id", admin.as_str())).await;
    heard.push(("an API key as a request id".to_owned(), format!("{:?}", answer.headers)));
    // What an operator sees, in answers of any status.
    for path in ["/metrics", "/v1/admin/engines", "/v1/admin/apps", "/v1/admin/api-keys", "/readyz"] {
        heard.push((path.to_owned(), send(get(path)).await.body.to_string()));
    }
    let is_logged = || async { ["DEBUG", "0101010101"].iter().all(|text| node.log().contains(text)) };
    assert!(eventually(std::time::Duration::from_secs(30), is_logged).await, "{}", node.log());
    let log = node.log();
    // A stamp is secret too, and so is the ticket of a wait.
    assert!(!log.contains(stamp) && !log.contains(&lease));
    heard.push(("the log".to_owned(), log));
    drop(node);

    heard.retain(|(_, said)| said.contains(CANARY));
    assert!(heard.is_empty(), "{heard:#?}");
}
