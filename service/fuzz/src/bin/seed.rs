//! Prints the valid input of the target that the argument names; without one, the names of all targets.

use std::io::Write as _;

use latchgate_fuzz::TARGETS;

fn main() -> std::io::Result<()> {
    let Some(name) = std::env::args().nth(1) else {
        TARGETS.iter().for_each(|(name, ..)| println!("{name}"));
        return Ok(());
    };
    let (.., valid) = TARGETS.into_iter().find(|(of, ..)| *of == name).expect("the name of a target");
    std::io::stdout().write_all(valid.as_bytes())
}
