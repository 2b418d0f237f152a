//! The `latchgate` binary: its settings, its commands, and the life of a node. What a node does is in `latchgate-node`.

pub mod cli;
pub mod config;
mod greeting;
pub mod serve;
