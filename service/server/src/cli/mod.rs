//! The command line.

mod access;
mod beside;
mod engines;
mod health;
mod listing;
mod lock;
mod locks;
mod manual;
mod mcp;
mod node;
mod once;
mod operations;
mod print;
mod progress;
mod proxy;
mod status;
mod terraform;
mod work;

use std::process::ExitCode;

use latchgate_client::Error;
use latchgate_node::http;
use tokio::runtime::Builder;

pub use self::print::complain;
use self::print::println_or_exit;
use crate::config::{Cli, Command};
use crate::serve;

/// Runs the command; returns its exit code. Not async: a crate compiles each async function that it awaits, also those of other crates, so
/// the binary would be compiled from nearly all of this one again.
///
/// # Errors
/// Says why the command failed, in words for its user.
pub fn run() -> anyhow::Result<ExitCode> {
    let cli = Cli::read()?;
    let mut runtime = match &cli.command {
        // The threads for connections have runtimes of their own.
        Command::Serve(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let is_node = matches!(cli.command, Command::Serve(_));
    let runtime = runtime.enable_all().build()?;
    let code = runtime.block_on(ended(cli));
    if !is_node {
        // A write to a reader that does not read has no end.
        runtime.shutdown_background();
    }
    code
}

/// All commands have the same exit codes for what a node says.
async fn ended(cli: Cli) -> anyhow::Result<ExitCode> {
    carry_out(cli).await.or_else(|error| match error.downcast_ref() {
        // A setting, or an answer, is wrong.
        None | Some(Error::Invalid(_)) => Err(error),
        Some(refusal) => {
            complain(format_args!("{error:#}"));
            Ok(node::code_of(refusal).into())
        }
    })
}

async fn carry_out(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Lock(args) => return lock::run(&args).await,
        Command::Once(args) => return once::run(&args).await,
        Command::McpGate(args) => return mcp::gate(args).await,
        Command::Mcp(args) => mcp::mcp(args).await,
        Command::Locks(args) => locks::locks(&args).await,
        Command::Operations(args) => operations::operations(&args).await,
        Command::Events(args) => locks::events(&args).await,
        Command::Status(args) => status::status(&args).await,
        Command::Engines(args) => engines::engines(&args).await,
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
        Command::Serve(args) => serve::run(args).await,
        Command::Migrate(args) => {
            progress::with_progress(serve::migrate(args), "bringing the schema up to date", async || None).await?;
            println_or_exit("The schema is up to date.");
            Ok(())
        }
        Command::Health(args) => health::run(&args).await,
        Command::App(args) => access::app(&args).await,
        Command::ApiKey(args) => access::key(&args).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Openapi => {
            println_or_exit(http::OPENAPI.trim_end());
            Ok(())
        }
        Command::Warden => work::warden::run().await,
    }?;
    Ok(ExitCode::SUCCESS)
}
