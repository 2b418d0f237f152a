//! Latchgate as its users meet it: real nodes, real stores, over HTTP.

mod bad_input;
mod bad_operations;
mod client;
mod leases;
mod operations;
mod outage;
mod pages;
mod restart;
mod start;
mod two_nodes;
mod waiting;
