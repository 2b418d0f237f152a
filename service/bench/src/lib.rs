//! Load for Latchgate: the ratios its design promises, measured side by side in one run, and histories that tell whether its
//! locks are locks.

pub mod check;
pub mod compare;
pub mod compare_handoffs;
pub mod floor;
pub mod handoff;
pub mod pairs;
pub mod record;

#[cfg(test)]
mod fake;
mod http;
mod report;
