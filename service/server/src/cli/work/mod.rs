//! Runs a program under a lease: in a process group of its own, in front of the terminal if there is one, and no longer than the
//! lease.

mod output;
mod signals;
mod terminal;
mod tree;
pub mod warden;

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use latchgate_client::clock::{Moment, sleep_until};
use latchgate_client::{process_name, program_name};
use latchgate_core::access::has_api_key;
use latchgate_core::gate::LABEL_MAX_BYTES;
use latchgate_core::lock::OWNER_MAX_BYTES;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, Uid, geteuid};
use tokio::io::{stderr, stdout};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::output::{Keep, Output};
pub use self::output::{Printed, print};
pub use self::signals::{ANSWER_MAX, Signals, code_of};
use self::terminal::Terminal;
use self::tree::Tree;
use self::warden::Order;
use super::print::complain;

/// How often the program is looked at, besides at each SIGCHLD.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LEFT_OVER_LOOK_EVERY: Duration = Duration::from_millis(20);
/// How much of what a program says on standard error is kept.
const ERRORS_MAX: usize = 1_024;
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;

/// What is to be run.
pub struct Work<'a> {
    pub command: &'a [OsString],
    pub environment: Vec<(&'static str, String)>,
    /// Keep what the program prints, up to this many bytes, and the end of what it says on standard error.
    pub output_max: Option<usize>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How long before the end of the lease the program is killed.
    pub margin: Duration,
}

/// Whether the program may run.
#[derive(Clone, Debug)]
pub enum Hold {
    /// Until then; for ever without a moment.
    Held(Option<Moment>),
    /// As [`Hold::Held`], but it is asked to end.
    Asked(Option<Moment>),
    Over,
}

/// How the program ended.
pub enum Ended {
    /// It cannot be run; with the exit code that says so.
    NotRun(u8),
    Ran {
        code: u8,
        /// It was ended, because it may no longer have been allowed to run.
        is_cut: bool,
        /// What it printed, if that was to be kept.
        output: Option<Printed>,
        /// The end of what it said on standard error, if that is no terminal.
        errors: Vec<u8>,
    },
}

impl Hold {
    fn kill_at(&self, margin: Duration) -> Option<Moment> {
        match self {
            Self::Held(until) | Self::Asked(until) => until.map(|until| until.minus(margin)),
            Self::Over => Some(Moment::now()),
        }
    }
}

/// Runs the program until it has ended, and what it has left in its process group. `hold_of` says what a state of its lease means for
/// it.
///
/// # Errors
/// When the system refuses what is needed to watch over a program.
pub async fn run<S>(
    work: &Work<'_>,
    mut state: watch::Receiver<S>,
    hold_of: impl Fn(&S) -> Hold,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let mut children = signal(SignalKind::child())?;
    if file_of(&work.command[0]).is_some_and(|file| becomes_another_user(&file, geteuid())) {
        complain(format_args!(
            "{} becomes another user: latchgate cannot end it when its lease ends, unless latchgate is run as that user",
            work.command[0].to_string_lossy()
        ));
    }
    let mut warden = Warden::start().context("cannot start the warden")?;
    let mut kill_at = hold_of(&state.borrow_and_update()).kill_at(work.margin);
    warden.order(&Order::Until(kill_at));
    let mut program = match start(work, warden.group) {
        Ok(program) => program,
        Err(error) => {
            warden.dismiss();
            eprintln!("latchgate: {}: {error}", work.command[0].to_string_lossy());
            let is_absent = error.kind() == io::ErrorKind::NotFound;
            return Ok(Ended::NotRun(if is_absent { NOT_FOUND } else { CANNOT_RUN }));
        }
    };
    let id = Pid::from_raw(i32::try_from(program.id())?);
    warden.order(&Order::Program(Some(id)));
    let tree = Tree { group: warden.group, first: Some(id) };
    let mut front = Front { terminal: Terminal::open(warden.group), group: warden.group };
    front.begin();
    let output = program.stdout.take().zip(work.output_max);
    let output = output.map(|(pipe, max)| Output::pass_on(pipe, Keep::All(max), stdout())).transpose()?;
    let errors =
        program.stderr.take().map(|pipe| Output::pass_on(pipe, Keep::End(ERRORS_MAX), stderr())).transpose()?;
    let mut reach = Reach { program: id, is_said: false };

    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut is_cut = false;
    // Once SIGTERM was sent for want of a renewal, a later renewal does not give more time.
    let mut cut_at: Option<Moment> = None;
    let code = loop {
        if let Some(code) = front.look(id) {
            break code;
        }
        let is_over = kill_at.is_some_and(Moment::has_passed);
        if is_over || warden.has_ended() {
            is_cut = true;
            tree.kill();
            reach.look();
        }
        let term_at = kill_at.filter(|_| !is_cut).map(|kill_at| kill_at.minus(work.grace));
        tokio::select! {
            _ = children.recv() => {}
            _ = look.tick() => {}
            signal = signals.next() => {
                match signal {
                    Signal::SIGUSR1 | Signal::SIGUSR2 => drop(kill(id, signal)),
                    signal => drop(killpg(warden.group, signal)),
                }
                reach.look();
            }
            Ok(()) = state.changed() => {
                let hold = hold_of(&state.borrow_and_update());
                kill_at = hold.kill_at(work.margin).into_iter().chain(cut_at).min();
                warden.order(&Order::Until(kill_at));
                if matches!(hold, Hold::Asked(_)) && !is_cut {
                    is_cut = true;
                    end(warden.group);
                    reach.look();
                }
            }
            () = at(term_at), if term_at.is_some() => {
                is_cut = true;
                cut_at = Some(Moment::now().plus(work.grace));
                end(warden.group);
                reach.look();
            }
            () = at(kill_at), if is_cut && kill_at.is_some_and(|at| !at.has_passed()) => {}
        }
    };
    front.end();
    // A program that no signal reaches has ended by itself.
    is_cut = (is_cut || kill_at.is_some_and(Moment::has_passed)) && !reach.is_said;
    // The process id of the program may be that of another process from now on.
    warden.order(&Order::Program(None));
    end_left_over(work, Tree { first: None, ..tree }, &mut warden, kill_at).await;
    let output = match output {
        Some(output) => Some(output.printed(signals).await),
        None => None,
    };
    let errors = match errors {
        Some(errors) => errors.printed(signals).await.kept.unwrap_or_default(),
        None => Vec::new(),
    };
    Ok(Ended::Ran { code, is_cut, output, errors })
}

