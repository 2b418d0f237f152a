//! The `latchgate` server. ARCHITECTURE.md says which module does what.

pub mod access;
pub mod audit;
pub mod cli;
pub mod config;
pub mod engines;
pub mod failure;
pub mod files;
pub mod format;
pub mod gate;
mod gate_home;
mod greeting;
pub mod http;
pub mod listen;
pub mod locks;
pub mod node;
pub mod nodes;
mod objects;
pub mod observe;
pub mod seal;
pub mod serve;
pub mod store;
