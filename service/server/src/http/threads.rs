//! The threads that serve connections. Each has a runtime of its own, and a connection stays on its thread: so its memory stays
//! in the caches of one processor, and what it does wakes no other thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// With so many threads, the one that started the others serves no connection: it has enough to do with shards and stores.
const APART_FROM: usize = 4;

pub struct Threads {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
    /// Ends the threads.
    _running: DropGuard,
}

impl Threads {
    /// `count`: together with the thread that calls this, and whose runtime is the present one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(count: usize) -> io::Result<Arc<Self>> {
        let running = CancellationToken::new();
        let mut runtimes = Vec::new();
        if count < APART_FROM {
            runtimes.push(Handle::current());
        }
        for number in 1..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let ended = running.clone().cancelled_owned();
            thread::Builder::new().name(format!("serve-{number}")).spawn(move || runtime.block_on(ended))?;
        }
        Ok(Arc::new(Self { runtimes, next: AtomicUsize::new(0), _running: running.drop_guard() }))
    }

    /// The runtime of the next connection.
    pub(super) fn next(&self) -> &Handle {
        &self.runtimes[self.next.fetch_add(1, Ordering::Relaxed) % self.runtimes.len()]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn connections_are_spread_over_the_threads_and_spare_a_busy_one() {
        let own = thread::current().id();
        for (count, serving, is_spared) in [(1, 1, false), (2, 2, false), (3, 3, false), (4, 3, true)] {
            let threads = Threads::start(count).unwrap();
            let mut used = HashSet::new();
            for _ in 0..2 * count {
                used.insert(threads.next().spawn(async { thread::current().id() }).await.unwrap());
            }
            assert_eq!((used.len(), !used.contains(&own)), (serving, is_spared), "{count}");
        }
    }
}