async fn at(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn end(group: Pid) {
    let _ = killpg(group, Signal::SIGTERM);
    // A stopped program gets the signal when it goes on.
    let _ = killpg(group, Signal::SIGCONT);
}

fn start(work: &Work<'_>, group: Pid) -> io::Result<Child> {
    let spawn = |mut command: Command, arguments: &[OsString]| {
        command.args(arguments).envs(work.environment.iter().map(|(name, value)| (name, value)));
        if work.output_max.is_some() {
            command.stdout(Stdio::piped());
            if !io::stderr().is_terminal() {
                command.stderr(Stdio::piped());
            }
        }
        command.process_group(group.as_raw()).spawn()
    };
    let started = spawn(Command::new(&work.command[0]), &work.command[1..]);
    match (&started, file_of(&work.command[0])) {
        // A script without `#!`: shells, env and timeout run it so.
        (Err(error), Some(file)) if error.raw_os_error() == Some(nix::libc::ENOEXEC) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg(file);
            spawn(shell, &work.command[1..])
        }
        _ => started,
    }
}

/// The file of a program, from PATH if its name has no slash.
fn file_of(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let is_program = |file: &PathBuf| file.metadata().is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|directory| directory.join(program)).find(is_program)
}

/// Whether a program runs as a user whose processes this one may not signal, as sudo does.
fn becomes_another_user(file: &Path, own: Uid) -> bool {
    let is_setuid = |file: Metadata| file.mode() & 0o4_000 != 0 && file.uid() != own.as_raw();
    !own.is_root() && file.metadata().is_ok_and(is_setuid)
}

/// Whether signals reach the program. It may have become another user.
struct Reach {
    program: Pid,
    is_said: bool,
}

impl Reach {
    /// After a signal was sent.
    fn look(&mut self) {
        let is_refused = kill(self.program, None) == Err(nix::errno::Errno::EPERM);
        if is_refused && !std::mem::replace(&mut self.is_said, true) {
            complain(
                "CMD runs as another user: no signal of latchgate reaches it. It goes on, whatever becomes of its lease",
            );
        }
    }
}

