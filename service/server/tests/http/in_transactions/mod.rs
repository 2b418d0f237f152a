//! Guards and posts within a caller's own transactions.

mod guard;
mod moves;
mod posts;
mod roles;
pub mod world;
