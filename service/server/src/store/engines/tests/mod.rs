//! Switches among engines in memory: what must hold whatever is slow, cut off, late or done twice.

mod agreed;
mod carried;
mod random;
mod rights;
mod world;
