//! Servers with names, in a directory that has their data, and `NAME.log` with their output. They end with the value.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use nix::unistd::Uid;
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
    /// Postgres refuses to run as root.
    is_as_postgres: bool,
}

impl Spec {
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.into(), args, env: Vec::new(), is_as_postgres: false }
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    pub fn as_postgres(self) -> Self {
        Self { is_as_postgres: true, ..self }
    }
}

struct Part {
    name: String,
    spec: Spec,
    child: Child,
    /// `supervise` leaves it alone.
    is_down: bool,
}

pub struct Parts {
    room: PathBuf,
    /// In the order of their first starts.
    all: RefCell<Vec<Part>>,
    ports: RefCell<BTreeMap<String, u16>>,
    starts: Cell<u64>,
}

impl Parts {
    pub fn new(room: PathBuf) -> Self {
        Self { room, all: RefCell::default(), ports: RefCell::default(), starts: Cell::new(0) }
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

    /// Starts a server. If this process is killed, the kernel kills the server: that follows the thread that starts it, which must be the main
    /// thread.
    pub fn start(&self, name: &str, spec: Spec) -> anyhow::Result<()> {
        let output = File::options().create(true).append(true).open(self.file(&format!("{name}.log")))?;
        // Away from the terminal's Ctrl-C. In one setpriv: a later change of user would reset the signal.
        let mut command = Command::new("setsid");
        command.args(["--", "setpriv", "--pdeathsig", "KILL"]);
        if spec.is_as_postgres && Uid::effective().is_root() {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--init-groups"]);
        }
        self.starts.set(self.starts.get() + 1);
        let start = self.starts.get().to_string();
        command.arg("--").arg(&spec.program).args(spec.args.iter().map(|arg| arg.replace("{start}", &start)));
        command.envs(spec.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        let child =
            command.stdout(output.try_clone()?).stderr(output).spawn().with_context(|| format!("starting {name}"))?;
        let mut all = self.all.borrow_mut();
        match all.iter_mut().find(|part| part.name == name) {
            Some(part) => (part.spec, part.child) = (spec, child),
            None => all.push(Part { name: name.to_owned(), spec, child, is_down: false }),
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
        for _ in 0..START_TRIES {
            self.ports.borrow_mut().insert(name.to_owned(), free_port());
            self.start(name, spec(self.port(name)))?;
            if self.until_ready(name, &is_ready).await.is_ok() {
                return Ok(());
            }
            self.end(name, Signal::SIGKILL).await;
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

    /// The main process of a part, while it runs.
    pub fn pid(&self, name: &str) -> Option<u32> {
        let mut all = self.all.borrow_mut();
        let child = &mut all.iter_mut().find(|part| part.name == name)?.child;
        matches!(child.try_wait(), Ok(None)).then(|| child.id())
    }

    /// The main process and its children. A backend of Postgres has a session of its own, but is a child of the postmaster.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        self.pid(name).map(with_children).unwrap_or_default()
    }

    /// Sends a signal to the main process of a part, and returns when that has ended.
    pub async fn end(&self, name: &str, signal: Signal) {
        let Some(pid) = self.pid(name) else { return };
        send([pid], signal);
        let deadline = Instant::now() + END_WITHIN;
        // The supervisor may have started the next.
        while self.pid(name) == Some(pid) {
            if Instant::now() > deadline {
                send([pid], Signal::SIGKILL);
            }
            sleep(POLL_EVERY).await;
        }
    }

    /// Starts the parts that have ended, as a supervisor does.
    pub fn supervise(&self) -> anyhow::Result<()> {
        let names: Vec<(String, Spec)> = self
            .all
            .borrow()
            .iter()
            .filter(|part| !part.is_down)
            .map(|part| (part.name.clone(), part.spec.clone()))
            .collect();
        for (name, spec) in names.into_iter().filter(|(name, _)| self.pid(name).is_none()) {
            // The next Patroni takes over the Postgres of one that was killed.
            if !name.starts_with("patroni") {
                send(writers(|log| log == self.file(&format!("{name}.log"))), Signal::SIGKILL);
            }
            if name == "postgres" {
                forget_killed_postgres(&spec);
            }
            self.start(&name, spec)?;
        }
        Ok(())
    }

    /// Whether [`supervise`](Self::supervise) is to leave a part alone when it ends.
    pub fn set_down(&self, name: &str, is_down: bool) {
        self.all.borrow_mut().iter_mut().filter(|part| part.name == name).for_each(|part| part.is_down = is_down);
    }

    pub fn names(&self) -> Vec<String> {
        self.all.borrow().iter().map(|part| part.name.clone()).collect()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        send(writers(|log| log.starts_with(&self.room)), Signal::SIGKILL);
        self.all.get_mut().iter_mut().for_each(|part| drop(part.child.wait()));
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

/// The processes that have their output in a file for which this is true: also what a killed part has left, for example workers of nginx,
/// which still answer on its port.
pub fn writers(is_log: impl Fn(&Path) -> bool) -> Vec<u32> {
    let writes = |pid: &u32| fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|output| is_log(&output));
    process::all().into_iter().filter(writes).collect()
}

/// Sends a signal to processes. One that has just ended does not matter.
pub fn send(pids: impl IntoIterator<Item = u32>, signal: Signal) {
    pids.into_iter().for_each(|pid| process::send(pid, signal));
}

pub fn with_children(pid: u32) -> Vec<u32> {
    [pid].into_iter().chain(process::children_of(pid)).collect()
}
