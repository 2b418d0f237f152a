//! What an operator sees of a node: metrics, traces and logs, and no secret in any of them.

mod canary;
mod metrics;
mod traces;
