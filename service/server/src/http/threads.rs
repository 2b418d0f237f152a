//! The threads that serve connections. Each has a runtime of its own, and a connection stays on its thread: so its memory stays
//! in the caches of one processor, and what it does wakes no other thread.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

/// With so many threads, the one that started the others serves no connection: it has enough to do with shards and stores.
const APART_FROM: usize = 4;

pub struct Threads {
    serving: Vec<Thread>,
    runtimes: Vec<Runtime>,
}

struct Thread {
    handle: Handle,
    /// Each connection has a clone.
    place: Place,
}

/// Counts the connections of a thread.
type Place = Arc<()>;

impl Threads {
    /// `count`: together with the thread that calls this, and whose runtime is the present one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(count: usize) -> io::Result<Arc<Self>> {
        // If a thread is refused, those before it end as `drop` ends them.
        let mut threads = Self { serving: Vec::new(), runtimes: Vec::new() };
        if count < APART_FROM {
            threads.serving.push(Thread::new(Handle::current()));
        }
        for number in 1..count {
            // One worker, and not `new_current_thread`: that writes to its event descriptor for each task that a shard wakes, even
            // while it is awake.
            let mut builder = Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).thread_name(format!("serve-{number}")).enable_all().build()?;
            threads.serving.push(Thread::new(runtime.handle().clone()));
            threads.runtimes.push(runtime);
        }
        Ok(Arc::new(threads))
    }

    /// The runtime for a connection, and what the connection keeps until it ends: that of the thread that has fewest. Of several that have
    /// as few, the first: a call of its shard, which may be on the same thread, then wakes no other one.
    pub(super) fn place(&self) -> Option<(&Handle, Place)> {
        let fewest = self.serving.iter().min_by_key(|thread| Arc::strong_count(&thread.place))?;
        Some((&fewest.handle, Arc::clone(&fewest.place)))
    }
}

impl Thread {
    fn new(handle: Handle) -> Self {
        Self { handle, place: Arc::default() }
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
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    /// A connection that lasts until the sender is dropped, and its thread.
    async fn connect(threads: &Threads) -> (ThreadId, oneshot::Sender<()>) {
        let ((end, ended), (place, placed)) = (oneshot::channel::<()>(), oneshot::channel());
        let (runtime, counted) = threads.place().unwrap();
        runtime.spawn(async move {
            let _ = place.send(thread::current().id());
            let _ = ended.await;
            drop(counted);
        });
        (placed.await.unwrap(), end)
    }

    #[tokio::test]
    async fn connections_are_spread_over_the_threads_and_spare_a_busy_one() {
        let own = thread::current().id();
        for (count, serving, is_spared) in [(1, 1, false), (2, 2, false), (3, 3, false), (4, 3, true)] {
            let threads = Threads::start(count).unwrap();
            let mut open = Vec::new();
            for _ in 0..2 * count {
                open.push(connect(&threads).await);
            }
            let used: HashSet<ThreadId> = open.iter().map(|(thread, _)| *thread).collect();
            assert_eq!((used.len(), !used.contains(&own)), (serving, is_spared), "{count}");
        }
    }

    #[tokio::test]
    async fn a_connection_goes_to_the_thread_that_has_fewest_and_first_to_that_of_the_shards() {
        let own = thread::current().id();
        let threads = Threads::start(2).unwrap();
        let (first, end_of_first) = connect(&threads).await;
        let (second, _end_of_second) = connect(&threads).await;
        assert_eq!((first == own, second == own), (true, false));
        drop(end_of_first);
        let is_free = || Arc::strong_count(&threads.serving[0].place) == 1;
        tokio::time::timeout(Duration::from_secs(10), async {
            while !is_free() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("a connection that has ended is not counted");
        assert_eq!(connect(&threads).await.0, own);
    }
}
