//! `latchgate lock` and `latchgate once`: the commands that run a program.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use jiff::ZonedDateTime;
use jiff::tz::TimeZone;

use super::Every;
use super::duration::{duration, some_duration};

/// The nodes that a command calls.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// The nodes to call, separated by commas: http://HOST:PORT or https://HOST. One of them is called until it fails, then the
    /// next.
    #[arg(long, value_name = "URLS", env = "LATCHGATE_URL", default_value = "http://127.0.0.1:7070")]
    pub url: String,

    /// The API key. Prefer the environment: `ps` shows flags.
    #[arg(id = "api_key", long = "api-key", value_name = "API_KEY", env = "LATCHGATE_API_KEY", hide_env_values = true)]
    pub key: Option<String>,

    /// A PEM file with the certificates of the authorities that sign for https://. If absent: those that the system trusts.
    #[arg(long, value_name = "PATH", env = "LATCHGATE_CA", value_parser = authorities)]
    pub ca: Option<PathBuf>,

    /// When no node answers, a call ends after this time in all. A wait that has begun goes on through an outage, and ends this time
    /// after --wait at the latest.
    #[arg(long, value_name = "DURATION", env = "LATCHGATE_RETRY_FOR", default_value = "2s", value_parser = some_duration)]
    pub retry_for: Duration,
}

fn authorities(path: &str) -> Result<PathBuf, &'static str> {
    if path.trim().is_empty() { Err("LATCHGATE_CA is set and empty, or --ca is") } else { Ok(path.into()) }
}

const EXIT_CODES_OF_LOCK: &str = "\
Exit codes:
  The code of CMD; 128 and the signal's number if a signal ended it. And of latchgate itself:
    1   a setting is wrong, or the system refuses what latchgate needs
    2   the command line is wrong
   64   the request is refused, for example because of a wrong key or another limit of permits
   69   no server can be reached: CMD was not run
   75   could not get the lock within --wait, or a quota is used up: CMD was not run
   76   the lease was lost, and CMD was ended; or the lease had ended before CMD did
   77   the API key is missing, or does not permit this: CMD was not run
  126   CMD cannot be run
  127   CMD does not exist
  130   Ctrl-C while waiting for the lock: CMD was not run (143 after SIGTERM)

The end of CMD:
  The lock is held as long as CMD runs. When CMD has ended, processes of its process group that are left get SIGTERM, and SIGKILL \
  after --grace. Then the lock is released. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the process group.

  If no renewal is answered, the process group gets SIGTERM so early that --grace passes before the lease ends, and SIGKILL \
  before the lease ends by the server's clock. If the lease has ended already, because an operator ended it, it gets SIGKILL at \
  once. If an operator revokes the lock, it gets SIGTERM at once. A small second process does this even if latchgate itself \
  is stopped or killed. CMD can be paused anywhere, so where a late write would do harm, let CMD send LATCHGATE_TOKEN with each \
  write, and let the resource refuse a lower one.

Examples:
  latchgate lock deploy -- ./deploy.sh
  latchgate lock stock --shared --wait 10s -- ./report
  latchgate lock encoders --permits 1/3 -- ffmpeg -i in.mkv out.mp4
  latchgate lock workers --permits 1/10 --group tenant-42 --group-limit 2 -- ./work
  latchgate lock accounts/1 accounts/2 -- ./transfer 1 2
  latchgate lock --terraform network -- terraform apply
";

/// Run a program while holding a lock.
///
/// Waits for the lock of KEY, runs CMD, renews the lease as long as CMD runs, and releases the lock. Several keys are locked
/// together, all or none. CMD has in its environment LATCHGATE_TOKEN, the fencing token (with several keys one for each, separated
/// by commas), and LATCHGATE_LEASE, the lease id. With --permits also LATCHGATE_SLOT, the numbers of its permits, from 0: no other
/// holder has them. They are separated by commas, and those of several keys by semicolons.
#[derive(Debug, Args)]
#[command(after_long_help = EXIT_CODES_OF_LOCK, after_help = "`latchgate lock --help` has the exit codes and examples.")]
pub struct LockRunArgs {
    /// The names of the locks.
    #[arg(value_name = "KEY", required_unless_present = "terraform", conflicts_with = "terraform")]
    pub keys: Vec<String>,

    /// The program to run, with its arguments.
    #[arg(value_name = "CMD", last = true, required = true)]
    pub command: Vec<OsString>,

    /// Length of the lease between two renewals. A longer one survives longer outages; a shorter one is free sooner after a crash.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = some_duration)]
    pub ttl: Duration,

    /// How long to wait for the lock; 0 does not wait. If absent: for as long as it takes.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,

