//! The command `check`.

use std::path::PathBuf;

use anyhow::bail;

use super::check::{Checker, Options, Report};
use super::file::History;

/// Most violations to print: a broken lock may have very many.
const SHOWN_MAX: usize = 10;

#[derive(clap::Args)]
pub struct Args {
    /// The files that recorders on one machine have written, with one clock
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// How often a lock must have passed from one client to another for the history to count
    #[arg(long, default_value_t = 1)]
    pub handovers_min: usize,
    #[command(flatten)]
    pub options: Options,
}

/// Prints the result as a JSON line. An error if a rule was broken, or if the history has too few hand-overs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let report = check_files(&args.files, &args.options, args.handovers_min)?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// As the command does.
pub fn check_files(files: &[PathBuf], options: &Options, handovers_min: usize) -> anyhow::Result<Report> {
    let mut checker = Checker::new(options.clone());
    for calls in History::open(files)?.by_key() {
        checker.check(&calls?);
    }
    let report = checker.report();
    for violation in report.violations.iter().take(SHOWN_MAX) {
        eprintln!("{violation}");
    }
    if !report.violations.is_empty() {
        bail!("{} violations: {}", report.violations.len(), serde_json::to_string(&report)?);
    }
    if report.handovers < handovers_min {
        bail!("{} hand-overs tell too little: {handovers_min} were asked for", report.handovers);
    }
    Ok(report)
}
