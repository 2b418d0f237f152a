//! Logs.

use std::io::IsTerminal;

use anyhow::Context;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Logs to standard error from now on.
///
/// # Errors
/// When `filter` is neither a level nor a filter.
pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("--log must be a level (info) or a filter (latchgate=debug)")?;
    let filter = filter.add_directive("sqlx=warn".parse()?);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // They would go to standard error as well. If it cannot be written (the disk is full), that would be a panic.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
