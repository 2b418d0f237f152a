//! Load for Latchgate: the workloads of `latchgate bench`, which the comparisons of `make bench` and `make bench-peers` use too.

pub mod beside;
pub mod cpu;
pub mod drive;
pub mod gate;
pub mod handoff;
pub mod http;
pub mod locks;
pub mod multilock;
pub mod report;
pub mod work;
