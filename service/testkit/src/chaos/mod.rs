//! Faults of every kind at random, one alone and then several at once, while clients take locks and operations; and the check that no promise
//! was broken: from what all clients saw, locks never had holders that exclude each other, tokens rose, no lease was lost that no store had
//! lost, operations that were done stay done, no fault kept clients from a lock for longer than its bound, and nothing is left behind.

mod end;
mod faults;
mod table;
mod tier;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};

use self::end::Sizes;
use self::table::{Action, FAULTS, Fault, Hit, UPGRADE};
use self::tier::{OTHER_CLIENTS, RECOVERY_MAX, Target, Tier};
pub use self::watch::{Outage, Watch, now_us, summary};
use crate::cluster::ask;
use crate::cluster::say;

/// Longest time until the cause of a fault is gone.
const FAULT_MAX: Duration = Duration::from_secs(150);
const SUPERVISE_EVERY: Duration = Duration::from_millis(100);
/// The operator looks at a hold-off so long after the fault.
const OPERATOR_COMES_AFTER: Duration = Duration::from_secs(4);
/// A hold-off that is left to its end, and the least that shows one.
const HOLD_OFF: Duration = Duration::from_secs(60);
const HOLD_OFF_LEAST: Duration = Duration::from_secs(50);
const SEVERAL: &str = "several at once";
const LEFT: &str = "a hold-off left to its end";
/// In s.
const NEVER: u64 = 365 * 86_400;
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
    on: Vec<Target>,
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
    let data = scratch.path().join("data");
    fs::create_dir(&data)?;
    for dir in [scratch.path(), &data] {
        ask::output("chmod", ["711", &dir.display().to_string()]).await?;
    }
    // Disks are filled only as root: the data is then on a file system in memory.
    let mount = ["-t", "tmpfs", "-o", "size=1536m,mode=711", "latchgate", &data.display().to_string()];
    let may_fill = nix::unistd::Uid::effective().is_root() && ask::output("mount", mount).await.is_ok();
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..32_768));
    let mut chaos = Chaos {
        args,
        seed,
        random: StdRng::seed_from_u64(seed),
        may_fill,
        caused: 0,
        calls: 0,
        costs: BTreeMap::new(),
        too_long: Vec::new(),
    };
    let result = tokio::select! {
        result = chaos.run(scratch.path(), &data) => result,
        () = crate::caller::end(NEVER)? => Err(anyhow::anyhow!("ended by a signal")),
    };
    if let (Err(_), Some(kept)) = (&result, &args.keep_logs) {
        fs::create_dir_all(kept)?;
        let script = r#"find "$1" -path "$1/data" -prune -o -type f -exec cp --parents {} "$2" \;"#;
        ask::output("bash", ["-c", script, "-", &scratch.path().display().to_string(), &kept.display().to_string()])
            .await?;
    }
    if may_fill {
        ask::output("umount", ["-l", &data.display().to_string()]).await?;
    }
    result
}

struct Chaos<'a> {
    args: &'a Args,
    seed: u64,
    random: StdRng,
    may_fill: bool,
    /// How many faults have begun: each has random numbers of its own.
    caused: u64,
    calls: usize,
    /// How often each was caused, and the longest outages.
    costs: BTreeMap<&'static str, (usize, Outage)>,
    too_long: Vec<String>,
}

