//! Faults of every kind at random, one alone and then several at once, while clients take locks and operations; and the check that no promise
//! was broken: from what all clients saw, locks never had holders that exclude each other, tokens rose, no lease was lost that no store had
//! lost, operations that were done stay done, no fault kept clients from a lock for longer than its bound, and nothing is left behind.

mod end;
mod faults;
mod table;
mod target;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use futures::future::try_join_all;
use nix::unistd::Uid;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};

use self::end::Sizes;
use self::table::{DISK_FULL, FAULTS, Fault, UPGRADE, When};
use self::target::{OTHER_CLIENTS, SOON, Target};
pub use self::watch::{Watch, now_us, summary};
use crate::tier::{Kind, RECOVERY_MAX, ask, make_dir, say};

/// Longest time until the cause of a fault is gone.
const FAULT_MAX: Duration = Duration::from_secs(150);
const SUPERVISE_EVERY: Duration = Duration::from_millis(100);
/// The operator looks at a hold-off so long after the fault.
const OPERATOR_COMES_AFTER: Duration = Duration::from_secs(4);
/// A hold-off that is left to its end, in s, and the least that shows one.
const HOLD_OFF_S: u64 = 60;
const HOLD_OFF_LEAST: Duration = Duration::from_secs(50);
const SEVERAL: &str = "several at once";
const LEFT: &str = "a hold-off left to its end";
/// Minutes from which a run is a long one.
const LONG: u64 = 10;

#[derive(Clone, clap::Args)]
pub struct Args {
    /// How long it lasts in all, in minutes. In ten or more, slow faults happen too, and nothing may be left behind or have grown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Repeats the choices of an earlier run, as far as processes allow [default: a random one]
    #[arg(long)]
    seed: Option<u64>,
    /// Faults whose names begin so
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Targets, one after the other
    #[arg(long, value_delimiter = ',', default_value = "cluster,sqlite,pair")]
    on: Vec<Kind>,
    /// A built `latchgate` [default: the one beside this program]. `scripts/sensitivity.sh --crash` builds one for `crash-point …`
    #[arg(long, env = "CLUSTER_BINARY")]
    binary: Option<PathBuf>,
    /// The release before: each target begins with it, and is upgraded first
    #[arg(long, env = "OLD_BINARY")]
    old_binary: Option<PathBuf>,
    /// A directory that gets logs and histories of a run that fails
    #[arg(long, env = "KEEP_LOGS")]
    keep_logs: Option<PathBuf>,
}

impl Args {
    fn binary(&self) -> PathBuf {
        let binary = self.binary.clone().unwrap_or_else(crate::node::binary);
        fs::canonicalize(&binary).unwrap_or(binary)
    }

    fn is_long(&self) -> bool {
        self.minutes >= LONG
    }
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let scratch = tempfile::Builder::new().prefix("latchgate-chaos-").tempdir()?;
    let (scratch, data) = (scratch.path(), scratch.path().join("data"));
    make_dir(scratch)?;
    make_dir(&data)?;
    // Disks are filled only as root: the data is then on a file system in memory.
    let mount = ["-t", "tmpfs", "-o", "size=1536m,mode=711", "latchgate", &data.display().to_string()];
    let may_fill = Uid::effective().is_root() && ask::output("mount", mount).await.is_ok();
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..32_768));
    let random = StdRng::seed_from_u64(seed);
    let (costs, too_long) = (BTreeMap::new(), Vec::new());
    let mut chaos = Chaos { args, seed, random, may_fill, caused: 0, calls: 0, costs, too_long };
    let result = tokio::select! {
        result = chaos.run(scratch, &data) => result,
        () = crate::caller::end(u64::from(u32::MAX))? => Err(anyhow::anyhow!("ended by a signal")),
    };
    if let (Err(_), Some(kept)) = (&result, &args.keep_logs) {
        let script =
            r#"mkdir -p "$2" && cd "$1" && find . -path ./data -prune -o -type f -exec cp --parents {} "$2" \;"#;
        ask::output("bash", ["-c".as_ref(), script.as_ref(), "-".as_ref(), scratch.as_os_str(), kept.as_os_str()])
            .await?;
    }
    if may_fill {
        ask::output("umount", ["-l".as_ref(), data.as_os_str()]).await?;
    }
    result
}

fn name_of(kind: Kind) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

