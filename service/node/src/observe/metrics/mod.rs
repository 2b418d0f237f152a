//! The figures of a node. Counting is cheap; everything else is done when `/metrics` is read.

mod count;
mod gate;
mod live;
mod locks;
mod page;
mod process;
mod requests;
mod samples;

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::histogram::Histogram;

pub use self::count::Durations;
pub use self::gate::{GateMetrics, GateOutcome};
pub use self::locks::{LockMetrics, Retry, Uncounted};
pub use self::page::{CONTENT_TYPE, Page, page};
pub use self::process::Process;
pub use self::requests::{OfApp, Requests};
pub use self::samples::{SAMPLE_EVERY, Samples};
