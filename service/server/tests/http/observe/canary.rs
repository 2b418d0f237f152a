//! Secrets put wherever a secret can be, and looked for wherever one could appear. Flags are left out: `ps` shows them, and so
//! every setting with a secret can come from the environment or a file.

use latchgate_core::access::ApiKey;
use latchgate_testkit::eventually;
use latchgate_testkit::node::{Node, NotReady};
use latchgate_testkit::postgres::shared_database;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::client::BIN;

/// Each secret has it.
const CANARY: &str = "5ec4e75ec4e75ec4e75ec4e7";

/// A text of all that the node says.
struct Heard(String);

impl Heard {
    fn add(&mut self, what: &str, text: &str) {
        self.0.push_str(&format!("\n--- {what}:\n{text}"));
    }

    fn assert_clean(&self) {
        if let Some(at) = self.0.find(CANARY) {
            let before = self.0[..at].rfind("\n--- ").unwrap_or(0);
            panic!("a secret is shown: {}", &self.0[before..at + CANARY.len()].trim_start());
        }
    }
}

fn api_key(id: u8) -> ApiKey {
    let mut secret = [0x5e; 32];
    secret[..12].copy_from_slice(&[0x5e, 0xc4, 0xe7, 0x5e, 0xc4, 0xe7, 0x5e, 0xc4, 0xe7, 0x5e, 0xc4, 0xe7]);
    let key = ApiKey::of_random([id; 6], secret);
    assert!(key.as_str().contains(CANARY));
    key
}

/// The URL with the canary as its password.
fn with_password(url: &str) -> String {
    url.replacen("postgres@", &format!("postgres:{CANARY}@"), 1)
}

