//! Layers of our own for `stack.rs`.

pub mod check;
pub mod end;
pub mod observe;
