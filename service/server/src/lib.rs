//! The `latchgate` server. ARCHITECTURE.md tells which room does what.

pub mod runtime;
pub mod store;
