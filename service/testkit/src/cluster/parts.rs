//! Servers with names, in a directory of their own: `NAME.log` has their output, and `NAME.pid` says which process runs. A later call of this
//! program finds them by these files.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::ports::free_port;
use crate::process::{self, tail};

const POLL_EVERY: Duration = Duration::from_millis(50);
const READY_WITHIN: Duration = Duration::from_secs(60);
/// After so long, a server that was asked to end is killed.
const END_WITHIN: Duration = Duration::from_secs(10);
const START_TRIES: usize = 3;

/// How a server is started.
#[derive(Clone)]
pub struct Spec {
    program: PathBuf,
    /// `{start}` becomes a number that differs for each start.
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Asks it to end.
    signal: Signal,
    /// Postgres refuses to run as root.
    is_as_postgres: bool,
}

impl Spec {
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.into(), args, env: Vec::new(), signal: Signal::SIGTERM, is_as_postgres: false }
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    pub fn as_postgres(mut self, signal: Signal) -> Self {
        (self.signal, self.is_as_postgres) = (signal, true);
        self
    }
}

pub struct Parts {
    room: PathBuf,
    /// They go on when this process ends.
    outlive: bool,
    /// Every part that this process has started, in this order.
    specs: RefCell<Vec<(String, Spec)>>,
    /// Those that [`supervise`](Self::supervise) leaves alone.
    down: RefCell<Vec<String>>,
    ports: RefCell<BTreeMap<String, u16>>,
    starts: Cell<u64>,
}

impl Parts {
    pub fn new(room: PathBuf, outlive: bool) -> Self {
        let (specs, down, ports, starts) = Default::default();
        Self { room, outlive, specs, down, ports, starts }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.room.join(name)
    }

    /// The end of a part's output.
    pub fn log(&self, name: &str) -> String {
        tail(&self.file(&format!("{name}.log")))
    }

    /// The port that belongs to this name. At first a free one.
    pub fn port(&self, name: &str) -> u16 {
        *self.ports.borrow_mut().entry(name.to_owned()).or_insert_with(free_port)
    }

