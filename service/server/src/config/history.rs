//! The history of locks.

use std::time::Duration;

use clap::Args;

use super::duration::duration;
use super::positive;

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// How long events of locks are kept; 0 keeps and streams none. They are written in the commits
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration)]
    pub history_retention: Duration,

    /// Most event streams at once
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = positive)]
    pub watchers_max: usize,
}

impl HistoryArgs {
    pub fn is_on(&self) -> bool {
        !self.history_retention.is_zero()
    }
}
