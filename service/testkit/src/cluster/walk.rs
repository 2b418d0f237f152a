//! What nginx and the nodes behind it do together. Apart from nginx, the tests of the server show it.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use super::until_ready;
use crate::eventually;
use crate::tier::ask::ask;
use crate::tier::parts::writers;
use crate::tier::{NODES, Tier, say};

const WITHIN: Duration = Duration::from_secs(60);
/// The longest bodies that a node takes.
const BODY_MAX: usize = 131_072;
const LEASES_BODY_MAX: usize = 576_000;

pub async fn run(tier: Tier) -> anyhow::Result<()> {
    keys_and_bodies_pass_as_they_are(&tier).await?;
    a_client_does_not_choose_its_address_in_audit_records(&tier).await?;
    a_killed_node_is_not_missed(&tier).await?;
    without_nodes_nginx_answers_with_a_problem(&tier).await?;
    let room = tier.parts.file("");
    drop(tier);
    let left = || writers(|log| log.starts_with(&room));
    // What was killed is there until its parent has seen its end.
    ensure!(eventually(WITHIN, async || left().is_empty()).await, "these processes still run: {:?}", left());
    say("the cluster passes its tests");
    Ok(())
}

/// Through nginx, on a connection of its own. The code of a problem is `""` for a success.
async fn call(tier: &Tier, status: u16, code: &str, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
    let reply = ask(&tier.url, method, path, body, WITHIN).await;
    let is_expected = reply.status == status && reply.body["code"].as_str().unwrap_or_default() == code;
    ensure!(is_expected, "{method} {path}: {} where {status} {code} was expected: {}", reply.status, reply.text);
    Ok(reply.body)
}

async fn acquire(tier: &Tier, key: &str) -> anyhow::Result<Value> {
    call(tier, 200, "", "POST", &format!("/v1/locks/{key}/acquire"), r#"{"ttl_ms":300000}"#).await
}

async fn refused(tier: &Tier, key: &str) -> anyhow::Result<Value> {
    call(tier, 423, "lock-held", "POST", &format!("/v1/locks/{key}/acquire"), "").await
}

async fn keys_and_bodies_pass_as_they_are(tier: &Tier) -> anyhow::Result<()> {
    let grant = acquire(tier, "a%2F%2Fb%20%C3%BC/c").await?;
    ensure!(grant["key"] == "a//b ü/c", "the key has become {}", grant["key"]);
    refused(tier, "a//b%20%c3%bc%2Fc").await?;
    acquire(tier, &"%C3%BC".repeat(256)).await?;
    let (open, close) = (r#"{"operation":"o","contents":""#, r#""}"#);
    let contents = |length: usize| format!("{open}{}{close}", " ".repeat(length - open.len() - close.len()));
    let preview = "/v1/operations/preview";
    call(tier, 200, "", "POST", preview, &contents(BODY_MAX)).await?;
    call(tier, 413, "body-too-large", "POST", preview, &contents(BODY_MAX + 1)).await?;
    let leases = |length: usize| format!(r#"{{"leases":[]{}}}"#, " ".repeat(length - 13));
    call(tier, 400, "invalid-request", "POST", "/v1/leases/renew", &leases(LEASES_BODY_MAX)).await?;
    call(tier, 413, "body-too-large", "POST", "/v1/leases/renew", &leases(LEASES_BODY_MAX + 1)).await.map(drop)
}

async fn a_client_does_not_choose_its_address_in_audit_records(tier: &Tier) -> anyhow::Result<()> {
    // A header behind the path.
    let path = "/v1/locks/audited HTTP/1.1\r\nx-forwarded-for: 203.0.113.9\r\nx-rest:";
    ask(&tier.url, "DELETE", path, "", WITHIN).await;
    let logs =
        NODES.map(|node| fs::read_to_string(tier.parts.file(&format!("{node}.log"))).unwrap_or_default()).concat();
    let records: Vec<&str> = logs.lines().filter(|line| line.contains("audited")).collect();
    ensure!(!records.is_empty(), "there is no audit record");
    ensure!(!records.iter().any(|line| line.contains("203.0.113.9")), "a client has chosen its address: {records:?}");
    Ok(())
}

async fn a_killed_node_is_not_missed(tier: &Tier) -> anyhow::Result<()> {
    let kept = acquire(tier, "kept").await?;
    tier.parts.end("node-2", Signal::SIGKILL).await;
    // If nginx cannot connect to a node, it tries the next one, for any key.
    for n in 1..=30 {
        acquire(tier, &format!("after-{n}")).await?;
    }
    refused(tier, "kept").await?;
    until_ready(tier).await?;
    let body = json!({ "lease_id": kept["lease_id"] }).to_string();
    call(tier, 200, "", "POST", "/v1/locks/kept/release", &body).await.map(drop)
}

async fn without_nodes_nginx_answers_with_a_problem(tier: &Tier) -> anyhow::Result<()> {
    for node in NODES {
        tier.parts.end(node, Signal::SIGKILL).await;
    }
    call(tier, 503, "outcome-unknown", "POST", "/v1/locks/unserved/acquire", "").await?;
    call(tier, 503, "outcome-unknown", "DELETE", "/v1/operations/unserved", "").await?;
    // For clients, it is an outage.
    let once =
        ["once", "unserved", "--retry-for", "1s", "--on-outage", "proceed", "--url", &tier.url, "--", "echo", "ran"];
    let run = Command::new(tier.node_binary(NODES[0])).args(once).output().await?;
    ensure!(run.stdout == b"ran\n", "in an outage, CMD has not run: {run:?}");
    tier.parts.end("nginx", Signal::SIGKILL).await;
    until_ready(tier).await?;
    acquire(tier, "unserved").await.map(drop)
}
