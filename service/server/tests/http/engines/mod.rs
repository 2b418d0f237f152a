//! A pair of engines: switches, and engines that are dead, emptied or out of reach.

mod beside;
pub mod gate;
mod lost;
mod refused;
mod streams;
pub mod world;
