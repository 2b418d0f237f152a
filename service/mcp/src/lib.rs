//! Two servers of the Model Context Protocol, for programs with a model inside.
//!
//! `latchgate mcp` ([`locks`]) gives its client locks that hold across sessions and machines, and operations that are done once.
//! `latchgate mcp-gate` ([`gate`]) stands in front of another server and runs each of its tool calls once.

pub mod gate;
pub mod locks;
