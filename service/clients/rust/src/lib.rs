//! The client of Latchgate: locks whose leases renew themselves, and work that is done once.
//!
//! ```no_run
//! use std::time::Duration;
//! use latchgate_client::Client;
//!
//! # async fn write_report(token: u64) -> std::io::Result<()> { Ok(()) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(["http://node-a:7070", "http://node-b:7070"])?;
//! let lease = client.lock("orders/42").wait(Duration::from_secs(600)).acquire().await?;
//! tokio::select! {
//!     done = write_report(lease.token()) => done?,
//!     loss = lease.lost() => return Err(loss.into()),
//! }
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! **A lease** is renewed in the background at a third of its TTL, together with the other leases of its client. It is counted from the
//! moment its request was sent, by a clock that cannot be set and that goes on while the machine is suspended. When it is lost,
//! [`Lease::lost`] returns and [`Lease::remaining`] is zero. No client can stop work that is in the middle of a write: send
//! [`Lease::token`] with each write, and let the resource refuse a lower one.
//!
//! **Calls are repeated** at the next base URL after a lost connection, a 503 or a 429, always with the same `lease_id` or
//! `attempt_id`. So a call whose answer was lost does nothing twice.
//!
//! [`blocking`] has the same for programs without tokio.

pub mod blocking;
pub mod clock;

mod attempt;
mod background;
mod claim;
mod client;
mod error;
mod events;
mod grant;
mod lease;
mod lock;
mod operation;
mod renewals;
mod transport;

pub use attempt::{Attempt, AttemptState, Failed, OnExpiry};
pub use client::{Client, Revoke, Revoking};
pub use error::{Error, Loss, LossReason, Problem};
pub use events::{Event, Events};
pub use grant::{LeaseState, Revocation};
pub use lease::Lease;
pub use lock::{LockRequest, Wanted, process_name, program_name};
pub use operation::{Begun, Done, Duplicate, OnOutage, OnceError, Operation};
pub use reqwest::Method;
pub use transport::{encode, is_about};
