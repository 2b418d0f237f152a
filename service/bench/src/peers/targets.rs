//! What is to be reached, beside what was measured.

use std::fmt::Write as _;

use latchgate_load::work::{Report, Workload};

use super::run::{FEWER_CONNECTIONS, Results};
use super::table::{Spread, p50, rate, ratio};

const CONNECTIONS: usize = 128;

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

struct Line {
    work: &'static str,
    target: &'static str,
    bound: Bound,
    measured: Option<Spread>,
}

/// Which measurement: of a side, with so many connections.
type Which<'a> = (&'a str, Workload, usize);

impl Results {
    fn ratio(&self, of: Which, to: Which, value: impl Fn(&Report) -> Option<f64>) -> Option<Spread> {
        ratio(self.entry(of.0, of.1, of.2)?, self.entry(to.0, to.1, to.2)?, value)
    }

    fn rates(&self, of: Which, to: Which) -> Option<Spread> {
        self.ratio(of, to, rate)
    }

    fn value(&self, (side, workload, connections): Which, of: impl Fn(&Report) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.entry(side, workload, connections)?.values(of))
    }
}

pub fn table(results: &Results) -> String {
    let mut text = "| work | target | measured | |\n| --- | --- | --- | --- |\n".to_owned();
    for Line { work, target, bound, measured } in lines(results) {
        let (measured, verdict) = match measured {
            None => ("–".to_owned(), "not measured"),
            Some(spread) => {
                let is_met = match bound {
                    Bound::AtLeast(least) => spread.median >= least,
                    Bound::AtMost(most) => spread.median <= most,
                };
                (spread.text(), if is_met { "met" } else { "missed" })
            }
        };
        let _ = writeln!(text, "| {work} | {target} | {measured} | {verdict} |");
    }
    text
}

