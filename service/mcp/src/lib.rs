//! Two servers of the Model Context Protocol, for programs with a model inside.
//!
//! `latchgate mcp` ([`locks`]) gives its client locks that hold across sessions and machines, and operations that are done once.
//! `latchgate mcp-gate` ([`gate`]) stands in front of another server and runs each of its tool calls once.
//!
//! What they offer are boxed futures: an async function would be compiled in the crate that awaits it, with all that it awaits in turn.

pub mod gate;
pub mod locks;
