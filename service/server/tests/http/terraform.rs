//! The locks in the protocol of Terraform's `http` backend.

use std::path::Path;

use latchgate_testkit::node::Node;
use reqwest::header::HeaderValue;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::access::world::{ADMIN, Caller, guarded};
use crate::client::{Answer, acquire, embedded, inspect, owners, send, two_nodes};
use crate::small_server::read_request;

/// What Terraform 1.11 sends.
fn lock_info(id: &str, who: &str) -> Value {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": who, "Version": "1.11.4",
        "Created": "2026-11-22T10:00:00.123456789Z", "Path": ""
    })
}

async fn terraform(node: &Node, method: &str, path: &str, info: &Value) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let url = format!("{}/v1/terraform/{path}", node.base_url());
    send(Client::new().request(method, url).body(info.to_string())).await
}

#[tokio::test]
async fn terraform_is_refused_with_the_lock_info_of_the_holder_and_unlocks_by_its_id() {
    let (one, other) = two_nodes().await;
    let (mine, theirs) = (lock_info("6d1c53f2-0b5e", "ann@host"), lock_info("c0ffee00-ffff", "bob@host"));
    for (lock, unlock) in [("LOCK", "UNLOCK"), ("POST", "DELETE")] {
        let mut mine = mine.clone();
        mine["ID"] = json!(format!("{}-{lock}", mine["ID"].as_str().unwrap()));
        let granted = terraform(&one, lock, "live%2Fnetwork", &mine).await;
        assert_eq!((granted.status.as_u16(), &granted.body["key"]), (200, &json!("terraform/live/network")));
        // By default for as long as a node permits, because Terraform does not renew.
        assert!(granted.body["ttl_ms"].as_u64().unwrap() > 3_500_000, "{}", granted.body);
        // Terraform repeats a request whose answer was lost.
        assert_eq!(terraform(&other, lock, "live/network", &mine).await.token(), granted.token());

        let refused = terraform(&other, lock, "live/network", &theirs).await;
        refused.assert_problem(423, "lock-held");
        for (field, value) in mine.as_object().unwrap() {
            assert_eq!(&refused.body[field], value, "{field}");
        }
        assert_eq!(owners(&one, "terraform%2Flive%2Fnetwork").await, ["ann@host"]);
        terraform(&other, unlock, "live/network", &theirs).await.assert_problem(410, "lease-lost");
        let unlocked = terraform(&other, unlock, "live/network", &mine).await;
        assert_eq!((unlocked.status.as_u16(), &unlocked.body["still_held"]), (200, &json!(0)));
        assert_eq!(inspect(&one, "terraform%2Flive%2Fnetwork").await["held"], false);
    }
}

#[tokio::test]
async fn terraform_can_read_a_refusal_by_a_holder_of_another_kind_and_a_long_lock_info_is_shortened() {
    let node = embedded().await;
    acquire(&node, "terraform%2Fa", json!({ "owner": "a script" })).await;
    let refused = terraform(&node, "LOCK", "a", &lock_info("x", "ann")).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!((&refused.body["ID"], &refused.body["Who"]), (&json!(""), &json!("a script")));
    assert_eq!(refused.body["Created"], refused.body["holders"][0]["granted_at"]);

    let mut long = lock_info("y", "ann");
    long["Info"] = json!("reason ".repeat(500));
    assert_eq!(terraform(&node, "LOCK", "b?ttl_ms=60000", &long).await.status, 200);
    let refused = terraform(&node, "LOCK", "b", &lock_info("z", "bob")).await;
    assert_eq!((&refused.body["ID"], &refused.body["Who"]), (&json!("y"), &json!("ann")));
    assert!(refused.body["holders"][0]["ttl_ms"].as_u64().unwrap() <= 60_000);

    assert_eq!(terraform(&node, "LOCK", "c", &json!({})).await.body["field"], "ID");
    terraform(&node, "PUT", "c", &long).await.assert_problem(405, "method-not-allowed");
    terraform(&node, "LOCK", "", &long).await.assert_problem(404, "not-found");
    let options = terraform(&node, "OPTIONS", "c", &Value::Null).await;
    assert_eq!(
        (options.status.as_u16(), &options.headers["allow"]),
        (204, &HeaderValue::from_static("LOCK,POST,UNLOCK,DELETE,OPTIONS"))
    );
    // By force.
    let url = format!("{}/v1/terraform/b", node.base_url());
    let forced = send(Client::new().delete(url)).await;
    assert_eq!((forced.status.as_u16(), &forced.body), (200, &json!({ "still_held": 0 })));
    assert_eq!(inspect(&node, "terraform%2Fb").await["held"], false);
}

