//! `latchgate completions` and `latchgate man`: what the command line itself says, for shells and for `man`.

use std::fs;
use std::io::{Write as _, stdout};

use clap::CommandFactory;

use crate::config::{Cli, CompletionsArgs, ManArgs};

/// # Errors
/// When the output cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "latchgate", &mut script);
    stdout().write_all(&script)?;
    Ok(())
}

/// # Errors
/// When the pages cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.directory {
        Some(directory) => {
            fs::create_dir_all(directory)?;
            clap_mangen::generate_to(Cli::command(), directory)?;
        }
        None => clap_mangen::Man::new(Cli::command()).render(&mut stdout())?,
    }
    Ok(())
}
