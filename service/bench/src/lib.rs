//! The workloads of `latchgate-bench load`, which the comparisons of `make bench` and `make bench-peers` use too.

mod background;
pub mod cpu;
mod direct;
pub mod drive;
mod hot;
pub mod http;
pub mod pairs;
pub mod work;
