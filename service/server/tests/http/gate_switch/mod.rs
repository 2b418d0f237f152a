//! The gate is switched from one of its stores to the other.

mod load;
mod lost;
mod planned;
pub mod world;
