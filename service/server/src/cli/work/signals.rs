//! The signals that `lock` and `once` pass on.

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// From its creation on, these signals no longer end this process.
pub struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hang_up: Stream,
    quit: Stream,
    user1: Stream,
    user2: Stream,
}

impl Signals {
    /// # Errors
    /// When the system refuses.
    pub fn take() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.hang_up.recv() => Signal::SIGHUP,
            _ = self.quit.recv() => Signal::SIGQUIT,
            _ = self.user1.recv() => Signal::SIGUSR1,
            _ = self.user2.recv() => Signal::SIGUSR2,
        }
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
}

/// The exit code of a process that this signal has ended.
pub fn code_of(signal: Signal) -> u8 {
    128 + u8::try_from(signal as i32).unwrap_or(127)
}
