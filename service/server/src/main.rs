//! The `latchgate` binary.

use std::process::ExitCode;

use latchgate::config::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let run = async { latchgate::cli::run(Cli::read()?).await };
    match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latchgate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
