//! The gate is switched from one of its stores to the other.

mod forced;
mod load;
mod planned;
mod world;
