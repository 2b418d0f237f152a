//! The signals that `lock` and `once` pass on.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::sleep;

/// How long a node has to answer what is reported or given back after a signal: a lease may be an hour long.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);

/// From its creation on, these signals no longer end this process. A signal that was ignored at the start, as `nohup` and shells without
/// job control have it, stays ignored, here and in the program.
pub struct Signals {
    taken: [(Signal, Option<Stream>); 6],
    /// SIGTERM or SIGINT has come. The other signals may mean something else to a program that goes on.
    must_end: bool,
}

const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

impl Signals {
    /// # Errors
    /// When the system refuses.
    pub fn take() -> std::io::Result<Self> {
        let ignored = ignored();
        let mut taken = PASSED_ON.map(|number| (number, None));
        for (number, stream) in &mut taken {
            if ignored & (1 << (*number as u32 - 1)) == 0 {
                *stream = Some(signal(SignalKind::from_raw(*number as i32))?);
            }
        }
        Ok(Self { taken, must_end: false })
    }

    pub async fn next(&mut self) -> Signal {
        let signal = poll_fn(|context| {
            let next = self.taken.iter_mut().find_map(|(number, stream)| {
                let received = stream.as_mut()?.poll_recv(context);
                matches!(received, Poll::Ready(Some(()))).then_some(*number)
            });
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.must_end |= matches!(signal, Signal::SIGTERM | Signal::SIGINT);
        signal
    }

    /// The next one that asks to end.
    pub async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                signal => return signal,
            }
        }
    }

    /// Returns when the answer of a node is no longer waited for: [`ANSWER_MAX`] after a signal that asks to end. SIGTERM and SIGINT may have come
    /// before.
    pub async fn end_of_answers(&mut self) {
        if !self.must_end {
            self.end().await;
        }
        sleep(ANSWER_MAX).await;
    }
}

/// The signals that this process ignores, a bit for each: `sigaction` cannot be asked without unsafe code.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The exit code of a process that this signal has ended.
pub fn code_of(signal: Signal) -> u8 {
    128 + u8::try_from(signal as i32).unwrap_or(127)
}
