//! Layers of our own for `stack.rs`.

pub mod end;
pub mod observe;
