//! The log of a run, and how often each situation occurred.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::time::Instant;

/// Calls of clients, messages, and faults are counted by this name.
pub const STEPS: &str = "steps";

pub struct Log {
    start: Instant,
    /// `None`: only situations are counted.
    lines: Option<Mutex<Vec<String>>>,
    seen: Mutex<BTreeMap<&'static str, u64>>,
}

impl Log {
    pub fn new(is_kept: bool) -> Self {
        Self { start: Instant::now(), lines: is_kept.then(Mutex::default), seen: Mutex::default() }
    }

    pub fn line(&self, line: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            let line = format!("{:>7} ms  {}", self.start.elapsed().as_millis(), line());
            lines.lock().unwrap().push(line);
        }
    }

    pub fn saw(&self, what: &'static str) {
        *self.seen.lock().unwrap().entry(what).or_default() += 1;
    }

    pub fn take(&self) -> (Vec<String>, BTreeMap<&'static str, u64>) {
        let lines = self.lines.as_ref().map(|lines| std::mem::take(&mut *lines.lock().unwrap()));
        (lines.unwrap_or_default(), std::mem::take(&mut *self.seen.lock().unwrap()))
    }
}