fn lines(results: &Results) -> Vec<Line> {
    use Bound::{AtLeast, AtMost};
    use Workload::{Fresh, Gate, GateDurable, Held, Hot, Idle, Renewals, Repeated};
    let r = results;
    let line = |work, target, bound, measured| Line { work, target, bound, measured };
    let repeated = |side| (side, Repeated, CONNECTIONS);
    let fresh = |side| (side, Fresh, CONNECTIONS);
    let hot = |side, waiters| (side, Hot, waiters);
    let node_cpu = |report: &Report| report.node_cpu_us;
    let all_cpu = |report: &Report| Some(report.node_cpu_us? + report.store_cpu_us.unwrap_or(0.0));
    let least_to_most = |report: &Report| {
        let (least, most) = (report.also.get("grants_min")?, report.also.get("grants_max")?);
        (*most > 0.0).then(|| least / most)
    };
    let of_also = |beside: &'static str, alone: &'static str| {
        move |report: &Report| {
            let (beside, alone) = (report.also.get(beside)?, report.also.get(alone)?);
            (*alone > 0.0).then(|| beside / alone)
        }
    };
    let p50_beside = of_also("acquire_p50_us_beside", "acquire_p50_us_alone");
    let p99_beside = of_also("acquire_p99_us_beside", "acquire_p99_us_alone");
    let kb_of_poll = |report: &Report| Some(report.also.get("bytes_of_each_poll")? / 1024.0);
    let mean_ms = |part: &'static str| move |report: &Report| Some(report.latency_us.get(part)?.mean / 1e3);
    let sustained = |report: &Report| Some(report.operations_per_second / report.rate?);
    let plain = "Postgres, fsync on, no history, repeated keys";
    let default = "Postgres by default (history, metrics, API key), repeated keys";
    let default_fresh = "the same, fresh keys";
    let gate = "gate, pre + post on Redis";
    vec![
        line(default, "≥ 0.38× bare handler", AtLeast(0.38), r.rates(repeated("postgres"), repeated("floor"))),
        line(default_fresh, "≥ 0.36× bare handler", AtLeast(0.36), r.rates(fresh("postgres"), fresh("floor"))),
        line(default, "≥ 4.5× etcd's gateway", AtLeast(4.5), r.rates(repeated("postgres"), repeated("etcd"))),
        line(default_fresh, "≥ 4.5× etcd's gateway", AtLeast(4.5), r.rates(fresh("postgres"), fresh("etcd"))),
        line(default, "≥ 2× Curator", AtLeast(2.0), r.rates(repeated("postgres"), repeated("curator"))),
        line(default_fresh, "≥ 2× Curator", AtLeast(2.0), r.rates(fresh("postgres"), fresh("curator"))),
        line(default, "≥ 0.7× webdis, no persistence", AtLeast(0.7), r.rates(repeated("postgres"), repeated("webdis"))),
        line(default_fresh, "≥ 0.7× webdis, no persistence", AtLeast(0.7), r.rates(fresh("postgres"), fresh("webdis"))),
        line(plain, "≥ 0.46× bare handler", AtLeast(0.46), r.rates(repeated("postgres-no-history"), repeated("floor"))),
        line(plain, "node ≤ 26 µs of CPU per pair", AtMost(26.0), r.value(repeated("postgres-no-history"), node_cpu)),
        line(
            "Postgres by default, each answer 1 ms later",
            "≥ 0.8× of none",
            AtLeast(0.8),
            r.rates(repeated("postgres-1ms"), repeated("postgres-0ms")),
        ),
        line(
            "one connection, p50 of acquire",
            "≤ 0.75× etcd's gateway",
            AtMost(0.75),
            r.ratio(("postgres", Repeated, 1), ("etcd", Repeated, 1), p50),
        ),
        line("one hot key, 16 waiters", "≥ 3× Curator", AtLeast(3.0), r.rates(hot("postgres", 16), hot("curator", 16))),
        line(
            "one hot key, 128 waiters",
            "≥ 3× Curator",
            AtLeast(3.0),
            r.rates(hot("postgres", 128), hot("curator", 128)),
        ),
        line(
            "one hot key, 1 000 waiters",
            "≥ 0.8× of 16 waiters",
            AtLeast(0.8),
            r.rates(hot("postgres", 1_000), hot("postgres", 16)),
        ),
        line(
            "one hot key, 10 000 waiters",
            "≥ 0.8× of 16 waiters",
            AtLeast(0.8),
            r.rates(hot("postgres", 10_000), hot("postgres", 16)),
        ),
        line(
            "one hot key, 128 waiters",
            "least served ≥ 0.9× most served",
            AtLeast(0.9),
            r.value(hot("postgres", 128), least_to_most),
        ),
        line(
            "SQLite by default, 128 connections",
            "≥ 3× etcd's gateway",
            AtLeast(3.0),
            r.rates(repeated("sqlite"), repeated("etcd")),
        ),
        line(
            "SQLite by default, 32 connections",
            "≥ 3× etcd's gateway",
            AtLeast(3.0),
            r.rates(("sqlite", Repeated, FEWER_CONNECTIONS), ("etcd", Repeated, FEWER_CONNECTIONS)),
        ),
        line("SQLite by default", "≤ 45 µs of CPU per pair", AtMost(45.0), r.value(repeated("sqlite"), all_cpu)),
        line(
            "Redis engine, with history",
            "≥ 0.75× webdis",
            AtLeast(0.75),
            r.rates(repeated("redis"), repeated("webdis")),
        ),
        line(
            "Redis engine, no history",
            "≥ 0.95× webdis",
            AtLeast(0.95),
            r.rates(repeated("redis-no-history"), repeated("webdis")),
        ),
        line(gate, "≥ 0.9× webdis", AtLeast(0.9), r.rates(("gate", Gate, CONNECTIONS), fresh("webdis"))),
        line(gate, "mean of a pre ≤ 2 ms, 32 connections", AtMost(2.0), r.value(("gate", Gate, 32), mean_ms("pre"))),
        line(gate, "mean of a post ≤ 2 ms, 32 connections", AtMost(2.0), r.value(("gate", Gate, 32), mean_ms("post"))),
        line(
            "the same, durable (Postgres)",
            "mean of a pre ≤ 2 ms, 32 connections",
            AtMost(2.0),
            r.value(("gate", GateDurable, 32), mean_ms("pre")),
        ),
        line(
            "the same, durable (Postgres)",
            "mean of a post ≤ 2 ms, 32 connections",
            AtMost(2.0),
            r.value(("gate", GateDurable, 32), mean_ms("post")),
        ),
        line(
            "100 000 held leases, each renewed every 10 s",
            "rate sustained",
            AtLeast(0.99),
            r.value(("postgres", Renewals, CONNECTIONS), sustained),
        ),
        line(
            "the same",
            "p99 of acquires ≤ 2× of idle",
            AtMost(2.0),
            r.value(("postgres", Renewals, CONNECTIONS), p99_beside),
        ),
        line(
            "1 000 000 held leases",
            "p50 of acquires ≤ 1.2× of none",
            AtMost(1.2),
            r.value(("postgres", Held, CONNECTIONS), p50_beside),
        ),
        line(
            "the same",
            "node ≤ 300 MB of memory",
            AtMost(300.0),
            r.value(("postgres", Held, CONNECTIONS), |report| report.also.get("node_memory_mib").copied()),
        ),
        line(
            "10 000 idle long polls",
            "≤ 12 KB of memory each",
            AtMost(12.0),
            r.value(("postgres", Idle, CONNECTIONS), kb_of_poll),
        ),
        line(
            "the same",
            "p99 of acquires ≤ 1.5× of none",
            AtMost(1.5),
            r.value(("postgres", Idle, CONNECTIONS), p99_beside),
        ),
        line(
            "three nodes behind nginx",
            "≥ 0.7× of one node, direct",
            AtLeast(0.7),
            r.rates(repeated("three-nodes"), repeated("postgres")),
        ),
    ]
}
