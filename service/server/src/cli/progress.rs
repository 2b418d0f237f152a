//! Long work shows its progress on standard error: on a terminal a line that changes, plain lines otherwise.

use std::future::Future;
use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::interval;

use super::print::{complain, plain};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A longer line would go on in the next row of the terminal, which is not cleared.
const CHARS_MAX: usize = 78;

/// What is going on.
#[derive(Default)]
pub struct Line(Mutex<String>);

impl Line {
    pub fn is_on_terminal() -> bool {
        stderr().is_terminal()
    }

    pub fn show(&self, what: &str) {
        if std::mem::replace(&mut *self.0.lock(), what.to_owned()) == what {
            return;
        }
        if Self::is_on_terminal() {
            eprint!("\r\x1b[K{}", plain(what).chars().take(CHARS_MAX).collect::<String>());
        } else {
            complain(what);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub fn clear(&self) {
        if Self::is_on_terminal() && !self.is_empty() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Awaits `work`. If it takes a while, shows what it is, and what `news` says of it.
pub async fn with_progress<T>(
    work: impl Future<Output = T>,
    what: &str,
    mut news: impl AsyncFnMut() -> Option<String>,
) -> T {
    let line = Line::default();
    let reporting = async {
        let mut look = interval(LOOK_EVERY);
        look.tick().await;
        look.tick().await;
        line.show(what);
        loop {
            if let Some(news) = news().await {
                line.show(&format!("{what}: {news}"));
            }
            look.tick().await;
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = reporting => unreachable!("it goes on until the work is done"),
    };
    line.clear();
    done
}
