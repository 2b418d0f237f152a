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
            latchgate::cli::complain(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let cli = Cli::read()?;
    let mut runtime = match &cli.command {
        // The threads for connections have runtimes of their own.
        Command::Serve(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let is_node = matches!(cli.command, Command::Serve(_));
    let runtime = runtime.enable_all().build()?;
    let code = runtime.block_on(latchgate::cli::run(cli));
    if !is_node {
        // A write to a reader that does not read has no end.
        runtime.shutdown_background();
    }
    code
}
