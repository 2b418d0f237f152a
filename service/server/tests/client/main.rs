//! The Rust client and the commands built on it, against real nodes: `latchgate lock`, `latchgate once` and the commands that list and show.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod library;
mod listing;
mod lock_command;
mod once_command;
mod terminal;
mod world;