/// Also with an API key as the password, which is all that Terraform can send.
#[tokio::test]
async fn the_real_terraform_applies_under_the_lock_and_waits_for_it() {
    if tokio::process::Command::new("terraform").arg("version").output().await.is_err() {
        eprintln!("terraform is not installed");
        return;
    }
    let node = guarded(&[]).await;
    let states = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let state = format!("http://{}", states.local_addr().unwrap());
    tokio::spawn(keep_state(states));
    let dir = tempfile::tempdir().unwrap();
    let lock = format!("{}/v1/terraform/network", node.base_url());
    let configuration = format!(
        r#"terraform {{
             backend "http" {{
               address        = "{state}"
               lock_address   = "{lock}"
               unlock_address = "{lock}"
               username       = "terraform"
               password       = "{ADMIN}"
             }}
           }}
           resource "terraform_data" "example" {{ input = "a" }}"#
    );
    std::fs::write(dir.path().join("main.tf"), configuration).unwrap();
    run_terraform(dir.path(), &["init"]).await.unwrap();
    run_terraform(dir.path(), &["apply", "-auto-approve"]).await.unwrap();

    let operator = Caller::operator(&node);
    let history = operator.get("/v1/locks/terraform%2Fnetwork/history").await;
    let kinds: Vec<&str> =
        history.body["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert!(kinds.starts_with(&["released", "granted"]), "{kinds:?}");

    let id = "11111111-2222-3333-4444-555555555555";
    let body = lock_info(id, "ann@host");
    let held = Client::new().post(&lock).bearer_auth(ADMIN).body(body.to_string());
    assert_eq!(send(held).await.status, 200);
    let refused = run_terraform(dir.path(), &["apply", "-auto-approve"]).await.unwrap_err();
    assert!(refused.contains(id), "{refused}");
    // It does not send the id.
    run_terraform(dir.path(), &["force-unlock", "-force", id]).await.unwrap();
    run_terraform(dir.path(), &["apply", "-auto-approve"]).await.unwrap();
}

/// What the command has printed, if it succeeds or if it fails.
async fn run_terraform(dir: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = tokio::process::Command::new("terraform");
    command.args(args).args(["-no-color"]).current_dir(dir).env("CHECKPOINT_DISABLE", "1").kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(text) }
}

/// A store for one state: the other half of an `http` backend.
async fn keep_state(listener: TcpListener) {
    let mut state = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let Some(request) = read_request(&mut stream).await else { continue };
        if request.method == "POST" {
            state = request.body;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
            continue;
        }
        let status = if state.is_empty() { "404 Not Found" } else { "200 OK" };
        let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", state.len());
        let _ = stream.write_all(&[head.as_bytes(), &state].concat()).await;
    }
}

#[tokio::test]
async fn terraform_sends_an_api_key_as_a_password_and_only_to_its_own_paths() {
    let node = guarded(&[]).await;
    let caller = Caller::with(&node, json!({ "app": "infra", "scopes": ["locks"], "prefixes": ["terraform/"] })).await;
    let ask = |path: &str, password: &str| {
        let request = Client::new().post(format!("{}{path}", node.base_url()));
        send(request.basic_auth("any", Some(password)).body(lock_info("x", "ann").to_string()))
    };
    ask("/v1/terraform/network", "wrong").await.assert_problem(401, "unauthorized");
    assert_eq!(ask("/v1/terraform/network", &caller.key).await.status, 200);
    ask("/v1/locks/terraform%2Fnetwork/acquire", &caller.key).await.assert_problem(401, "unauthorized");
    let force_unlock = caller.call(Method::DELETE, "/v1/terraform/network", Value::Null).await;
    force_unlock.assert_problem(403, "forbidden");
    assert_eq!(force_unlock.body["scope"], "admin");

    let caller = Caller::with(&node, json!({ "app": "infra", "scopes": ["locks"], "prefixes": ["jobs/"] })).await;
    ask("/v1/terraform/network", &caller.key).await.assert_problem(403, "forbidden");
}
