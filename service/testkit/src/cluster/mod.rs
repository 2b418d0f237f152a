//! A tier on this machine, of real processes: stores, nodes and nginx in front.

pub mod ask;
mod command;
mod fail_over;
pub mod ha;
pub mod parts;
pub mod stores;
mod walk;

pub use command::{Args, run};

/// Says to a person what happens now.
pub fn say(what: &str) {
    eprintln!("==> {what}");
}
