//! Switches among engines in memory: what must hold whatever is slow, cut off, late or done twice.

mod agreed;
mod carried;
mod rights;
mod world;
