//! Worlds for integration tests, built in one line and gone with the test.
//!
//! Two kinds of server:
//!
//! - **Private** ones ([`postgres::Postgres`], [`redis::Redis`], [`node::Node`]) belong to one test, which may pause,
//!   kill and restart them. They die with their value, and with the test process however that ends.
//! - **Shared** ones ([`postgres::shared_database`], [`redis::shared_url`]) are started once by `make test` and named in
//!   the environment. They are fast to use, and no test may disturb them.
//!
//! [`recorded`] tells from what clients saw of a lock whether it was one.
//!
//! Fixtures panic with the reason and the server's log instead of returning errors: a test that has no world has
//! nothing to decide.

pub mod node;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod recorded;
pub mod redis;
pub mod redis_group;

mod ports;
mod process;
mod wait;

pub use ports::free_port;
pub use wait::eventually;
