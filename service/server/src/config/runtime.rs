//! The threads of a node.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use clap::Args;

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct RuntimeArgs {
    /// Threads that serve requests [default: one for each processor; from 4 on, the first is for shards and stores alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub workers: Option<u16>,
}

impl RuntimeArgs {
    pub fn workers(&self) -> usize {
        let of_machine = || available_parallelism().map_or(1, NonZeroUsize::get);
        self.workers.map_or_else(of_machine, usize::from)
    }
}
