//! The warden: a small process that leads the process group of the program, and kills the program when the lease ends, even if
//! `latchgate lock` itself is stopped or killed.
//!
//! Its standard input says until when the program may run, a line at a time. It prints a line when it is ready.

use std::io::Write as _;

use latchgate_client::clock::{Moment, sleep_until};
use nix::unistd::{Pid, getpgrp};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::signal::unix::{SignalKind, signal};

use super::tree::Tree;

/// What signals the process group gets but must not end or stop the warden.
const IGNORED: [i32; 9] = [
    nix::libc::SIGINT,
    nix::libc::SIGTERM,
    nix::libc::SIGHUP,
    nix::libc::SIGQUIT,
    nix::libc::SIGUSR1,
    nix::libc::SIGUSR2,
    nix::libc::SIGTSTP,
    nix::libc::SIGTTIN,
    nix::libc::SIGTTOU,
];

/// A line to the warden.
pub enum Order {
    /// The program has this process id; none, because it has ended.
    Program(Option<Pid>),
    /// It may run until then; for ever without a moment.
    Until(Option<Moment>),
}

impl Order {
    pub fn line(&self) -> String {
        match self {
            Self::Program(Some(id)) => format!("program {id}\n"),
            Self::Program(None) => "program ended\n".to_owned(),
            Self::Until(Some(moment)) => format!("until {}\n", moment.as_millis()),
            Self::Until(None) => "until ever\n".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ')? {
            ("program", "ended") => Some(Self::Program(None)),
            ("program", id) => Some(Self::Program(Some(Pid::from_raw(id.parse().ok()?)))),
            ("until", "ever") => Some(Self::Until(None)),
            ("until", ms) => Some(Self::Until(Some(Moment::from_millis(ms.parse().ok()?)))),
            _ => None,
        }
    }
}

/// # Errors
/// When signals cannot be handled.
pub async fn run() -> anyhow::Result<()> {
    let mut handled = Vec::new();
    for number in IGNORED {
        handled.push(signal(SignalKind::from_raw(number))?);
    }
    println!("ready");
    std::io::stdout().flush()?;
    let mut tree = Tree { group: getpgrp(), first: None };
    let mut until: Option<Moment> = None;
    let mut lines = BufReader::new(stdin()).lines();
    loop {
        let end = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            line = lines.next_line() => match line.ok().flatten().as_deref().and_then(Order::parse) {
                Some(Order::Program(id)) => tree.first = id,
                Some(Order::Until(moment)) => until = moment,
                // The end of latchgate, or a line that this warden does not know.
                None => break,
            },
            () = end => break,
        }
    }
    tree.kill();
    drop(handled);
    Ok(())
}
