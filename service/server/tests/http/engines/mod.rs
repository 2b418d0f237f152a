//! Engine sets: a switch from one engine to another, under load, with engines that die and nodes that are cut off.

mod carried;
mod lost;
mod refused;
mod world;
