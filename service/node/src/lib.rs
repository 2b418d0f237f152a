//! A node: its stores, locks and operations, and the HTTP that it answers. ARCHITECTURE.md says which module does what.
//!
//! What starts a node returns boxed futures: a crate compiles each async function that it awaits, and the crate of the binary, which awaits these,
//! is compiled without optimization.

#![cfg_attr(not(feature = "openapi"), allow(unused_imports, reason = "annotations name types"))]

#[cfg(not(feature = "openapi"))]
extern crate latchgate_undescribed as utoipa;

pub mod access;
pub mod audit;
pub mod engines;
pub mod failure;
pub mod files;
pub mod format;
pub mod gate;
pub mod gate_home;
pub mod http;
pub mod listen;
pub mod locks;
pub mod node;
pub mod nodes;
mod objects;
pub mod observe;
pub mod seal;
pub mod store;