impl Chaos<'_> {
    async fn run(&mut self, scratch: &Path, data: &Path) -> anyhow::Result<()> {
        let on: Vec<String> = self.args.on.iter().map(|target| target.name()).collect();
        say(&format!("{} minutes of chaos on {} (--seed {})", self.args.minutes, on.join(","), self.seed));
        let share = Duration::from_secs(60 * self.args.minutes / self.args.on.len() as u64);
        let has_crash_points =
            ask::output("grep", ["-qa", "TEST_CRASH", &self.args.binary().display().to_string()]).await.is_ok();
        for target in self.args.on.clone() {
            let (faults, upgrade) = self.plan(target, has_crash_points)?;
            let old = upgrade.and(self.args.old_binary.as_deref()).map(fs::canonicalize).transpose()?;
            let tier = Tier::start(target, self.args, scratch.join(target.name()), data, old.as_deref()).await?;
            let done = self.run_target(&tier, &faults, upgrade, share).await;
            tier.parts.stop_all().await;
            done?;
            fs::remove_dir_all(&tier.data)?;
        }
        self.report();
        ensure!(self.too_long.is_empty(), "clients waited for too long:\n{}", self.too_long.join("\n"));
        Ok(())
    }

    /// The faults that this run has on a target, and the upgrade, if it begins with the release before.
    fn plan(
        &self,
        target: Target,
        has_crash_points: bool,
    ) -> anyhow::Result<(Vec<&'static Fault>, Option<&'static Fault>)> {
        let (mut faults, mut upgrade) = (Vec::new(), None);
        for fault in FAULTS.iter().filter(|fault| fault.on.contains(&target)) {
            let is_asked_for = self.args.only.iter().any(|only| fault.name.starts_with(only.as_str()));
            if !is_asked_for && (!self.args.only.is_empty() || fault.is_slow && !self.args.is_long()) {
                continue;
            }
            match fault.action {
                Action::Upgrade if self.args.old_binary.is_none() => {
                    say(&format!("left out: {UPGRADE} (OLD_BINARY is not set)"))
                }
                Action::Upgrade => upgrade = Some(fault),
                Action::CrashPoint(_) if !has_crash_points => {}
                Action::DiskFull if !self.may_fill => {
                    say(&format!("left out: {} (no file system can be mounted)", fault.name));
                }
                _ => faults.push(fault),
            }
        }
        ensure!(upgrade.is_some() || !faults.is_empty(), "no such fault on {}: {:?}", target.name(), self.args.only);
        Ok((faults, upgrade))
    }

    async fn run_target(
        &mut self,
        tier: &Tier,
        faults: &[&'static Fault],
        upgrade: Option<&'static Fault>,
        share: Duration,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        if let Some(upgrade) = upgrade {
            self.run_faults(tier, &[upgrade]).await?;
        }
        // A node on SQLite that is started while its clock is ahead takes live leases for ended (docs/GUARANTEES.md).
        let sets_clock = |fault: &Fault| matches!(fault.action, Action::Clock(Hit::Node, _) | Action::Drift(Hit::Node));
        let may_join = |fault: &&&Fault| !fault.is_single && !(tier.target == Target::Sqlite && sets_clock(fault));
        let mut several: Vec<&Fault> = faults.iter().filter(may_join).copied().collect();
        let mut alone = faults.to_vec();
        alone.shuffle(&mut self.random);
        let mut first = None;
        while began.elapsed() < share && !faults.is_empty() {
            if several.len() < 2 || (!alone.is_empty() && self.random.random_range(0..3) > 0) {
                if alone.is_empty() {
                    alone = faults.to_vec();
                    alone.shuffle(&mut self.random);
                }
                let fault = alone.pop().context("there are faults")?;
                self.run_faults(tier, &[fault]).await?;
            } else {
                several.shuffle(&mut self.random);
                let count = self.random.random_range(2..=3).min(several.len());
                self.run_faults(tier, &several[..count]).await?;
            }
            if self.args.is_long() && first.is_none() && began.elapsed() > share / 5 {
                first = Some(Sizes::measure(tier).await?);
            }
        }
        self.check(tier, first).await
    }

    /// All at once; waits until all is as before, and compares how long that took with the sum of their bounds.
    async fn run_faults(&mut self, tier: &Tier, faults: &[&'static Fault]) -> anyhow::Result<()> {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
        let all = format!("{}: {}", tier.target.name(), names.join(", "));
        say(&all);
        tier.watch().begin_fault()?;
        let first = self.caused + 1;
        self.caused += faults.len() as u64;
        let causes = faults.iter().zip(first..).map(async |(fault, number)| {
            let mut random = StdRng::seed_from_u64(self.seed << 32 | number);
            tier.cause(fault.action, &mut random).await.with_context(|| format!("{} has failed", fault.name))
        });
        let supervise = async {
            loop {
                sleep(SUPERVISE_EVERY).await;
                if let Err(error) = tier.parts.supervise() {
                    return error;
                }
            }
        };
        tokio::select! {
            caused = timeout(FAULT_MAX, try_join_all(causes)) => drop(caused.with_context(|| format!("{all} does not end"))??),
            error = supervise => return Err(error),
        }
        let gone = Instant::now();
        let sum = |of: fn(&Fault) -> u64| Duration::from_secs(faults.iter().map(|fault| of(fault)).sum());
        let mut bound = Outage { locks: sum(|fault| fault.locks_s), operations: sum(|fault| fault.operations_s) };
        // In a long run, the operator leaves one hold-off in four to its end, after a minute.
        let is_patient = self.args.is_long() && self.random.random_range(0..4) == 0;
        if is_patient {
            bound.locks += HOLD_OFF;
        }
        let attend = async || {
            tier.parts.supervise()?;
            if !is_patient && gone.elapsed() >= OPERATOR_COMES_AFTER {
                tier.order_end_of_hold_off().await;
            }
            Ok(())
        };
        tier.watch().until_as_before(&all, RECOVERY_MAX, &tier.parts, attend).await?;
        let cost = tier.watch().end_fault()?;
        if tier.target == Target::Ha {
            tier.ha().until_complete(async || tier.parts.supervise()).await?;
        }
        let (locks, operations) = (cost.locks.as_secs_f64(), cost.operations.as_secs_f64());
        say(&format!("    {locks:.1} s without a lock, {operations:.1} s without an operation"));
        let name = match faults {
            _ if is_patient && cost.locks >= HOLD_OFF_LEAST => LEFT,
            [fault] => fault.name,
            _ => SEVERAL,
        };
        let (times, longest) = self.costs.entry(name).or_default();
        *times += 1;
        longest.locks = longest.locks.max(cost.locks);
        longest.operations = longest.operations.max(cost.operations);
        if cost.locks > bound.locks || cost.operations > bound.operations {
            self.too_long.push(format!("{all}: {locks:.1} and {operations:.1} s"));
            say(&format!(
                "    longer than the bounds of {} and {} s",
                bound.locks.as_secs(),
                bound.operations.as_secs()
            ));
        }
        Ok(())
    }

    async fn check(&mut self, tier: &Tier, first: Option<Sizes>) -> anyhow::Result<()> {
        say(&format!("{}: the load ends", tier.target.name()));
        tier.watch().stop(&tier.parts, &OTHER_CLIENTS).await?;
        let seen = tier.watch().check().await?;
        self.calls += seen.calls;
        println!("{}", summary(&seen));
        tier.until_empty(self.args.is_long()).await?;
        match first {
            Some(first) => first.compare(&Sizes::measure(tier).await?),
            None => Ok(()),
        }
    }

    fn report(&self) {
        println!("\n{:<36} {:>5}  {:>22}  {:>22}", "fault", "times", "s without a lock", "s without an operation");
        let bounds = FAULTS.iter().map(|fault| (fault.name, fault.locks_s.to_string(), fault.operations_s.to_string()));
        let sums =
            [(SEVERAL, "the sum".to_owned(), "the sum".to_owned()), (LEFT, "and 60".to_owned(), "the sum".to_owned())];
        let mut all = 0;
        for (name, locks, operations) in bounds.chain(sums) {
            let Some((times, longest)) = self.costs.get(name) else { continue };
            all += times;
            let (without, without_operations) = (longest.locks.as_secs_f64(), longest.operations.as_secs_f64());
            println!(
                "{name:<36} {times:>5}  {without:>9.1} of {locks:>10}  {without_operations:>9.1} of {operations:>10}"
            );
        }
        println!("\n{} calls, {all} faults, 0 broken promises (--seed {})", self.calls, self.seed);
    }
}
