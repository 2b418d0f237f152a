//! The command line.

mod access;
mod health;
mod hold_off;
mod proxy;
mod switch_engine;

use crate::config::{Cli, Command};
use crate::{http, serve};

/// Runs the command.
///
/// # Errors
/// Says why the command failed, in words for its user.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => serve::run(args).await,
        Command::Migrate(args) => serve::migrate(args).await,
        Command::SwitchEngine(args) => switch_engine::run(&args).await,
        Command::Health(args) => health::run(&args).await,
        Command::HoldOff(args) => hold_off::run(&args).await,
        Command::App(args) => access::app(&args).await,
        Command::Key(args) => access::key(&args).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Openapi => {
            print!("{}", http::openapi_json());
            Ok(())
        }
    }
}