    pub fn address(&self, name: &str) -> String {
        format!("127.0.0.1:{}", self.port(name))
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}", self.address(name))
    }

    pub fn write_ports(&self) -> anyhow::Result<()> {
        let lines = self.ports.borrow().iter().map(|(name, port)| format!("{name} {port}\n")).collect::<String>();
        Ok(fs::write(self.file("ports"), lines)?)
    }

    pub fn read_ports(&self) {
        let text = fs::read_to_string(self.file("ports")).unwrap_or_default();
        let entry =
            |line: &str| line.split_once(' ').and_then(|(name, port)| Some((name.to_owned(), port.parse().ok()?)));
        self.ports.borrow_mut().extend(text.lines().filter_map(entry));
    }

    /// Starts a server in the background. If this process is killed, the kernel stops the server, unless it outlives. That follows the thread
    /// that starts it, which must be the main thread.
    pub fn start(&self, name: &str, spec: Spec) -> anyhow::Result<()> {
        let output = File::options().create(true).append(true).open(self.file(&format!("{name}.log")))?;
        let at_our_death = if self.outlive { "clear" } else { &spec.signal.as_str()[3..] };
        // Away from the terminal's Ctrl-C. In one setpriv: a later change of user would reset the signal.
        let mut command = Command::new("setsid");
        command.args(["--", "setpriv", "--pdeathsig", at_our_death]);
        if spec.is_as_postgres && nix::unistd::Uid::effective().is_root() {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--init-groups"]);
        }
        self.starts.set(self.starts.get() + 1);
        let start = format!("{}-{}", std::process::id(), self.starts.get());
        command.arg("--").arg(&spec.program).args(spec.args.iter().map(|arg| arg.replace("{start}", &start)));
        command.envs(spec.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        let child =
            command.stdout(output.try_clone()?).stderr(output).spawn().with_context(|| format!("starting {name}"))?;
        let birth = birth_of(child.id()).unwrap_or_default();
        fs::write(self.file(&format!("{name}.pid")), format!("{} {} {birth}\n", spec.signal, child.id()))?;
        let mut specs = self.specs.borrow_mut();
        match specs.iter_mut().find(|(part, _)| part == name) {
            Some((_, known)) => *known = spec,
            None => specs.push((name.to_owned(), spec)),
        }
        Ok(())
    }

    /// Starts a server until `is_ready` is true. The spec is made anew for each try, with another port under this name: another program may
    /// have taken the last one.
    pub async fn start_until(
        &self,
        name: &str,
        spec: impl Fn(u16) -> Spec,
        is_ready: impl AsyncFn() -> bool,
    ) -> anyhow::Result<()> {
        let known = self.ports.borrow().get(name).copied();
        for _ in 0..START_TRIES {
            self.ports.borrow_mut().insert(name.to_owned(), known.unwrap_or_else(free_port));
            self.start(name, spec(self.port(name)))?;
            if self.until_ready(name, &is_ready).await.is_ok() {
                return Ok(());
            }
            self.end(name, None).await;
        }
        bail!("{name} does not start:\n{}", self.log(name))
    }

    /// Waits until a part that runs is ready.
    pub async fn until_ready(&self, name: &str, is_ready: impl AsyncFn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while !is_ready().await {
            if self.pid(name).is_none() || Instant::now() > deadline {
                bail!("{name} does not get ready:\n{}", self.log(name));
            }
            sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    /// The process that any call of this program has started under this name, while it runs.
    pub fn pid(&self, name: &str) -> Option<u32> {
        let text = fs::read_to_string(self.file(&format!("{name}.pid"))).ok()?;
        let mut words = text.split_whitespace().skip(1);
        let (pid, birth): (u32, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (birth_of(pid) == Some(birth)).then_some(pid)
    }

    pub fn is_running(&self, name: &str) -> bool {
        self.pid(name).is_some()
    }

    /// The main process and its children. A backend of Postgres has a session of its own, but is a child of the postmaster.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        self.pid(name).map(with_children).unwrap_or_default()
    }

    /// Asks a part to end, and returns when it has. Without a signal it is the part's own.
    pub async fn end(&self, name: &str, signal: Option<Signal>) {
        let text = fs::read_to_string(self.file(&format!("{name}.pid"))).unwrap_or_default();
        let own = text.split_whitespace().next().and_then(|word| word.parse().ok());
        if let Some(pid) = self.pid(name) {
            send([pid], signal.or(own).unwrap_or(Signal::SIGTERM));
            let deadline = Instant::now() + END_WITHIN;
            while self.is_running(name) {
                if Instant::now() > deadline {
                    send([pid], Signal::SIGKILL);
                }
                sleep(POLL_EVERY).await;
            }
        }
    }

    /// Ends a part and all of its processes, and forgets it.
    pub async fn stop(&self, name: &str) {
        self.specs.borrow_mut().retain(|(part, _)| part != name);
        self.end(name, None).await;
        self.sweep(name);
    }

    /// Stops every part that this process has started, last first.
    pub async fn stop_all(&self) {
        let last = || self.specs.borrow().last().map(|(name, _)| name.clone());
        while let Some(name) = last() {
            self.stop(&name).await;
        }
        self.down.borrow_mut().clear();
    }

    /// Ends the processes that a killed part has left, for example workers of nginx, which still answer on its port. They are recognised by
    /// the file that their output goes to.
    pub fn sweep(&self, name: &str) {
        let log = self.file(&format!("{name}.log"));
        let writes = |pid: &u32| fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|output| output == log);
        send(process::all().into_iter().filter(writes), Signal::SIGKILL);
    }

    /// Starts the parts that have ended, as a supervisor does.
    pub fn supervise(&self) -> anyhow::Result<()> {
        let ended = |(name, _): &&(String, Spec)| !self.is_running(name) && !self.down.borrow().contains(name);
        let ended: Vec<_> = self.specs.borrow().iter().filter(ended).cloned().collect();
        for (name, spec) in ended {
            // The next Patroni takes over the Postgres of one that was killed.
            if !name.starts_with("patroni") {
                self.sweep(&name);
            }
            if name == "postgres" {
                forget_killed_postgres(&spec);
            }
            self.start(&name, spec)?;
        }
        Ok(())
    }

    /// Keeps a part from being started by [`supervise`](Self::supervise), until [`allow`](Self::allow).
    pub fn forbid(&self, name: &str) {
        self.down.borrow_mut().push(name.to_owned());
    }

    pub fn allow(&self, name: &str) {
        self.down.borrow_mut().retain(|part| part != name);
    }
}

/// Postgres believes that a killed server still runs if its parent has not waited for it. Its lock files may be removed once none of its
/// processes is left.
fn forget_killed_postgres(spec: &Spec) {
    let data = spec.args.iter().position(|arg| arg == "-D").and_then(|at| spec.args.get(at + 1));
    let Some(data) = data.map(Path::new) else { return };
    let _ = fs::remove_file(data.join("postmaster.pid"));
    let files = data.parent().and_then(|dir| dir.read_dir().ok()).into_iter().flatten().flatten();
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with(".s.PGSQL."))
        .for_each(|file| drop(fs::remove_file(file.path())));
}

/// Sends a signal to processes. One that has just ended does not matter.
pub fn send(pids: impl IntoIterator<Item = u32>, signal: Signal) {
    for pid in pids {
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
}

pub fn with_children(pid: u32) -> Vec<u32> {
    [pid].into_iter().chain(process::children_of(pid)).collect()
}

/// When the process was started, in ticks; nothing if it has ended. Pids are reused, but pid and start time together identify one process.
fn birth_of(pid: u32) -> Option<u64> {
    // If it is a child of this process that has ended, it is waited for. Of another process, nothing is learned.
    let _ = waitpid(Pid::from_raw(pid.cast_signed()), Some(WaitPidFlag::WNOHANG));
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next(), Some("Z" | "X")) { None } else { fields.nth(18)?.parse().ok() }
}
