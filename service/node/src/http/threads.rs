//! The threads that serve connections. Each has a runtime of its own, and a connection stays on its thread: so its memory stays
//! in the caches of one processor, and what it does wakes no other thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};

/// With so many threads, the one that started the others serves no connection: it has enough to do with the committer and stores.
const APART_FROM: usize = 4;

pub struct Threads {
    handles: Vec<Handle>,
    next: AtomicUsize,
    runtimes: Vec<Runtime>,
}

impl Threads {
    /// `count`: together with the thread that calls this, and whose runtime is the present one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(count: usize) -> io::Result<Arc<Self>> {
        let mut handles = Vec::new();
        if count < APART_FROM {
            handles.push(Handle::current());
        }
        // If a thread is refused, those before it end as `drop` ends them.
        let mut threads = Self { handles, next: AtomicUsize::new(0), runtimes: Vec::new() };
        for number in 1..count {
            // One worker, and not `new_current_thread`: that writes to its event descriptor for each task that the committer wakes, even
            // while it is awake.
            let mut builder = Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).thread_name(format!("serve-{number}")).enable_all().build()?;
            threads.handles.push(runtime.handle().clone());
            threads.runtimes.push(runtime);
        }
        Ok(Arc::new(threads))
    }

    /// The runtime of the next connection.
    pub(super) fn next(&self) -> &Handle {
        &self.handles[self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len()]
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The last handle may be dropped on a thread that must not wait.
        self.runtimes.drain(..).for_each(Runtime::shutdown_background);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

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
