//! Programs that tests start: in a directory of their own, on a port of 127.0.0.1. They can be stopped, killed and started again.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::ports::free_port;
use crate::wait::eventually;

const SETTLE: Duration = Duration::from_secs(10);
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(10);
const START_TRIES: usize = 5;

/// A program that serves on a port.
pub trait Program: Sized + Send + Sync + 'static {
    /// What it is called in messages and in the names of directories.
    const NAME: &'static str;

    /// Starts it with its files in `dir`.
    fn command(&self, dir: &Path, port: u16) -> Command;

    /// Whether the server answers.
    fn is_ready(server: &Server<Self>) -> impl Future<Output = bool> + Send;

    /// Removes what a killed server leaves behind outside of its directory.
    fn clear(_dir: &Path) {}
}

/// A server's main process with its children, its port, and its directory. The processes do not outlive the test. When a test panics, the
/// end of the server's log follows the panic.
pub struct Server<P: Program> {
    pub(crate) program: P,
    dir: TempDir,
    port: u16,
    /// Where in the log the running process has begun.
    log_start: usize,
    child: Child,
    warden: Child,
    status: Option<ExitStatus>,
}

/// Why a server did not get ready.
#[derive(Debug)]
pub struct NotReady {
    /// How it ended; `None` if it ran on without being ready.
    pub status: Option<ExitStatus>,
    /// The end of its output.
    pub log: String,
}

/// A directory for a server.
pub(crate) fn directory(name: &str) -> TempDir {
    tempfile::Builder::new().prefix(&format!("latchgate-{name}-")).tempdir().expect("a temporary directory")
}

impl<P: Program> Server<P> {
    /// Starts a program; returns when it is ready.
    ///
    /// # Panics
    ///
    /// When it does not get ready.
    pub(crate) async fn launch(program: P, dir: TempDir) -> Self {
        let launched = Self::try_launch(program, dir).await;
        launched.unwrap_or_else(|NotReady { status, log }| panic!("{} is not ready ({status:?}):\n{log}", P::NAME))
    }

    pub(crate) async fn try_launch(program: P, dir: TempDir) -> Result<Self, NotReady> {
        let port = free_port();
        let (child, warden) = spawn(&program, dir.path(), port);
        let mut server = Self { program, dir, port, log_start: 0, child, warden, status: None };
        let mut tries = START_TRIES;
        while !server.becomes_ready().await {
            tries -= 1;
            let log = server.tail();
            // Another process may have taken the free port meanwhile.
            let is_clash = ["already listens there", "Address already in use"].iter().any(|text| log.contains(text));
            if tries == 0 || !is_clash {
                return Err(NotReady { status: server.exited(), log });
            }
            server.kill9();
            let _ = fs::remove_file(server.file("log"));
            server.port = free_port();
            server.spawn_again();
        }
        Ok(server)
    }

    /// Starts a server that has ended, with the same port and directory; returns when it is ready.
    ///
    /// # Panics
    ///
    /// When it still runs, or does not get ready.
    pub async fn start_again(&mut self) {
        assert!(self.exited().is_some(), "start_again: {} still runs", P::NAME);
        self.log_start = fs::read(self.file("log")).map_or(0, |log| log.len());
        self.spawn_again();
        assert!(self.becomes_ready().await, "{} is not ready again:\n{}", P::NAME, self.tail());
    }

    fn spawn_again(&mut self) {
        (self.child, self.warden) = spawn(&self.program, self.dir.path(), self.port);
        self.status = None;
    }

    /// Whether it answers in time. Returns `false` if it has ended, for example because its port is taken.
    async fn becomes_ready(&mut self) -> bool {
        let polling = async {
            while self.exited().is_none() {
                if P::is_ready(self).await {
                    return true;
                }
                sleep(POLL_EVERY).await;
            }
            false
        };
        timeout(READY_WITHIN, polling).await.unwrap_or(false)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory, which outlives its restarts.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The server's output so far, over all its restarts.
    pub fn log(&self) -> String {
        fs::read(self.file("log")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The output of the running process.
    pub(crate) fn new_log(&self) -> String {
        let log = fs::read(self.file("log")).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    fn tail(&self) -> String {
        tail(&self.file("log"))
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

    /// Waits for the end of the server; `None` if it still runs after `timeout`.
    pub async fn wait_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let _ = eventually(timeout, || std::future::ready(self.exited().is_some())).await;
        self.exited()
    }

    /// Sends a signal to the main process; returns at once.
    pub fn signal(&mut self, signal: Signal) {
        if self.exited().is_none() {
            send(self.id(), signal);
        }
    }

    /// Stops every process of the server (SIGSTOP); returns when none of them runs. Its connections stay open and it does not answer.
    pub fn pause(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // The parent first: a stopped parent has no new children.
        stop(self.id());
        children_of(self.id()).into_iter().for_each(stop);
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&mut self) {
        if self.exited().is_none() {
            children_of(self.id()).into_iter().chain([self.id()]).for_each(|process| send(process, Signal::SIGCONT));
        }
    }

    /// Kills every process of the server at once, as a power cut would; returns when all have ended.
    pub fn kill9(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // Children are found by their parent, not by a group: Postgres gives each of its own a session.
        stop(self.id());
        let children = children_of(self.id());
        self.dismiss_warden();
        children.iter().copied().chain([self.id()]).for_each(|process| send(process, Signal::SIGKILL));
        self.status = self.child.wait().ok();
        settle(|| children.iter().all(|child| matches!(state_of(*child), None | Some('Z' | 'X'))));
    }

    fn dismiss_warden(&mut self) {
        let _ = self.warden.kill();
        let _ = self.warden.wait();
    }
}

impl<P: Program> Drop for Server<P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {} on port {}:\n{}\n---", P::NAME, self.port, self.tail());
        }
        self.kill9();
        self.dismiss_warden();
        P::clear(self.dir.path());
    }
}

/// Starts a program with its output appended to its log. If this process dies without dropping the server, the second process kills it and
/// removes its directory.
fn spawn(program: &impl Program, dir: &Path, port: u16) -> (Child, Child) {
    let spawn = || {
        let output = File::options().create(true).append(true).open(dir.join("log"))?;
        let mut command = program.command(dir, port);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).current_dir(dir);
        // In a process group of its own: Ctrl-C in the terminal ends the test, which then ends its servers.
        let child = command.process_group(0).spawn()?;
        let warden = warden(child.id(), dir)?;
        io::Result::Ok((child, warden))
    };
    spawn().expect("the program can be run")
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
