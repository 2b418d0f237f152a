//! The `latchgate` server. ARCHITECTURE.md tells which room does what.

pub mod cli;
pub mod config;
pub mod engines;
pub mod http;
pub mod runtime;
pub mod serve;
pub mod store;
pub mod telemetry;
