//! The log of a run, and how often each situation occurred.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::time::Instant;

/// Calls of clients, messages, and faults are counted by this name.
pub const STEPS: &str = "steps";

/// How often each situation occurred.
pub type Seen = BTreeMap<Cow<'static, str>, u64>;

/// When a run starts, by the clock of its history.
pub const STARTED_US: u64 = 1_000_000_000;

pub struct Log {
    start: Instant,
    /// `None`: only situations are counted.
    lines: Option<Mutex<Vec<String>>>,
    seen: Mutex<Seen>,
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

    /// The time by the clock of recorded histories.
    pub fn now_us(&self) -> u64 {
        STARTED_US + u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    pub fn saw(&self, what: impl Into<Cow<'static, str>>) {
        *self.seen.lock().unwrap().entry(what.into()).or_default() += 1;
    }

    pub fn take(&self) -> (Vec<String>, Seen) {
        let lines = self.lines.as_ref().map(|lines| std::mem::take(&mut *lines.lock().unwrap()));
        (lines.unwrap_or_default(), std::mem::take(&mut *self.seen.lock().unwrap()))
    }
}
