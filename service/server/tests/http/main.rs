//! Tests of real nodes on real stores, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod access;
mod bad_input;
mod bad_operations;
mod bad_terms;
mod browsers;
mod client;
mod connections;
mod disconnects;
mod engines;
mod fail_over;
mod files;
mod gate_nodes;
mod gate_switch;
mod history;
mod hold_off;
mod interventions;
mod leases;
mod multilocks;
mod on_redis;
mod one_key;
mod operations;
mod outage;
mod pages;
mod pgbouncer;
mod proxy;
mod raw;
mod readiness;
mod recorded;
mod reserve;
mod restart;
mod several_hosts;
mod small_server;
mod start;
mod stories;
mod three_nodes;
mod tickets;
mod tools;
mod two_nodes;
mod unread_input;
mod waiting;
