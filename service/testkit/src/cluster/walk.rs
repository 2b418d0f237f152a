//! A cluster that is started, used through nginx, broken in parts, and taken down.

use std::process;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::ask::{ask, get};
use super::command::{Balance, Cluster, Kind, Place, until};
use super::say;
use super::stores::NODES;

const WITHIN: Duration = Duration::from_secs(60);
/// The longest bodies that a node takes.
const BODY_MAX: usize = 131_072;
const LEASES_BODY_MAX: usize = 576_000;

pub async fn run(place: &Place) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("latchgate-test-").tempdir()?;
    // nginx is on this machine.
    let place = place.within(dir.path(), &[("LATCHGATE_TRUSTED_PROXIES", "127.0.0.0/8")]);
    let walked = Walk { place: &place }.run().await;
    if walked.is_err() {
        Cluster::down(&place).await?;
    }
    walked?;
    say("the cluster passes its tests");
    Ok(())
}

struct Walk<'a> {
    place: &'a Place,
}

impl Walk<'_> {
    async fn run(&self) -> anyhow::Result<()> {
        let cluster = self.up(None).await?;
        a_waiter_gets_what_another_connection_releases(&cluster, "by-key").await?;
        a_waiter_that_hangs_up_leaves_the_queue(&cluster).await?;
        keys_and_bodies_pass_as_they_are(&cluster).await?;
        the_gate_refuses_what_is_running(&cluster).await?;
        a_client_does_not_choose_its_address_in_audit_records(&cluster).await?;
        self.a_killed_node_is_not_missed(&cluster).await?;
        self.without_nodes_nginx_answers_with_a_problem(&cluster).await?;
        self.grants_survive_restarts_of_all_servers(&cluster).await?;
        let cluster = self.up(Some(Balance::RoundRobin)).await?;
        for n in 1..=3 {
            a_waiter_gets_what_another_connection_releases(&cluster, &format!("round-robin-{n}")).await?;
        }
        self.nothing_is_left(&cluster).await
    }

    async fn up(&self, balance: Option<Balance>) -> anyhow::Result<Cluster> {
        Cluster::up(self.place, Kind::Simple, balance).await
    }

    async fn a_killed_node_is_not_missed(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let lease = lease(&call(cluster, 200, "POST", "/v1/locks/kept/acquire", r#"{"ttl_ms":300000}"#).await?);
        cluster.parts.end("node-2", Some(Signal::SIGKILL)).await;
        // If nginx cannot connect to a node, it tries the next one, for any key.
        for n in 1..=30 {
            call(cluster, 200, "POST", &format!("/v1/locks/after-{n}/acquire"), "").await?;
        }
        call(cluster, 423, "POST", "/v1/locks/kept/acquire", "").await?;
        self.up(None).await?;
        release(cluster, "kept", &lease).await
    }

    async fn without_nodes_nginx_answers_with_a_problem(&self, cluster: &Cluster) -> anyhow::Result<()> {
        for node in NODES {
            cluster.parts.end(node, Some(Signal::SIGKILL)).await;
        }
        refused(cluster, 503, "outcome-unknown", "POST", "/v1/locks/unserved/acquire", "").await?;
        refused(cluster, 503, "outcome-unknown", "DELETE", "/v1/operations/unserved", "").await?;
        cluster.parts.end("nginx", Some(Signal::SIGKILL)).await;
        self.up(None).await?;
        call(cluster, 200, "POST", "/v1/locks/unserved/acquire", "").await.map(drop)
    }

    async fn grants_survive_restarts_of_all_servers(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let lease = lease(&call(cluster, 200, "POST", "/v1/locks/outlives/acquire", r#"{"ttl_ms":300000}"#).await?);
        let operation = r#"{"operation":"charge","contents":"outlives","ttl_ms":600000}"#;
        call(cluster, 201, "POST", "/v1/operations/pre", operation).await?;
        // All but nginx: without any running part, the cluster's data would be removed.
        for name in ["redis", "postgres"].iter().chain(&NODES) {
            cluster.parts.end(name, Some(Signal::SIGKILL)).await;
        }
        self.up(None).await?;
        call(cluster, 423, "POST", "/v1/locks/outlives/acquire", "").await?;
        refused(cluster, 409, "operation-in-progress", "POST", "/v1/operations/pre", operation).await?;
        release(cluster, "outlives", &lease).await
    }

    async fn nothing_is_left(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let room = cluster.parts.file("");
        Cluster::down(self.place).await?;
        ensure!(!room.exists() && !self.place.link.is_symlink(), "there is still something in {}", room.display());
        let writes =
            |pid: &u32| std::fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|output| output.starts_with(&room));
        let left: Vec<u32> =
            crate::process::all().into_iter().filter(|pid| *pid != process::id() && writes(pid)).collect();
        ensure!(left.is_empty(), "these processes still run: {left:?}");
        Ok(())
    }
}

/// Through nginx, on a connection of its own.
async fn call(cluster: &Cluster, status: u16, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
    let reply = ask(&cluster.parts.url("nginx"), method, path, body, WITHIN).await;
    ensure!(reply.status == status, "{method} {path}: {} where {status} was expected: {}", reply.status, reply.text);
    Ok(reply.body)
}

async fn refused(
    cluster: &Cluster,
    status: u16,
    code: &str,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<()> {
    let answer = call(cluster, status, method, path, body).await?;
    ensure!(answer["code"] == code, "{method} {path}: the code is not {code}: {answer}");
    Ok(())
}

fn lease(answer: &Value) -> String {
    answer["lease_id"].as_str().unwrap_or_default().to_owned()
}

async fn release(cluster: &Cluster, key: &str, lease: &str) -> anyhow::Result<()> {
    let body = json!({ "lease_id": lease }).to_string();
    call(cluster, 200, "POST", &format!("/v1/locks/{key}/release"), &body).await.map(drop)
}

/// Until one of the nodes reports so many waiters.
async fn until_waiting(cluster: &Cluster, key: &str, waiters: u64) -> anyhow::Result<()> {
    let waits = async || {
        for node in NODES {
            let reply = get(&cluster.parts.url(node), &format!("/v1/locks/{key}"), WITHIN).await;
            if reply.body["waiters"] == waiters {
                return true;
            }
        }
        false
    };
    until(&format!("{key} has {waiters} waiters"), 30, waits).await
}

async fn a_waiter_gets_what_another_connection_releases(cluster: &Cluster, key: &str) -> anyhow::Result<()> {
    let path = format!("/v1/locks/{key}/acquire");
    let held = lease(&call(cluster, 200, "POST", &path, "").await?);
    call(cluster, 423, "POST", &path, "").await?;
    let release_it = async {
        until_waiting(cluster, key, 1).await?;
        release(cluster, key, &held).await
    };
    let (granted, released) = tokio::join!(call(cluster, 200, "POST", &path, r#"{"wait_ms":50000}"#), release_it);
    released?;
    release(cluster, key, &lease(&granted?)).await
}

async fn a_waiter_that_hangs_up_leaves_the_queue(cluster: &Cluster) -> anyhow::Result<()> {
    let path = "/v1/locks/left/acquire";
    let held = lease(&call(cluster, 200, "POST", path, "").await?);
    tokio::select! {
        granted = call(cluster, 200, "POST", path, r#"{"wait_ms":50000}"#) => drop(granted.context("it should wait")?),
        waiting = until_waiting(cluster, "left", 1) => waiting?,
    }
    until_waiting(cluster, "left", 0).await?;
    release(cluster, "left", &held).await
}

async fn keys_and_bodies_pass_as_they_are(cluster: &Cluster) -> anyhow::Result<()> {
    let answer = call(cluster, 200, "POST", "/v1/locks/a%2F%2Fb%20%C3%BC/c/acquire", "").await?;
    ensure!(answer["key"] == "a//b ü/c", "the key has become {}", answer["key"]);
    call(cluster, 423, "POST", "/v1/locks/a//b%20%c3%bc%2Fc/acquire", "").await?;
    call(cluster, 200, "POST", &format!("/v1/locks/{}/acquire", "%C3%BC".repeat(256)), "").await?;
    let frame = r#"{"operation":"o","contents":""}"#;
    let contents = |length: usize| frame.replace("\"\"", &format!("\"{}\"", " ".repeat(length - frame.len())));
    call(cluster, 200, "POST", "/v1/operations/preview", &contents(BODY_MAX)).await?;
    refused(cluster, 413, "body-too-large", "POST", "/v1/operations/preview", &contents(BODY_MAX + 1)).await?;
    let leases = |length: usize| format!("{:length$}", r#"{"leases":[]}"#);
    refused(cluster, 400, "invalid-request", "POST", "/v1/leases/renew", &leases(LEASES_BODY_MAX)).await?;
    refused(cluster, 413, "body-too-large", "POST", "/v1/leases/renew", &leases(LEASES_BODY_MAX + 1)).await
}

async fn the_gate_refuses_what_is_running(cluster: &Cluster) -> anyhow::Result<()> {
    let operation = r#"{"operation":"charge","contents":{"order":42}}"#;
    let claim = call(cluster, 201, "POST", "/v1/operations/pre", operation).await?;
    let id = claim["id"].as_str().context("an id")?;
    refused(cluster, 409, "operation-in-progress", "POST", "/v1/operations/pre", operation).await?;
    let success = json!({ "stamp": claim["stamp"], "outcome": "success" }).to_string();
    call(cluster, 200, "POST", &format!("/v1/operations/{id}/post"), &success).await?;
    refused(cluster, 409, "operation-duplicate", "POST", "/v1/operations/pre", operation).await?;
    call(cluster, 200, "DELETE", &format!("/v1/operations/{id}"), "").await.map(drop)
}

async fn a_client_does_not_choose_its_address_in_audit_records(cluster: &Cluster) -> anyhow::Result<()> {
    // A header behind the path.
    let path = "/v1/locks/audited HTTP/1.1\r\nx-forwarded-for: 203.0.113.9\r\nx-rest:";
    ask(&cluster.parts.url("nginx"), "DELETE", path, "", WITHIN).await;
    let logs: String = NODES
        .iter()
        .map(|node| std::fs::read_to_string(cluster.parts.file(&format!("{node}.log"))))
        .collect::<Result<_, _>>()?;
    let records: Vec<&str> = logs.lines().filter(|line| line.contains("audited")).collect();
    ensure!(!records.is_empty(), "there is no audit record");
    ensure!(!records.iter().any(|line| line.contains("203.0.113.9")), "a client has chosen its address: {records:?}");
    Ok(())
}
