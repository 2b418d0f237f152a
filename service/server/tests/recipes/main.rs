//! The scripts of docs/RECIPES.md as they stand there, several at once, against real nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod book;
mod fencing;
mod handing_over;
mod leading;
mod sharing;
mod ticking;
mod waiting;
mod world;
