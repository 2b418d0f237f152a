//! `latchgate completions` and `latchgate man`: what the command line itself says, for shells and for `man`.

use std::fs;
use std::io::{Write as _, stdout};

use super::print::not_printed;
use crate::config::{CompletionsArgs, ManArgs, command};

/// # Errors
/// When the output cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "latchgate", &mut script);
    print(&script);
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
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command()).render(&mut page)?;
            print(&page);
        }
    }
    Ok(())
}

fn print(text: &[u8]) {
    let mut stdout = stdout();
    if let Err(error) = stdout.write_all(text).and_then(|()| stdout.flush()) {
        not_printed(&error);
    }
}
