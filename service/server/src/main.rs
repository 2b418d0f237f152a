//! The `latchgate` binary.

use std::process::ExitCode;

use latchgate::config::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    // Clients of HTTP are built with it, as are those of the exporter of traces.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let run = async { latchgate::cli::run(Cli::read()?).await };
    match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latchgate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
