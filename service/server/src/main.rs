//! The `latchgate` binary.

use std::process::ExitCode;

use latchgate::config::{Cli, Command};
use tokio::runtime::Builder;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Clients of HTTP are built with it, as are those of the exporter of traces.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("latchgate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let cli = Cli::read()?;
    let mut runtime = match &cli.command {
        // Without other threads to wake and to share with, each request costs less.
        Command::Serve(args) if args.runtime.workers() == 1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if let Command::Serve(args) = &cli.command {
        runtime.worker_threads(args.runtime.workers());
    }
    runtime.enable_all().build()?.block_on(latchgate::cli::run(cli))
}
