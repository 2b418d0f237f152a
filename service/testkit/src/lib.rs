//! Private servers and nodes for integration tests, started in one line and removed with the test.
//!
//! There are two kinds of servers:
//!
//! - **Private** ones ([`postgres::Postgres`], [`redis::Redis`], [`node::Node`]) belong to one test, which may pause,
//!   kill and restart them. They end with their value, and with the test process, however that ends.
//! - **Shared** ones ([`postgres::shared_database`], [`redis::shared_url`]) are started once by `make test` and named in
//!   the environment. They save the time of a start, and no test may disturb them.
//!
//! [`memory`] has stores in the test's own memory: the reference that the others are compared with. [`stores`] opens a new store
//! of each kind. [`commits`] checks what a store has committed, in the simulation and in core's random histories. [`recorder`] has
//! clients that use a mix of everything and record their calls, against real nodes and in the simulation, and [`recorded`] checks from
//! these whether locks and the gate kept their promises. `latchgate-testkit` is a command for both.
//!
//! Fixtures panic with the reason and the server's log instead of returning errors: without its servers, a test cannot
//! decide anything.

pub mod ask;
pub mod chaos;
pub mod cluster;
pub mod commits;
pub mod links;
pub mod lossy;
pub mod memory;
pub mod node;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod recorded;
pub mod recorder;
pub mod redis;
pub mod redis_group;
pub mod stores;
pub mod tier;

mod caller;
#[cfg(test)]
mod defects;
mod ports;
mod process;
mod wait;

pub use ports::free_port;
pub use wait::{eventually, until};
