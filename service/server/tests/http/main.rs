//! Tests of real nodes on real stores, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod access;
mod attacks;
mod audit;
mod bad_input;
mod browsers;
mod client;
mod connections;
mod described;
mod disconnects;
mod durability;
mod engines;
mod entering;
mod fail_over;
mod files;
mod gate_nodes;
mod groups;
mod history;
mod hold_off;
mod in_transactions;
mod interventions;
mod leases;
mod lost;
mod many_leases;
mod observe;
mod on_redis;
mod one_key;
mod operation_records;
mod operations;
mod pages;
mod proxy;
mod put_back;
mod raw;
mod readiness;
mod recorded;
mod redis_lost;
mod reserve;
mod several_hosts;
mod start;
mod tickets;
mod tls;
mod two_nodes;
mod unread_input;
