//! Logs, to standard error.

use std::io::IsTerminal;

use anyhow::Context;
use clap::ValueEnum;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use super::traces::{Exporter, TARGET};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Logs from now on, and makes spans if there is an exporter.
///
/// # Errors
/// When `filter` is neither a level nor a filter.
pub fn start(filter: &str, format: LogFormat, exporter: Option<&Exporter>) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("--log must be a level (info) or a filter (latchgate=debug)")?;
    let mut filter = filter.add_directive("sqlx=warn".parse()?);
    if exporter.is_some() {
        filter = filter.add_directive(format!("{TARGET}=debug").parse()?);
    }
    let log = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // They would go to standard error as well. If it cannot be written (the disk is full), that would be a panic.
        .log_internal_errors(false);
    let log = match format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    // One filter for all: with a filter of its own, a layer loses the event after a library has asked whether another one is enabled.
    tracing_subscriber::registry().with(filter).with(exporter.map(Exporter::layer)).with(log).init();
    Ok(())
}
