//! README.md and docs/*.md as they stand: the scripts of docs/recipes, several at once, and the shell blocks of each page,
//! one after the other. All against real nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod book;
mod fencing;
mod forwarding;
mod handing_over;
mod links;
mod pages;
mod quick;
mod shown;
mod terminal;
mod world;