struct Chaos<'a> {
    args: &'a Args,
    seed: u64,
    random: StdRng,
    may_fill: bool,
    /// How many faults have begun on this target: each has random numbers of its own.
    caused: u64,
    calls: usize,
    /// How often each was caused, and the longest outages in s without a lock and without an operation.
    costs: BTreeMap<&'static str, (usize, f64, f64)>,
    too_long: Vec<String>,
}

impl Chaos<'_> {
    async fn run(&mut self, scratch: &Path, data: &Path) -> anyhow::Result<()> {
        let on = self.args.on.iter().copied().map(name_of).collect::<Vec<_>>().join(",");
        say(&format!("{} minutes of chaos on {on} (--seed {})", self.args.minutes, self.seed));
        let share = Duration::from_secs(60 * self.args.minutes / self.args.on.len() as u64);
        for kind in &self.args.on {
            ensure!(FAULTS.iter().any(|fault| fault.on.contains(kind)), "chaos has no faults for {}", name_of(*kind));
        }
        for kind in &self.args.on {
            // So that a seed repeats a target whatever ran before it.
            self.random = StdRng::seed_from_u64(self.seed << 8 | *kind as u64);
            self.caused = 0;
            let faults = self.plan(*kind).await?;
            let old = if faults[0].name == UPGRADE { self.args.old_binary.as_deref() } else { None };
            let old = old.map(fs::canonicalize).transpose()?;
            let (room, data) = (scratch.join(name_of(*kind)), data.join(name_of(*kind)));
            let target = Target::start(*kind, self.args, old.as_deref(), &room, &data).await?;
            self.run_target(&target, faults, share).await?;
            drop(target);
            fs::remove_dir_all(&data)?;
        }
        self.report();
        ensure!(self.too_long.is_empty(), "clients waited for too long:\n{}", self.too_long.join("\n"));
        Ok(())
    }

    /// The faults that this run has on a target. First the upgrade, if it begins with the release before.
    async fn plan(&self, kind: Kind) -> anyhow::Result<Vec<&'static Fault>> {
        let binary = self.args.binary();
        let has_crash_points =
            ask::output("grep", ["-qa".as_ref(), "TEST_CRASH".as_ref(), binary.as_os_str()]).await.is_ok();
        let mut faults: Vec<&Fault> = FAULTS.iter().filter(|fault| fault.on.contains(&kind)).collect();
        faults.retain(|fault| match self.args.only.as_slice() {
            [] => fault.when != When::AloneInLongRuns || self.args.is_long(),
            only => only.iter().any(|only| fault.name.starts_with(only)),
        });
        faults.retain(|fault| {
            let reason = match fault.name {
                UPGRADE if self.args.old_binary.is_none() => "OLD_BINARY is not set",
                DISK_FULL if !self.may_fill => "no file system can be mounted",
                name if name.starts_with("crash-point") => return has_crash_points,
                _ => return true,
            };
            say(&format!("left out: {} ({reason})", fault.name));
            false
        });
        ensure!(!faults.is_empty(), "no such fault on {}: {:?}", name_of(kind), self.args.only);
        faults.sort_by_key(|fault| fault.name != UPGRADE);
        Ok(faults)
    }

    async fn run_target(
        &mut self,
        target: &Target,
        mut faults: Vec<&'static Fault>,
        share: Duration,
    ) -> anyhow::Result<()> {
        let (began, mut first) = (Instant::now(), None);
        if faults[0].name == UPGRADE {
            let upgrade = faults.remove(0);
            self.run_faults(target, &[upgrade]).await?;
        }
        // A node on SQLite that is started while its clock is ahead takes live leases for ended (docs/GUARANTEES.md).
        let sets_clock = |fault: &Fault| fault.name.starts_with("clock") || fault.name.starts_with("drift");
        let mut several = faults.clone();
        several.retain(|fault| fault.when == When::Always && !(target.tier.kind == Kind::Sqlite && sets_clock(fault)));
        let mut alone = faults.clone();
        alone.shuffle(&mut self.random);
        while began.elapsed() < share && !faults.is_empty() {
            if several.len() < 2 || (!alone.is_empty() && self.random.random_range(0..3) > 0) {
                if alone.is_empty() {
                    alone.clone_from(&faults);
                    alone.shuffle(&mut self.random);
                }
                let fault = alone.pop().context("there are faults")?;
                self.run_faults(target, &[fault]).await?;
            } else {
                several.shuffle(&mut self.random);
                let count = self.random.random_range(2..=3).min(several.len());
                self.run_faults(target, &several[..count]).await?;
            }
            if self.args.is_long() && first.is_none() && began.elapsed() > share / 5 {
                first = Some(Sizes::measure(target).await?);
            }
        }
        say(&format!("{}: the load ends", name_of(target.tier.kind)));
        target.watch.stop(&target.tier.parts, &[&["recorder"], OTHER_CLIENTS.as_slice()].concat()).await?;
        let seen = target.watch.check().await?;
        self.calls += seen.calls;
        println!("{}", summary(&seen));
        target.until_empty(self.args.is_long()).await?;
        match first {
            Some(first) => first.compare(&Sizes::measure(target).await?),
            None => Ok(()),
        }
    }

    /// All at once; waits until all is as before, and compares how long that took with the sum of their bounds.
    async fn run_faults(&mut self, target: &Target, faults: &[&'static Fault]) -> anyhow::Result<()> {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
        let all = format!("{}: {}", name_of(target.tier.kind), names.join(", "));
        say(&all);
        target.watch.begin_fault()?;
        let first = self.caused + 1;
        self.caused += faults.len() as u64;
        let causes = faults.iter().zip(first..).map(async |(fault, number)| {
            let mut random = StdRng::seed_from_u64(self.seed << 32 | number);
            (fault.cause)(target, &mut random).await.with_context(|| format!("{} has failed", fault.name))
        });
        let supervise = async {
            loop {
                sleep(SUPERVISE_EVERY).await;
                if let Err(error) = target.tier.parts.supervise() {
                    return error;
                }
            }
        };
        tokio::select! {
            caused = timeout(FAULT_MAX, try_join_all(causes)) => drop(caused.with_context(|| format!("{all} does not end"))??),
            error = supervise => return Err(error),
        }
        let gone = Instant::now();
        // In a long run, the operator leaves one hold-off in four to its end, after a minute.
        let is_patient = self.args.is_long() && self.random.random_range(0..4) == 0;
        let locks_s = faults.iter().map(|fault| fault.locks_s).sum::<u64>() + if is_patient { HOLD_OFF_S } else { 0 };
        let operations_s = faults.iter().map(|fault| fault.operations_s).sum::<u64>();
        let attend = async || {
            if !is_patient && gone.elapsed() >= OPERATOR_COMES_AFTER {
                target.order_end_of_hold_off().await;
            }
            target.tier.parts.supervise()
        };
        target.watch.until_as_before(&all, RECOVERY_MAX, &target.tier.parts, attend).await?;
        let (locks, operations) = target.watch.end_fault()?;
        if target.tier.kind == Kind::Ha {
            target.tier.until_complete().await?;
        }
        let name = match faults {
            _ if is_patient && locks >= HOLD_OFF_LEAST => LEFT,
            [fault] => fault.name,
            _ => SEVERAL,
        };
        let (locks, operations) = (locks.as_secs_f64(), operations.as_secs_f64());
        say(&format!("    {locks:.1} s without a lock, {operations:.1} s without an operation"));
        let (times, without, without_operations) = self.costs.entry(name).or_default();
        (*times, *without, *without_operations) = (*times + 1, without.max(locks), without_operations.max(operations));
        if locks > locks_s as f64 || operations > operations_s as f64 {
            self.too_long.push(format!("{all}: {locks:.1} and {operations:.1} s"));
            say(&format!("    longer than the bounds of {locks_s} and {operations_s} s"));
        }
        Ok(())
    }

    fn report(&self) {
        println!("\n{:<36} {:>5}  {:>22}  {:>22}", "fault", "times", "s without a lock", "s without an operation");
        let bounds = FAULTS.iter().map(|fault| (fault.name, fault.locks_s.to_string(), fault.operations_s.to_string()));
        let sums =
            [(SEVERAL, "the sum"), (LEFT, "and 60")].map(|(name, sum)| (name, sum.to_owned(), "the sum".to_owned()));
        for (name, locks_max, operations_max) in bounds.chain(sums) {
            if let Some((times, locks, operations)) = self.costs.get(name) {
                println!(
                    "{name:<36} {times:>5}  {locks:>9.1} of {locks_max:>10}  {operations:>9.1} of {operations_max:>10}"
                );
            }
        }
        let all: usize = self.costs.values().map(|cost| cost.0).sum();
        println!("\n{} calls, {all} faults, 0 broken promises (--seed {})", self.calls, self.seed);
    }
}
