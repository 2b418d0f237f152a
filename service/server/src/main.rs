//! The `latchgate` binary.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Clients of HTTP are built with it, as are those of the exporter of traces.
    let _ = rustls::crypto::ring::default_provider().install_default();
    latchgate::cli::run().unwrap_or_else(|error| {
        latchgate::cli::complain(format!("{error:#}"));
        ExitCode::FAILURE
    })
}
