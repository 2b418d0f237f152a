//! `latchgate-bench load`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Output;

use latchgate_testkit::node::{Node, binary};
use latchgate_testkit::{free_port, postgres, redis};
use serde_json::{Value, json};
use tokio::process::Command;

async fn load(url: &str, args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchgate-bench"));
    let ended = command.env_clear().arg("load").args(["--url", url]).args(args).kill_on_drop(true).output();
    let Output { status, stdout, stderr } = ended.await.unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// For errors only: a time on a busy machine means nothing.
#[tokio::test]
async fn every_workload_runs_without_an_error() {
    let node = Node::start(binary(), &[]).await;
    let workloads = ["repeated", "fresh", "hot", "idle", "renewals", "held", "gate", "gate-durable"];
    let few = ["--connections", "4", "--polls", "20", "--leases", "20", "--every", "5s", "--json"];
    let second = ["--duration", "1s", "--warmup", "0s"];
    let (is_done, out, err) = load(&node.base_url(), &[&workloads[..], &few, &second].concat()).await;
    assert!(is_done, "{out}\n{err}");
    let reports: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done: Vec<&str> = reports.iter().map(|report| report["workload"].as_str().unwrap()).collect();
    assert_eq!(done, workloads);
    assert!(reports.iter().all(|report| report["errors"] == json!({})), "{out}");

    // An open loop, as a table.
    let (is_done, out, err) = load(&node.base_url(), &[&["repeated", "--rate", "20"][..], &second].concat()).await;
    assert!(is_done && err.contains("repeated, 1 s") && out.contains("PER SECOND"), "{out}\n{err}");

    // The same pairs without Latchgate.
    for direct in [redis::shared_url(), postgres::shared_database().await] {
        let pairs = ["repeated", "fresh", "--connections", "4", "--json", "--direct", &direct];
        let (is_done, out, err) = load(&node.base_url(), &[&pairs[..], &second].concat()).await;
        assert!(is_done, "{out}\n{err}");
        let reports = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let done = reports.map(|report| (report["workload"].clone(), report["operations"].as_u64() > Some(0)));
        let expected = ["repeated", "repeated, direct", "fresh", "fresh, direct"];
        assert_eq!(done.collect::<Vec<_>>(), expected.map(|workload| (json!(workload), true)));
    }
}

#[tokio::test]
async fn a_load_that_measures_nothing_fails_and_says_why() {
    let away = format!("http://127.0.0.1:{}", free_port());
    for (args, reason) in [
        (["repeated", "--duration", "1s"], "refused"),
        (["repeated", "--duration", "0s"], "at least 1ms"),
        (["renewals", "--every", "0s"], "at least 1ms"),
    ] {
        let (is_done, out, err) = load(&away, &args).await;
        assert!(!is_done && out.is_empty() && err.contains(reason), "{out}\n{err}");
    }
}
