//! Load for Latchgate: the ratios that its design promises, measured side by side in one run, and recorded histories that show
//! whether its locks keep their promises.

pub mod beside;
pub mod beside_app;
pub mod check;
pub mod compare;
pub mod compare_handoffs;
pub mod cost;
pub mod delay;
pub mod floor;
pub mod mixed;
pub mod pairs;
pub mod peers;
pub mod record;

#[cfg(test)]
mod fake;
