//! `latchgate bench`: load, and what it shows.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use latchgate_bench::drive::Meter;
use latchgate_bench::work::{self, Report, Settings, Workload};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::interval;

use super::print::out;
use crate::config::BenchArgs;

const SHOW_EVERY: Duration = Duration::from_millis(200);

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
        let report = shown(work::run(*workload, &settings, &meter), *workload, &settings, &meter).await?;
        if args.json {
            out(serde_json::to_string(&report)?);
        }
        reports.push(report);
    }
    if !args.json {
        out(table(&reports).trim_end());
    }
    reports.iter().try_for_each(Report::check)
}

/// Awaits the workload. Meanwhile a bar on a terminal shows how far it is; without a terminal, a line says that it has begun.
async fn shown<T>(work: impl Future<Output = T>, workload: Workload, settings: &Settings, meter: &Meter) -> T {
    let rounds = if matches!(workload, Workload::Idle | Workload::Renewals | Workload::Held) { 2 } else { 1 };
    let total = (settings.warmup + settings.measured) * rounds;
    let bar = ProgressBar::new(u64::try_from(total.as_millis()).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("{prefix:<13}{wide_bar} {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(workload.name());
    if bar.is_hidden() {
        eprintln!("latchgate: {}, {} s", workload.name(), total.as_secs());
    }
    let begin = Instant::now();
    let showing = async {
        let mut ticks = interval(SHOW_EVERY);
        loop {
            ticks.tick().await;
            let passed = begin.elapsed().as_millis().min(total.as_millis());
            bar.set_position(u64::try_from(passed).unwrap_or(u64::MAX));
            let (done, errors) = (meter.operations.load(Ordering::Relaxed), meter.errors.load(Ordering::Relaxed));
            let failed = if errors > 0 { format!(", {errors} failed") } else { String::new() };
            bar.set_message(format!("{done} done{failed}"));
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = showing => unreachable!("it is shown until the work is done"),
    };
    bar.finish_and_clear();
    done
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
