//! The processes that a program has started, from `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Most rounds of looking for processes that were started meanwhile.
const ROUNDS_MAX: usize = 100;
const ROUND: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
struct Process {
    id: i32,
    parent: i32,
    group: i32,
    has_ended: bool,
}

/// A program: the process group that it was started in, and its first process with all its descendants, which may have groups of
/// their own. The warden leads the group and is none of them.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    pub group: Pid,
    pub first: Option<Pid>,
}

impl Tree {
    /// Whether a process of the group runs.
    pub fn has_members(self) -> bool {
        processes().iter().any(|process| process.group == self.group.as_raw() && self.is_alive(process))
    }

    /// Kills all of them, also those that they start meanwhile.
    pub fn kill(self) {
        if !cfg!(target_os = "linux") {
            // Descendants outside of the group are not known there. The warden ends too.
            let _ = killpg(self.group, Signal::SIGKILL);
            return;
        }
        // A stopped process starts no other one.
        let mut stopped = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let new: Vec<i32> = self.members().into_iter().filter(|id| !stopped.contains(id)).collect();
            if new.is_empty() {
                break;
            }
            for id in new {
                let _ = kill(Pid::from_raw(id), Signal::SIGSTOP);
                stopped.insert(id);
            }
        }
        for id in stopped {
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
        }
        for _ in 0..ROUNDS_MAX {
            let left = self.members();
            if left.is_empty() {
                return;
            }
            for id in left {
                let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
            }
            std::thread::sleep(ROUND);
        }
    }

    fn members(self) -> BTreeSet<i32> {
        let processes = processes();
        let mut members: BTreeSet<i32> = processes
            .iter()
            .filter(|process| process.group == self.group.as_raw() || Some(process.id) == self.first.map(Pid::as_raw))
            .map(|process| process.id)
            .collect();
        members.remove(&self.group.as_raw());
        loop {
            let before = members.len();
            members.extend(
                processes
                    .iter()
                    .filter(|process| members.contains(&process.parent))
                    .map(|process| process.id)
                    .collect::<Vec<_>>(),
            );
            if members.len() == before {
                break;
            }
        }
        let alive: BTreeSet<i32> =
            processes.iter().filter(|process| self.is_alive(process)).map(|process| process.id).collect();
        members.intersection(&alive).copied().collect()
    }

    fn is_alive(self, process: &Process) -> bool {
        !process.has_ended && process.id != self.group.as_raw()
    }
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(read).collect()
}

/// From `/proc/ID/stat`. The name in it may contain anything, but the last `)` ends it.
fn read(id: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    Some(Process { id, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, has_ended })
}
