//! Prints the valid input of the target that the argument names.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let (.., valid) = latchgate_fuzz::TARGETS.into_iter().find(|(of, ..)| *of == name).expect("the name of a target");
    std::io::stdout().write_all(valid.as_bytes())
}
