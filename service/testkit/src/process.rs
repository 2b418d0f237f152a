use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait::eventually;

const SETTLE: Duration = Duration::from_secs(10);

/// A server's main process with its children. They do not outlive the test.
pub(crate) struct Server {
    child: Child,
    warden: Child,
    status: Option<ExitStatus>,
}

impl Server {
    /// Starts `command` with its output appended to `log`. If this process dies without dropping the value, a second process kills
    /// the server and removes `dir`.
    pub(crate) fn spawn(mut command: Command, dir: &Path, log: &Path) -> io::Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        // In a process group of its own: Ctrl-C in the terminal ends the test, which then ends its servers.
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .current_dir(dir)
            .process_group(0)
            .spawn()?;
        let warden = warden(child.id(), dir)?;
        Ok(Self { child, warden, status: None })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status if the main process has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("a child process can be waited for");
            if self.status.is_some() {
                // Before the kernel reuses the process id.
                self.dismiss_warden();
            }
        }
        self.status
    }

    pub(crate) async fn wait_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let mut status = None;
        let _ = eventually(timeout, || {
            status = self.exited();
            std::future::ready(status.is_some())
        })
        .await;
        status
    }

    /// Whether it answers in time. Returns `false` if it has ended, for example because its port is taken.
    pub(crate) async fn becomes_ready<F>(&mut self, within: Duration, answers: impl Fn() -> F) -> bool
    where
        F: Future<Output = bool>,
    {
        let is_ready = || {
            let (ended, answers) = (self.exited().is_some(), answers());
            async move { ended || answers.await }
        };
        eventually(within, is_ready).await && self.exited().is_none()
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.exited().is_none() {
            send(self.id(), signal);
        }
    }

    /// Stops every process of the server; returns when none of them runs.
    pub(crate) fn pause(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // The parent first: a stopped parent has no new children.
        stop(self.id());
        for child in children_of(self.id()) {
            stop(child);
        }
    }

    pub(crate) fn resume(&mut self) {
        if self.exited().is_some() {
            return;
        }
        for child in children_of(self.id()) {
            send(child, Signal::SIGCONT);
        }
        send(self.id(), Signal::SIGCONT);
    }

    /// Kills every process of the server at once, as a power cut would; returns when all have ended.
    pub(crate) fn kill9(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // Children are found by their parent, not by a group: Postgres gives each of its own a session.
        stop(self.id());
        let children = children_of(self.id());
        self.dismiss_warden();
        for child in &children {
            send(*child, Signal::SIGKILL);
        }
        send(self.id(), Signal::SIGKILL);
        self.status = self.child.wait().ok();
        settle(|| children.iter().all(|child| matches!(state_of(*child), None | Some('Z' | 'X'))));
    }

    fn dismiss_warden(&mut self) {
        let _ = self.warden.kill();
        let _ = self.warden.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        self.dismiss_warden();
    }
}

/// Whether the server at this port of 127.0.0.1 begins its answer to a request like this.
pub(crate) async fn answers(port: u16, request: &str, expected: &str) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).await?;
        io::Result::Ok(answer == expected.as_bytes())
    };
    asking.await.unwrap_or(false)
}

/// The end of a log, for a panic's message.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Where `program` is: in one of `directories`, else in PATH.
pub(crate) fn find_program(program: &str, directories: &[PathBuf]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = directories
        .iter()
        .cloned()
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| panic!("`{program}` is not installed; `make test` installs what the tests need"))
}

/// A process that notices the end of this one by the end of its standard input. A parent-death signal would be sent too early: when
/// the thread that spawned the server ends, which test threads do before their process.
fn warden(server: u32, dir: &Path) -> io::Result<Child> {
    const SCRIPT: &str = r#"
        read -r _
        kill -KILL $(cat "/proc/$1/task/$1/children" 2>/dev/null) "$1" 2>/dev/null
        rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }
    "#;
    Command::new("/bin/sh")
        .args(["-c", SCRIPT, "warden", &server.to_string()])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

pub(crate) fn send(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).expect("process ids are small"));
    // The only possible failure is that the process has just ended, which suits every caller.
    let _ = signal::kill(pid, signal);
}

/// SIGSTOP returns before the process has stopped; this does not.
fn stop(process: u32) {
    send(process, Signal::SIGSTOP);
    settle(|| matches!(state_of(process), None | Some('T' | 't' | 'Z' | 'X')));
}

fn settle(done: impl Fn() -> bool) {
    let deadline = Instant::now() + SETTLE;
    while !done() {
        assert!(Instant::now() < deadline, "a server's processes did not react to a signal within {SETTLE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |process: &u32| stat(*process).is_some_and(|(_, its_parent)| its_parent == parent);
    all().into_iter().filter(is_child).collect()
}

/// Every process of this machine.
pub(crate) fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn state_of(process: u32) -> Option<char> {
    stat(process).map(|(state, _)| state)
}

/// State and parent from `/proc/PID/stat`. The name before them may contain anything, but the last `)` ends it.
fn stat(process: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