    /// Share the lock with other shared holders.
    #[arg(long, conflicts_with = "permits")]
    pub shared: bool,

    /// Take N of LIMIT permits: at most LIMIT are held at a time.
    #[arg(long, value_name = "N/LIMIT", value_parser = permits)]
    pub permits: Option<(u32, u32)>,

    /// The group that the permits count for, for example a tenant: a free permit goes to the waiting group that has fewest.
    #[arg(long, value_name = "NAME", requires = "permits")]
    pub group: Option<String>,

    /// Do not take the permits if the group would then have more than this.
    #[arg(long, value_name = "N", requires = "group", value_parser = clap::value_parser!(u32).range(1..))]
    pub group_limit: Option<u32>,

    /// Position in the queue: 1 to 10, higher first.
    #[arg(long, value_name = "1-10", value_parser = clap::value_parser!(u8).range(1..=10))]
    pub priority: Option<u8>,

    /// The holder's name, which other clients see. If absent: the name of this machine, the process id and the name of CMD, without its
    /// arguments.
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Lock this Terraform state, the key terraform/STATE: Terraform's `http` backend in CMD locks under the lease of this command, by the
    /// variables TF_HTTP_LOCK_ADDRESS and TF_HTTP_UNLOCK_ADDRESS.
    #[arg(long, value_name = "STATE", conflicts_with_all = ["shared", "permits"])]
    pub terraform: Option<String>,

    /// Keep the lock at least this long from its grant on, even if CMD ends sooner; up to a day. For jobs that machines with different
    /// clocks begin at the same time; with --permits N/LIMIT, a rate: LIMIT permits in each such time.
    #[arg(long, value_name = "DURATION", value_parser = some_duration, conflicts_with = "shared")]
    pub min_hold: Option<Duration>,

    /// If the lease expires, the lock is granted to no client for this long (lock-delay).
    #[arg(long, value_name = "DURATION", value_parser = some_duration)]
    pub delay: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when CMD must end; at most half of --ttl. If absent: a fifth of --ttl, at most 10s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub grace: Option<Duration>,

    /// Do not report on standard error who holds the lock during a wait.
    #[arg(long, short)]
    pub quiet: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

impl LockRunArgs {
    pub fn locked_keys(&self) -> Vec<String> {
        self.terraform.as_ref().map_or_else(|| self.keys.clone(), |state| vec![format!("terraform/{state}")])
    }

    /// # Errors
    /// When --grace does not fit into --ttl.
    pub fn grace(&self) -> anyhow::Result<Duration> {
        grace("--ttl", self.ttl, self.grace)
    }
}

const EXIT_CODES_OF_ONCE: &str = "\
Exit codes:
    0   CMD has succeeded, now or in an earlier run (then --duplicate-exit)
  The code of CMD if it has failed; 128 and the signal's number if a signal ended it. And of
  latchgate itself:
    1   a setting is wrong, or the system refuses what latchgate needs
    2   the command line is wrong
   64   the request is refused, for example because --checked differs from that of the first run
   69   no server can be reached: CMD was not run
   70   no node knows whether CMD has succeeded, in this run or in an earlier one: someone must
        check
   74   CMD has succeeded, now or in an earlier run, but its output could not be printed, or a
        signal has ended the wait for its reader: the next run prints it
   75   another run is in progress, or a quota is used up: CMD was not run
   76   the run has lost its lease, and CMD was ended: it may be half done, and with --on-expiry
        retry another run may have begun
   77   the API key is missing, or does not permit this: CMD was not run
  126   CMD cannot be run
  127   CMD does not exist

How the end of CMD is reported:
  Exit code 0 is a success. CMD's standard output is passed through, and kept as the result if it is text of at most 64 KiB \
  as JSON. A reader that is slow is waited for. \
  With --on-expiry block, any other code leaves the outcome unknown, unless --failure-exit names the code: then nothing was done, \
  and the next run begins. With --on-expiry retry, any other code is a failure, and the next run begins.

Examples:
  latchgate once '{\"order\": 42}' --operation charge -- ./charge 42
  latchgate once report --every 1h --quiet -- ./report   # in the crontabs of five machines
";

/// Run a program once: of all runs with the same contents within --retention (a day), one succeeds, and later ones print its output.
///
/// Asks the gate, runs CMD under heartbeats, and reports by its exit code how it ended. If a run with the same OPERATION and
/// CONTENTS has succeeded before, CMD is not run: its output of then is printed.
#[derive(Debug, Args)]
#[command(after_long_help = EXIT_CODES_OF_ONCE, after_help = "`latchgate once --help` has the exit codes and examples.")]
pub struct OnceArgs {
    /// What identifies the work: any text; or JSON, if it begins with { or [. The order of the keys in JSON does not matter. White space around
    /// it is ignored. It must say something: an unset variable identifies nothing.
    pub contents: String,

