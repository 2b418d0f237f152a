//! The gate is switched from one of its stores to the other.

mod lost;
mod planned;
pub mod world;
