//! Which process group reads the terminal.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal of this process. It is given to the program while that runs in front.
pub struct Terminal {
    file: File,
    own: Pid,
    program: Pid,
    is_given: bool,
}

impl Terminal {
    /// `None` if this process has no terminal.
    pub fn open(program: Pid) -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { file, own: getpgrp(), program, is_given: false })
    }

    /// Whether the program is to have the terminal from the start. In a pipeline another program may need it: then the program gets
    /// it when it asks for it.
    pub fn is_for_program(&self) -> bool {
        self.is_of(self.own) && stdin().is_terminal() && stdout().is_terminal()
    }

    pub fn is_own(&self) -> bool {
        self.is_of(self.own)
    }

    /// Whether the program has had the terminal, and this process has not taken it back.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    pub fn give(&mut self) {
        self.is_given = true;
        self.set(self.program);
    }

    /// The program may have given it to a process group of its own, as an interactive shell does.
    pub fn take_back(&mut self) {
        if std::mem::take(&mut self.is_given) {
            self.set(self.own);
        }
    }

    fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|front| front == group)
    }

    fn set(&self, group: Pid) {
        // A process in the background that does this is stopped by SIGTTOU unless it blocks it.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        let _ = blocked.thread_block();
        let _ = tcsetpgrp(&self.file, group);
        let _ = blocked.thread_unblock();
    }
}
