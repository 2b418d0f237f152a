//! `latchgate bench`.

use serde_json::{Value, json};

use crate::world::desk;

/// For errors only: a time on a busy machine means nothing.
#[tokio::test]
async fn every_workload_of_the_bench_runs_without_an_error() {
    let (_node, desk) = desk().await;
    let workloads = ["repeated", "fresh", "hot", "idle", "renewals", "held", "gate", "gate-durable"];
    let few = [
        "--duration",
        "1s",
        "--warmup",
        "0",
        "--connections",
        "4",
        "--polls",
        "20",
        "--leases",
        "20",
        "--every",
        "5s",
        "--json",
    ];
    let ended = desk.run(&[&["bench"][..], &workloads, &few].concat()).ends().await;
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.out, ended.err);
    let reports: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done: Vec<&str> = reports.iter().map(|report| report["workload"].as_str().unwrap()).collect();
    assert_eq!(done, workloads);
    assert!(reports.iter().all(|report| report["errors"] == json!({})), "{}", ended.out);

    // An open loop, as a table.
    let ended = desk.run(&["bench", "repeated", "--rate", "20", "--duration", "1s", "--warmup", "0"]).ends().await;
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.out, ended.err);
    assert!(ended.err.contains("latchgate: repeated, 1 s"), "{}", ended.err);

    // The same pairs without Latchgate.
    let (redis, postgres) =
        (latchgate_testkit::redis::shared_url(), latchgate_testkit::postgres::shared_database().await);
    for direct in [&redis, &postgres] {
        let pairs = ["bench", "repeated", "fresh", "--connections", "4", "--duration", "1s", "--warmup", "0", "--json"];
        let ended = desk.run(&[&pairs[..], &["--direct", direct]].concat()).ends().await;
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.out, ended.err);
        let reports = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let done = reports.map(|report| (report["workload"].clone(), report["operations"].as_u64() > Some(0)));
        let expected = ["repeated", "repeated, direct", "fresh", "fresh, direct"];
        assert_eq!(done.collect::<Vec<_>>(), expected.map(|workload| (json!(workload), true)));
    }

    // As the other commands.
    let away = format!("http://127.0.0.1:{}", latchgate_testkit::free_port());
    let ended = desk.run(&["bench", "repeated", "--duration", "1s", "--url", &away]).ends().await;
    assert_eq!(ended.code, Some(69), "{}", ended.err);
}
