//! The Rust client and the commands built on it, against real nodes: the scenarios of `service/clients/SCENARIOS.md`, and
//! `latchgate lock`, `latchgate once` and the commands that list and show.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod errors;
mod gate;
mod keeping;
mod listing;
mod lock_command;
mod losing_answers;
mod once_command;
mod terminal;
mod waiting;
mod world;
