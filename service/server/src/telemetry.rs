//! Logs.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{LogArgs, LogFormat};

/// Logs to standard error from now on.
///
/// # Errors
/// When the filter is not one.
pub fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&args.log).context("--log is not a level or a filter")?;
    let filter = filter.add_directive("sqlx=warn".parse()?);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
