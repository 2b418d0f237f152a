//! The machine: a key with a small state, commands, and a store that checks versions. A committer takes the commands that have arrived,
//! loads the states that it has not cached, evaluates each key by the rules of its [`Kind`], and writes all changes in one commit.
//!
//! Whatever the kind: `batch.rs` has the rounds of a batch, `under_way.rs` the batches and keys that are being served, `cache.rs` the states that
//! were current last, `collector.rs` the removal of what need not be kept, `machine.rs` what they share.

mod batch;
mod cache;
mod collector;
mod health;
mod limits;
mod machine;
mod tasks;
mod under_way;
mod waker;

use tokio::sync::mpsc;

pub(crate) use self::batch::{Apart, Done, Failed, Kind, Round, Served, Work, run, run_locked};
pub(crate) use self::cache::Cache;
pub(crate) use self::collector::collect;
pub use self::health::Health;
pub use self::limits::Limits;
pub(crate) use self::machine::{Node, read};
pub(crate) use self::tasks::{exit_if_it_panics, probe};
pub(crate) use self::under_way::UnderWay;

/// How many calls one batch takes from the channel: about, because those that arrived for a key under way come with it.
pub(crate) const BATCH_MAX: usize = 512;

/// Adds the calls that have arrived to a batch. Handlers that are ready to run send their calls first, as long as calls come, so that one
/// commit serves them all. If none is, the first yield returns at once.
pub(crate) async fn gather<T>(arriving: &mut mpsc::Receiver<T>, calls: &mut Vec<T>) {
    let mut is_arriving = true;
    while is_arriving {
        tokio::task::yield_now().await;
        let before = calls.len();
        while calls.len() < BATCH_MAX {
            let Ok(call) = arriving.try_recv() else { break };
            calls.push(call);
        }
        is_arriving = calls.len() > before;
    }
}
