//! Long work shows its progress: a line that changes on a terminal, plain lines otherwise.

use std::future::Future;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::interval;

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A line that shows what is going on, and for how long. It is hidden without a terminal.
fn spinner(message: impl Into<String>) -> ProgressBar {
    let bar = hidden_spinner();
    bar.set_message(message.into());
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar
}

/// The same, of which nothing is drawn before it has a target.
pub fn hidden_spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Awaits `work`, and shows what `news` says of it. Without a terminal, work that takes a while is a line on standard error, and news is
/// another one when it changes.
pub async fn shown<T>(work: impl Future<Output = T>, what: &str, mut news: impl AsyncFnMut() -> Option<String>) -> T {
    let bar = spinner(what);
    bar.enable_steady_tick(LOOK_EVERY / 3);
    let reporting = async {
        let mut look = interval(LOOK_EVERY);
        look.tick().await;
        look.tick().await;
        if bar.is_hidden() {
            eprintln!("latchgate: {what}");
        }
        let mut shown_last = None;
        loop {
            let now = news().await;
            if now.is_some() && now != shown_last {
                let line = format!("{what}: {}", now.as_deref().unwrap_or_default());
                if bar.is_hidden() {
                    eprintln!("latchgate: {line}");
                }
                bar.set_message(line);
                shown_last = now;
            }
            look.tick().await;
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = reporting => unreachable!("it goes on until the work is done"),
    };
    bar.finish_and_clear();
    done
}
