//! What is logged, and how.

use clap::Args;
use latchgate_node::observe::logs::LogFormat;

#[derive(Debug, Args)]
#[command(next_help_heading = "Observing")]
pub struct LogArgs {
    /// What to log: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `latchgate=debug`
    #[arg(long = "log", value_name = "FILTER", default_value = "info")]
    pub filter: String,

    /// The format of the log, which goes to standard error
    #[arg(long = "log-format", value_name = "FORMAT", default_value = "text")]
    pub format: LogFormat,
}
