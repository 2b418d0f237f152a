//! The HTTP API. `endpoints.rs` has a row for each endpoint, `stack.rs` what each request passes.

mod access;
mod admin;
mod answer;
mod apps;
mod audit;
mod audit_and_body;
mod body;
mod call;
mod client;
mod connections;
mod console;
mod context;
mod cors;
mod endpoint;
mod endpoints;
#[doc(hidden)]
pub mod fuzz_targets;
mod hosts;
mod leases;
mod locks;
mod metrics;
mod multilocks;
mod observe;
#[cfg(feature = "openapi")]
pub mod openapi;
mod operations;
mod pages;
mod path;
mod problem;
mod proxies;
mod query;
mod request_body;
mod request_ids;
mod server;
mod stack;
mod status;
mod swagger_ui;
mod target;
mod threads;
mod ticket;
mod tls;
mod undecided;

pub use self::context::{Context, OPERATION_TTL_MS_MIN, RETENTION_MS_MIN, RequestLimits, TTL_MS_MIN};
pub use self::cors::origin;
pub use self::endpoints::{OPENAPI, requests};
pub use self::hosts::{AllowedHost, Hosts};
pub use self::metrics::keep_samples;
pub use self::proxies::network;
pub use self::server::{ServerLimits, serve, serve_streams};
pub use self::threads::Threads;
pub use self::tls::Tls;
pub use self::undecided::keep_counting;
