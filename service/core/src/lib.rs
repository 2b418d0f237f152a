//! The rules of Latchgate: pure functions from a state, a command and a time to a new state and an outcome.
//!
//! Nothing here does I/O, is async or reads a clock. What is stored lives behind the server's store traits, and
//! what a client sees is decided by the server's `http::problem`.

pub mod access;
pub mod gate;
pub mod json;
pub mod key;
pub mod lock;
pub mod time;

pub use key::{Address, App, InvalidName, Key};
pub use time::{CLOCK_BOUND_MS, Timestamp};
