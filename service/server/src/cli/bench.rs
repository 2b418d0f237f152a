//! `latchgate bench`: load, and what it shows.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use comfy_table::{Table, presets};
use latchgate_bench::drive::Meter;
use latchgate_bench::work::{self, Report, Settings, Workload};
use latchgate_client::Error;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::print::out;
use super::progress::{Line, shown};
use crate::config::BenchArgs;

/// # Errors
/// When a node cannot be reached, or a request has failed.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let settings = args.settings()?;
    // Each connection is an open file.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let mut reports = Vec::new();
    for workload in &args.workloads {
        let meter = Arc::new(Meter::default());
        let news = async || {
            let (done, errors) = (meter.operations.load(Ordering::Relaxed), meter.errors.load(Ordering::Relaxed));
            Line::is_on_terminal().then(|| format!("{done} done, {errors} failed"))
        };
        let name = name_of(*workload, &settings);
        let report = shown(work::run(*workload, &settings, &meter), &name, news).await.map_err(unreachable)?;
        let direct = match &args.direct {
            Some(url) => shown(work::direct(*workload, url, &settings, &meter), &name, news).await?,
            None => None,
        };
        for report in [Some(report), direct].into_iter().flatten() {
            if args.json {
                out(serde_json::to_string(&report)?);
            }
            reports.push(report);
        }
    }
    if !args.json {
        out(table(&reports).trim_end());
    }
    reports.iter().try_for_each(Report::check)
}

/// So that the exit code is that of the other commands.
fn unreachable(error: anyhow::Error) -> anyhow::Error {
    let is_io = error.chain().any(|cause| cause.is::<std::io::Error>());
    if is_io { Error::Unreachable(format!("{error:#}")).into() } else { error }
}

/// What is said while the workload runs.
fn name_of(workload: Workload, settings: &Settings) -> String {
    let rounds = if matches!(workload, Workload::Idle | Workload::Renewals | Workload::Held) { 2 } else { 1 };
    format!("{}, {} s", workload.name(), ((settings.warmup + settings.measured) * rounds).as_secs())
}

fn table(reports: &[Report]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "WORKLOAD",
        "CALL",
        "PER SECOND",
        "MEAN",
        "P50",
        "P90",
        "P99",
        "P99.9",
        "MAX",
        "NODE CPU",
        "STORE CPU",
    ]);
    for report in reports {
        let cpu = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        for (row, (call, us)) in report.latency_us.iter().enumerate() {
            let first = |text: String| if row == 0 { text } else { String::new() };
            table.add_row([
                first(report.workload.clone()),
                (*call).to_owned(),
                first(format!("{:.0}", report.operations_per_second)),
                format!("{:.0}", us.mean),
                us.p50.to_string(),
                us.p90.to_string(),
                us.p99.to_string(),
                us.p999.to_string(),
                us.max.to_string(),
                first(cpu(report.node_cpu_us)),
                first(cpu(report.store_cpu_us)),
            ]);
        }
    }
    let mut text = format!("{table}\n\nAll times in µs; CPU time per operation.\n");
    for report in reports {
        for (what, value) in &report.also {
            let _ = writeln!(text, "{}: {} {value}", report.workload, what.replace('_', " "));
        }
        for (what, count) in &report.errors {
            let _ = writeln!(text, "{}: failed {count} times: {what}", report.workload);
        }
    }
    text
}
