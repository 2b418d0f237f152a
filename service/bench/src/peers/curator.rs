//! Apache Curator's mutex on ZooKeeper: a Java program that stays for the whole run, so that its virtual machine is warm.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail};
use latchgate_load::cpu::{Usage, Watched};
use latchgate_load::report::{Errors, Quantiles};
use latchgate_load::work::{Report, Workload};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::side::Load;

pub struct Curator {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// What the program answers: counts of the measurement, and latencies in µs.
#[derive(Deserialize)]
struct Answer {
    operations: u64,
    acquire: [u64; 3],
    release: [u64; 3],
    least: u64,
    most: u64,
    failures: u64,
}

impl Curator {
    pub fn start(command: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", command[0]))?;
        let input = child.stdin.take().context("it has an input")?;
        let output = BufReader::new(child.stdout.take().context("it has an output")?).lines();
        Ok(Self { _child: child, input, output })
    }

    pub async fn measure(&mut self, load: Load, watched: &Watched) -> anyhow::Result<Report> {
        let keys = match load.workload {
            Workload::Repeated => "repeated",
            Workload::Fresh => "fresh",
            Workload::Hot => "hot",
            other => bail!("Curator has no workload {other:?}"),
        };
        let (threads, warmup, measured) = (load.connections, load.warmup.as_millis(), load.measured.as_millis());
        let from = Instant::now() + load.warmup;
        let watching = watched.over(from, from + load.measured);
        self.input.write_all(format!("{keys} {threads} {warmup} {measured}\n").as_bytes()).await?;
        let line = self.output.next_line().await?.context("the program has ended")?;
        let answer: Answer = serde_json::from_str(&line).with_context(|| line.clone())?;
        let Usage { node_us, store_us } = watching.await.unwrap_or_default();
        let quantiles = |[mean, p50, p99]: [u64; 3]| Quantiles { mean: mean as f64, p50, p99, ..Quantiles::default() };
        let each = |us: Option<f64>| us.filter(|_| answer.operations > 0).map(|us| us / answer.operations as f64);
        let mut errors = Errors::new();
        if answer.failures > 0 {
            errors.insert("failed".to_owned(), answer.failures);
        }
        Ok(Report {
            workload: load.workload,
            connections: load.connections,
            seconds: load.measured.as_secs_f64(),
            rate: None,
            operations: answer.operations,
            operations_per_second: answer.operations as f64 / load.measured.as_secs_f64(),
            latency_us: [("acquire", quantiles(answer.acquire)), ("release", quantiles(answer.release))].into(),
            node_cpu_us: each(node_us),
            store_cpu_us: each(store_us),
            also: BTreeMap::from([("grants_min", answer.least as f64), ("grants_max", answer.most as f64)]),
            errors,
        })
    }
}