    /// The program to run, with its arguments.
    #[arg(value_name = "CMD", last = true, required = true)]
    pub command: Vec<OsString>,

    /// The kind of work: other kinds with the same contents are other work.
    #[arg(long, value_name = "NAME", default_value = "once")]
    pub operation: String,

    /// Once in each period of the calendar: 15m, 1h, 6h (periods that divide a day), 1d, 1w (from Monday on), 1month. A run that begins up to
    /// a minute (up to a tenth of the period) before the next period counts for the next, so that clocks may differ.
    #[arg(long, value_name = "PERIOD")]
    pub every: Option<Every>,

    /// The time zone of --every, for example Europe/Berlin. If absent: that of this machine.
    #[arg(long, value_name = "ZONE", requires = "every", value_parser = |zone: &str| TimeZone::get(zone).map_err(|error| error.to_string()))]
    pub tz: Option<TimeZone>,

    /// What must be equal in every run with these contents, but does not identify them, for example an amount.
    #[arg(long, value_name = "TEXT")]
    pub checked: Option<String>,

    /// A line about this run for people, shown with the operation; at most 256 bytes. If absent: the name of this machine, the process id and
    /// the name of CMD, without its arguments.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Keep CONTENTS with the record of the operation, so that a person can read them; at most 16 KiB.
    #[arg(long)]
    pub keep_contents: bool,

    /// How long a success is remembered; with --every at least two periods, but at most a year.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = some_duration)]
    pub retention: Duration,

    /// Remember a success for ever.
    #[arg(long, conflicts_with = "retention")]
    pub permanent: bool,

    /// Length of the lease between two heartbeats.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = some_duration)]
    pub lease: Duration,

    /// How long to wait for the end of another run.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    pub wait: Duration,

    /// What happens if a run dies half-way.
    #[arg(long, value_name = "CHOICE", default_value = "block")]
    pub on_expiry: OnExpiryChoice,

    /// What happens while no node answers, or the gate's store does not, for --retry-for.
    #[arg(long, value_name = "CHOICE", default_value = "closed")]
    pub on_outage: OnOutageChoice,

    /// Commit the claim to disk, also if the gate is a Redis.
    #[arg(long)]
    pub durable: bool,

    /// Exit codes by which CMD says that surely nothing was done, separated by commas.
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub failure_exit: Vec<u8>,

    /// Print nothing if the work was done before, or if another run is in progress: for crontabs, which mail what is printed.
    #[arg(long, short)]
    pub quiet: bool,

    /// The exit code if the work was done in an earlier run.
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub duplicate_exit: u8,

    /// Time between SIGTERM and SIGKILL when CMD must end; at most half of --lease. If absent: a fifth of --lease, at most 10s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub grace: Option<Duration>,

    #[command(flatten)]
    pub node: NodeArgs,
}

impl OnceArgs {
    /// The time in the zone whose calendar --every means.
    ///
    /// # Errors
    /// When TZ names no time zone: the periods would be those of another one.
    pub fn now(&self) -> anyhow::Result<ZonedDateTime> {
        let zone = match &self.tz {
            Some(zone) => zone.clone(),
            None if self.every.is_some() && env::var_os("TZ").is_some() => {
                TimeZone::try_system().context("TZ is no time zone that is known here: name one with --tz")?
            }
            None => TimeZone::system(),
        };
        Ok(ZonedDateTime::now().with_time_zone(zone))
    }

    /// # Errors
    /// When --grace does not fit into --lease.
    pub fn grace(&self) -> anyhow::Result<Duration> {
        grace("--lease", self.lease, self.grace)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnExpiryChoice {
    /// The next run does it again.
    Retry,
    /// No run begins until a person has found out how that run ended.
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOutageChoice {
    /// CMD is not run.
    Closed,
    /// CMD is run, and nothing keeps two runs apart. A success is entered afterwards, if a node can be reached for some seconds.
    Proceed,
}

fn grace(flag: &str, lease: Duration, grace: Option<Duration>) -> anyhow::Result<Duration> {
    let grace = grace.unwrap_or_else(|| (lease / 5).min(Duration::from_secs(10)));
    ensure!(grace <= lease / 2, "--grace must be at most half of {flag}");
    Ok(grace)
}

fn permits(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(permits, limit)| Some((permits.parse().ok()?, limit.parse().ok()?)));
    match parsed {
        Some((permits, limit)) if 0 < permits && permits <= limit => Ok((permits, limit)),
        _ => Err("must be N/LIMIT with 1 ≤ N ≤ LIMIT, for example 1/3".to_owned()),
    }
}