#[tokio::test]
async fn no_secret_is_shown_in_logs_metrics_and_errors() {
    let mut heard = Heard(String::new());
    let admin = api_key(1);
    let (database, cluster_secret) = (with_password(&shared_database().await), format!("cluster {CANARY}"));
    assert!(database.contains(CANARY));
    let env = [
        ("LATCHGATE_LOCKS", database.as_str()),
        ("LATCHGATE_SECRET", &cluster_secret),
        ("LATCHGATE_ADMIN_API_KEY", admin.as_str()),
        ("LATCHGATE_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization={CANARY}")),
    ];
    let node = Node::start_with(BIN, &["--log", "debug", "--access-log"], &env).await;
    let mut say = async |what: &str, method: Method, path: &str, authorization: &str, body: Value| {
        let request = Client::new().request(method.clone(), format!("{}{path}", node.base_url()));
        let request = request.header("authorization", authorization);
        let request = if method == Method::GET { request } else { request.body(body.to_string()) };
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status(), format!("{:?}", answer.headers()));
        let text = answer.text().await.unwrap();
        // The client's own secrets come back to it in an answer that lets it proceed, and nowhere else.
        if !status.is_success() {
            heard.add(what, &format!("{status} {headers} {text}"));
        }
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    let good = format!("Bearer {}", admin.as_str());
    let other = say("another API key", Method::POST, "/v1/admin/api-keys", &good, json!({ "scopes": ["locks"] })).await;
    let of_other = format!("Bearer {}", other["api_key"].as_str().unwrap());
    let unknown = format!("Bearer {}", api_key(3).as_str());
    let locks = "/v1/locks/k/acquire";
    for (what, authorization) in [
        ("an unknown API key", unknown.as_str()),
        ("half an API key", &good[..good.len() - 2]),
        ("another scheme", &format!("Basic {CANARY}")),
    ] {
        say(what, Method::POST, locks, authorization, json!({})).await;
    }
    say("an API key in a URL", Method::GET, &format!("/v1/locks?key={}", admin.as_str()), &good, json!({})).await;
    let revoke = json!({ "reason": format!("with {}", admin.as_str()) });
    say("an API key in a reason", Method::POST, "/v1/locks/k/revoke", &good, revoke).await;
    say("the scope of an API key", Method::GET, "/v1/locks", &of_other, json!({})).await;

    let lease = format!("lease-{CANARY}");
    let held = say("a grant", Method::POST, locks, &good, json!({ "lease_id": lease, "max_hold_ms": 60_000 })).await;
    assert_eq!(held["lease_id"], lease);
    for (what, path, body) in [
        ("a refusal", locks, json!({})),
        ("a lease id of another key", "/v1/locks/free/renew", json!({ "lease_id": lease })),
        ("a lease id with a space", "/v1/locks/k/renew", json!({ "lease_id": format!("{lease} ") })),
        ("a lease id as a list", "/v1/locks/k/renew", json!({ "lease_id": [lease] })),
        ("a lease id that is used with other terms", locks, json!({ "lease_id": lease, "mode": "shared" })),
        ("no ticket", locks, json!({ "ticket": CANARY })),
        ("a ticket of another type", locks, json!({ "ticket": { "t": CANARY } })),
        ("metadata of another type", locks, json!({ "metadata": CANARY })),
        (
            "no stamp",
            "/v1/operations/0123456789abcdef0123456789abcdef/post",
            json!({ "stamp": CANARY, "outcome": "success" }),
        ),
        ("contents that cannot be", "/v1/operations/pre", json!({ "operation": "pay", "contents": [CANARY, 1e300] })),
        ("contents without an operation", "/v1/operations/pre", json!({ "contents": CANARY })),
    ] {
        say(what, Method::POST, path, &good, body).await;
    }
    let pay =
        |amount: u64| json!({ "operation": "pay", "contents": { "card": CANARY }, "checked": { "amount": amount } });
    let go = say("a go", Method::POST, "/v1/operations/pre", &good, pay(1)).await;
    say("operation in progress", Method::POST, "/v1/operations/pre", &good, pay(1)).await;
    say("other contents", Method::POST, "/v1/operations/pre", &good, pay(2)).await;
    let post = format!("/v1/operations/{}/post", go["id"].as_str().unwrap());
    let success = json!({ "stamp": go["stamp"], "outcome": "success", "result": { "receipt": 1 } });
    say("a success", Method::POST, &post, &good, success).await;
    let stamp = go["stamp"].as_str().unwrap().to_owned();
    say("a conflict", Method::POST, &post, &good, json!({ "stamp": stamp, "outcome": "failure" })).await;

    let request = Client::new().get(format!("{}/v1/locks", node.base_url())).header("authorization", &good);
    let answer = request.header("x-request-id", admin.as_str()).send().await.unwrap();
    heard.add("an API key as a request id", &format!("{:?}", answer.headers()));
    // What an operator sees, in answers of any status.
    for path in ["/metrics", "/v1/admin/engines", "/v1/admin/apps", "/v1/admin/api-keys", "/readyz"] {
        let answer =
            Client::new().get(format!("{}{path}", node.base_url())).header("authorization", &good).send().await;
        heard.add(path, &answer.unwrap().text().await.unwrap());
    }
    let is_logged = || async { ["DEBUG", "0101010101"].iter().all(|text| node.log().contains(text)) };
    assert!(eventually(std::time::Duration::from_secs(30), is_logged).await, "{}", node.log());
    let log = node.log();
    // A stamp is secret too, and so is the ticket of a wait.
    assert!(!log.contains(&stamp) && !log.contains(&lease));
    heard.add("the log", &log);
    drop(node);

    // Nodes that cannot start say why.
    let nowhere = with_password("postgres://postgres@127.0.0.1:9/postgres");
    let redis = format!("redis://:{CANARY}@127.0.0.1:9");
    let otlp = format!("http://user:{CANARY}@127.0.0.1:9");
    for (name, value) in [
        ("LATCHGATE_LOCKS", nowhere.as_str()),
        ("LATCHGATE_GATE", &redis),
        ("LATCHGATE_LOCKS", &redis),
        ("LATCHGATE_LOCKS", &format!("postgress://u:{CANARY}@h/d")),
        ("LATCHGATE_ADMIN_API_KEY", CANARY),
        ("LATCHGATE_OTLP_ENDPOINT", &otlp),
    ] {
        let started = Node::try_start(BIN, &["--log", "debug"], &[(name, value)]).await;
        let Err(NotReady { log, .. }) = started else { panic!("the node starts with {name}") };
        heard.add(&format!("a node with a bad {name}"), &log);
    }
    heard.assert_clean();
}
