//! What an operator sees of a node: logs, metrics, traces. The other modules count into its types, and it knows none of them.

pub mod logs;
pub mod metrics;
pub mod traces;
