//! The `latchgate` binary.

use std::process::ExitCode;

use clap::Parser;
use latchgate::config::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match latchgate::cli::run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latchgate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
