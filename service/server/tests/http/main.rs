//! Latchgate as its users meet it: real nodes, real stores, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
mod bad_operations;
mod client;
mod fail_over;
mod gate_nodes;
mod hold_off;
mod leases;
mod operations;
mod outage;
mod pages;
mod pgbouncer;
mod reserve;
mod restart;
mod start;
mod two_nodes;
mod waiting;
