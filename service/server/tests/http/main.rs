//! Latchgate as its users meet it: real nodes, real stores, over HTTP.

mod bad_input;
mod client;
mod leases;
mod outage;
mod pages;
mod restart;
mod start;
mod two_nodes;
mod waiting;
