//! The figures of a node. Counting is an atomic addition; everything else is done when `/metrics` is read.

mod count;
mod gate;
mod live;
mod locks;
mod page;
mod process;
mod requests;

pub use self::count::{Counter, Histogram, count_nothing};
pub use self::gate::{Degraded, GateMetrics, GateOutcome};
pub use self::locks::{LockMetrics, Retry, Uncounted};
pub use self::page::{CONTENT_TYPE, Encode, Page};
pub use self::process::Process;
pub use self::requests::{OfApp, Requests};
