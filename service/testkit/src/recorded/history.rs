//! The files of recorded histories.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::Call;

/// Most violations to print: a broken lock may have very many.
const SHOWN_MAX: usize = 10;

#[derive(clap::Args)]
pub struct Args {
    /// The file that `record` has written
    pub file: PathBuf,
    /// How often a lock must have passed from one client to another for the history to count
    #[arg(long, default_value_t = 1)]
    pub handovers_min: usize,
}

/// Prints the result as a JSON line. An error if a rule was broken, or if the history has too few hand-overs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let report = super::check(&read(&args.file)?);
    println!("{}", serde_json::to_string(&report)?);
    for violation in report.violations.iter().take(SHOWN_MAX) {
        eprintln!("{violation}");
    }
    if !report.violations.is_empty() {
        bail!("{} violations", report.violations.len());
    }
    if report.handovers < args.handovers_min {
        bail!("{} hand-overs tell too little: {} were asked for", report.handovers, args.handovers_min);
    }
    Ok(())
}

/// The calls of a whole history.
pub fn read(file: &Path) -> anyhow::Result<Vec<Call>> {
    let lines = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    super::read(BufReader::new(lines)).with_context(|| format!("reading {}", file.display()))
}
