//! What a program prints: passed on at once, and kept.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, stdout};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Signals;

/// How long a process that the program has left behind may keep the pipe open.
const OPEN_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// The program has ended.
    Ended,
    /// What is left is not passed on.
    GivenUp,
}

pub struct Output {
    passing_on: JoinHandle<Printed>,
    phase: watch::Sender<Phase>,
}

/// What of it is kept.
#[derive(Clone, Copy)]
pub enum Keep {
    /// All of it, if it has at most so many bytes.
    All(usize),
    /// The last bytes.
    End(usize),
}

/// What a program has printed.
pub struct Printed {
    /// `None` if that was too much, or its end has not come.
    pub kept: Option<Vec<u8>>,
    /// It could not be passed on: the disk is full, the reader has gone, or a signal has ended the wait for a slow one.
    pub is_lost: bool,
}

impl Output {
    /// # Errors
    /// When the system refuses.
    pub fn pass_on(
        pipe: impl Into<OwnedFd>,
        keep: Keep,
        own: impl AsyncWrite + Unpin + Send + 'static,
    ) -> std::io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(pipe.into())?;
        let (phase, seen) = watch::channel(Phase::Running);
        Ok(Self { passing_on: tokio::spawn(pass_on(pipe, keep, own, seen)), phase })
    }

    /// All that the program has printed, when it is passed on. The reader may be slow: the wait for it ends with a signal.
    pub async fn printed(self, signals: &mut Signals) -> Printed {
        self.phase.send_replace(Phase::Ended);
        let mut passing_on = self.passing_on;
        let printed = tokio::select! {
            printed = &mut passing_on => printed,
            _ = signals.end() => {
                self.phase.send_replace(Phase::GivenUp);
                passing_on.await
            }
        };
        printed.unwrap_or(Printed { kept: None, is_lost: true })
    }
}

async fn pass_on(
    mut pipe: pipe::Receiver,
    keep: Keep,
    mut own: impl AsyncWrite + Unpin,
    mut phase: watch::Receiver<Phase>,
) -> Printed {
    let (mut kept, mut is_lost, mut buffer) = (Some(VecDeque::new()), false, vec![0; 16 * 1_024]);
    loop {
        let read = tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => read.ok(),
            () = silence_after_end(phase.clone()) => None,
        };
        let bytes = match read {
            Some(0) => return Printed { kept: kept.map(Vec::from), is_lost },
            Some(length) => &buffer[..length],
            None => {
                let kept = kept.filter(|_| matches!(keep, Keep::End(_))).map(Vec::from);
                return Printed { kept, is_lost };
            }
        };
        // The program goes on: its work is to be done once, and what it prints is kept.
        if !is_lost {
            let writing = async { own.write_all(bytes).await.is_ok() && own.flush().await.is_ok() };
            is_lost = tokio::select! {
                is_written = writing => !is_written,
                _ = phase.wait_for(|phase| *phase == Phase::GivenUp) => true,
            };
        }
        match keep {
            Keep::All(max) => kept = kept.filter(|kept| kept.len() + bytes.len() <= max),
            Keep::End(_) => {}
        }
        if let Some(kept) = &mut kept {
            kept.extend(bytes);
            if let Keep::End(max) = keep {
                kept.drain(..kept.len().saturating_sub(max));
            }
        }
    }
}

/// Prints a text, whole or not: the reader may be slow, and the wait for it ends with a signal.
///
/// # Errors
/// When it cannot be printed.
pub async fn print(text: &str, signals: &mut Signals) -> std::io::Result<()> {
    let mut own = stdout();
    tokio::select! {
        written = async { own.write_all(text.as_bytes()).await?; own.flush().await } => written,
        signal = signals.end() => Err(std::io::Error::other(format!("{signal} has ended the wait for the reader"))),
    }
}

/// Returns when a left-over process keeps the pipe open without a word.
async fn silence_after_end(mut phase: watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase >= Phase::Ended).await;
    sleep(OPEN_MAX).await;
}
