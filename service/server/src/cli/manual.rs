//! `latchgate completions` and `latchgate man`: what the command line itself says, for shells and for `man`.

use std::fs;
use std::io::{Write as _, stdout};

use crate::config::{CompletionsArgs, ManArgs, command};

/// # Errors
/// When the output cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "latchgate", &mut script);
    stdout().write_all(&script)?;
    Ok(())
}

/// # Errors
/// When the pages cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.directory {
        Some(directory) => {
            fs::create_dir_all(directory)?;
            clap_mangen::generate_to(command(), directory)?;
        }
        None => clap_mangen::Man::new(command()).render(&mut stdout())?,
    }
    Ok(())
}
