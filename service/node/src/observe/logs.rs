//! Logs, to standard error.

use std::io::IsTerminal;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, fmt};

use super::traces::{Exporter, TARGET};

/// Audit records are logged with it.
pub const AUDIT_TARGET: &str = "audit";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Logs from now on, and makes spans if there is an exporter.
///
/// # Errors
/// When `text` is neither a level nor a filter.
pub fn start(text: &str, format: LogFormat, exporter: Option<&Exporter>) -> anyhow::Result<()> {
    let usage = "--log must be a level (info) or a filter (latchgate=debug)";
    // It would be taken for a part of a module's name.
    ensure!(!text.contains(['[', '{']), "{usage}: filters by spans are not known");
    let parsed: Targets = text.parse().context(usage)?;
    let mut filter = parsed.with_target("sqlx", LevelFilter::WARN);
    // Audit records are nowhere else. Only a filter that names them changes which are logged.
    if !text.contains(AUDIT_TARGET) {
        filter = filter.with_target(AUDIT_TARGET, LevelFilter::INFO);
    }
    if exporter.is_some() {
        filter = filter.with_target(TARGET, LevelFilter::DEBUG);
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
