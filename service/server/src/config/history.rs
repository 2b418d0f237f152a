//! The history of locks.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::positive;

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Whether events of locks are kept for a while and streamed to watchers. They are written in the commits.
    #[arg(long, value_name = "on|off", env = "LATCHGATE_HISTORY", default_value = "on")]
    pub history: Switch,

    /// How long events are kept, in ms.
    #[arg(long, value_name = "MS", env = "LATCHGATE_HISTORY_RETENTION_MS", default_value_t = 86_400_000)]
    pub history_retention_ms: u64,

    /// Most event streams at once.
    #[arg(long, value_name = "N", env = "LATCHGATE_WATCHERS_MAX", default_value_t = 5_000)]
    pub watchers_max: usize,

    /// How many batches of up to 500 events a stream may be behind. For a client that reads more slowly, the node reads them again.
    #[arg(long, value_name = "N", env = "LATCHGATE_WATCHER_LAG_MAX", default_value_t = 64, value_parser = positive)]
    pub watcher_lag_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl HistoryArgs {
    pub fn is_on(&self) -> bool {
        self.history == Switch::On
    }

    pub fn retention(&self) -> Duration {
        Duration::from_millis(self.history_retention_ms)
    }
}