/// Ends what the program has left in its process group.
async fn end_left_over(work: &Work<'_>, tree: Tree, warden: &mut Warden, kill_at: Option<Moment>) {
    let mut left_at = Moment::now().plus(work.grace);
    if let Some(kill_at) = kill_at {
        left_at = left_at.min(kill_at);
    }
    if tree.has_members() {
        end(warden.group);
        warden.order(&Order::Until(Some(left_at)));
        while tree.has_members() {
            if left_at.has_passed() {
                tree.kill();
                break;
            }
            tokio::time::sleep(LEFT_OVER_LOOK_EVERY).await;
        }
        if tree.has_members() {
            complain(
                "a process that CMD has started runs on: no signal of latchgate ends it. It may run as another user",
            );
        }
    }
    warden.dismiss();
}

/// Which run it is, for people who see it as the owner of a lock or as the label of an operation. Arguments can be secret.
pub fn name_of(command: &[OsString]) -> String {
    let name = format!("{} {}", process_name(), program_name(command.first().map_or("".as_ref(), OsString::as_os_str)));
    // A server refuses such a name.
    if has_api_key(&name) || name.len() > LABEL_MAX_BYTES.min(OWNER_MAX_BYTES) { process_name() } else { name }
}

/// The program in front of the terminal, if there is one.
struct Front {
    terminal: Option<Terminal>,
    group: Pid,
}

impl Front {
    fn begin(&mut self) {
        if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.is_for_program()) {
            terminal.give();
            // It may have asked for the terminal before it had it, and be stopped by that.
            let _ = killpg(self.group, Signal::SIGCONT);
        }
    }

    fn end(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
    }

    /// The exit code of the program, if it has ended. Follows it when it is stopped.
    fn look(&mut self, program: Pid) -> Option<u8> {
        loop {
            return match waitpid(program, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(_, code)) => Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
                Ok(WaitStatus::Signaled(_, signal, _)) => Some(128 + u8::try_from(signal as i32).unwrap_or(127)),
                Ok(WaitStatus::Stopped(_, signal)) => {
                    self.follow(signal);
                    continue;
                }
                Ok(_) => None,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => Some(u8::MAX),
            };
        }
    }

    /// The program was stopped: at the terminal, latchgate stops as well, so that the shell comes back.
    fn follow(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let asks = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if asks && terminal.is_own() {
            terminal.give();
            let _ = killpg(self.group, Signal::SIGCONT);
            return;
        }
        if !asks && !terminal.is_given() {
            return;
        }
        terminal.take_back();
        // Returns when the shell lets latchgate go on. The warden watches over the lease meanwhile.
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        if terminal.is_own() {
            terminal.give();
        }
        let _ = killpg(self.group, Signal::SIGCONT);
    }
}

/// The warden's process.
struct Warden {
    process: Child,
    group: Pid,
}

impl Warden {
    /// Returns when it is ready.
    fn start() -> anyhow::Result<Self> {
        // The file of this program may have been replaced since it was started.
        let own = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        let mut process = Command::new(own)
            .arg0("latchgate")
            .arg("warden")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let output = process.stdout.take().context("it has no output")?;
        let mut ready = String::new();
        BufReader::new(output).read_line(&mut ready)?;
        anyhow::ensure!(ready == "ready\n", "it does not get ready");
        let group = Pid::from_raw(i32::try_from(process.id())?);
        Ok(Self { process, group })
    }

    /// If it has ended, `has_ended` says so.
    fn order(&mut self, order: &Order) {
        if let Some(input) = &mut self.process.stdin {
            let _ = input.write_all(order.line().as_bytes());
        }
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    fn dismiss(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_becomes_another_user_is_noticed() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = file.path().metadata().unwrap().uid();
        let with_mode = |mode: u32, user: u32| {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            becomes_another_user(file.path(), Uid::from_raw(user))
        };
        assert!(with_mode(0o4_755, own + 1));
        assert!(!with_mode(0o4_755, own) && !with_mode(0o755, own + 1) && !with_mode(0o4_755, 0));
        assert!(!becomes_another_user("/absent".as_ref(), Uid::from_raw(own + 1)));
        assert!(
            file_of("sh".as_ref()).is_some_and(|file| file.ends_with("sh")) && file_of("absent".as_ref()).is_none()
        );
    }

    #[test]
    fn the_name_of_a_run_has_the_program_but_no_arguments_and_is_always_valid() {
        let name = |program: &str| name_of(&[program.into(), "--password=secret".into()]);
        assert_eq!(name("/usr/bin/report"), format!("{} report", process_name()));
        for program in ["a\nb", &"é".repeat(400), &"🔒".repeat(400), "lgk_0123456789ab_c0ffee", ".."] {
            let name = name(program);
            assert!(latchgate_core::gate::Label::parse(&name).is_ok() && !has_api_key(&name), "{name}");
        }
    }
}
